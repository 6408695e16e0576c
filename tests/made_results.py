"""Results as runs give them, without running anything: the same ones every time."""

import functools
import hashlib
import itertools
import json
import math
import random
from typing import Any

import numpy as np

from findtta.bench import Result
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.intervals import Scores

METHODS = (
    "source", "tent", "eata", "note", "sar", "rotta", "vida", "deyo",
    "tbn", "alpha-bn", "iabn", "find", "find-star",
)  # fmt: skip
STREAMS = ("crossmix", "random", "shuffle", "static")
ATTACK = '<script>document.title = "attacked"</script><img src=x onerror="document.title=1">'

_OPTIONS: dict[str, dict[str, Any]] = {"find": {"alpha": 0.8}, "deyo": {"seed": 0}}
_STREAM_BONUS = {"random": 5.0, "shuffle": 5.5, "static": 9.0, "wild": -4.0}
_ACCURACY = dict(zip(METHODS, (57, 63, 62, 63, 62, 44, 62, 69, 62, 62, 63, 71.5, 70.7), strict=True))
_LATENCY = dict(zip(METHODS, (21, 70, 72, 640, 140, 260, 1900, 95, 28, 29, 80, 74, 52), strict=True))


def made(
    method: str = "find",
    accuracy: float | None = 50.0,
    *,
    stream: str = "crossmix",
    stream_settings: dict[str, Any] | None = None,
    stream_version: str = "",
    options: dict[str, Any] | None = None,
    model: str = "net",
    weights: str = "a" * 16,
    data: str = "shapes-c (generated)",
    domains: tuple[str, ...] = ("fog@5", "snow@5"),
    images: int = 80,
    samples: int | None = None,
    batch_size: int = 64,
    seed: int = 0,
    reset: str = "never",
    device: str = "cpu",
    version: str = "0.1.0",
    started: float = 1.7e9,
    metrics: dict[str, float] | None = None,
    latency: float | None = 5.0,
    points: int = 2,
    layers: int = 1,
    collapse: dict[str, Any] | None = None,
    status: str = "done",
    error: dict[str, str] | None = None,
) -> Result:
    """One result; accuracy and latency that are None follow from method and stream, with some noise."""
    asked = options or {}
    config = {
        "method": method,
        "options": {**_OPTIONS.get(method, {}), **({"seed": seed} if method == "deyo" else {}), **asked},
        "model": {"name": model, "weights": weights},
        "data": {
            "name": data,
            "identity": _digest([data, domains, images])[:16],
            "generated": "generated" in data,
            "domains": list(domains),
            "images": images,
        },
        "stream": {
            "scenario": stream,
            "settings": stream_settings or {},
            "batch_size": batch_size,
            "batches": -(-images // batch_size),
            "samples": samples or images,
            "domains_per_batch": float(len(domains)),
            "classes_per_batch": 10.0,
            "digest": _digest([stream, stream_settings, batch_size, seed, domains, images, stream_version]),
        },
        "seed": seed,
        "reset": reset,
        "device": device,
        "code": {part: "c" * 12 for part in ("method", "model", "data", "evaluation")},
        "versions": {"findtta": version, "torch": "2.13.0", "numpy": "2.0.0"},
    }
    spec = {
        "method": method, "options": asked, "model": model, "data": data.partition("-c ")[0], "stream": stream,
        "batch_size": batch_size, "seed": seed, "reset": reset, "device": device,
    }  # fmt: skip
    fields: dict[str, Any] = {"digest": _digest(config)[:20], "spec": spec, "config": config}
    if status == "failed" or error:
        error = error or {"type": "RuntimeError", "message": "two\nlines"}
        environment = {"findtta": version, "started": started}
        return Result(**fields, status="failed", error=error, environment=environment)
    noise = random.Random(_digest(config))
    if accuracy is None:
        bonus = _STREAM_BONUS.get(stream, 0.0) * (method not in ("source", "iabn"))
        accuracy = noise.gauss(_ACCURACY.get(method, 60.0) + bonus, 0.3)
    if latency is None:
        latency = noise.gauss(1, 0.04) * _LATENCY.get(method, 50)
    batches = [max(1, round((number + 1) * config["stream"]["batches"] / points)) for number in range(points)]
    return Result(
        **fields,
        status="done",
        metrics={
            "samples": samples or images, "accuracy": accuracy, "error": 100 - accuracy,
            "mean_domain_accuracy": accuracy, "nll": 4 - accuracy / 25, "brier": 1 - accuracy / 120,
            "ece": 40 - accuracy / 2.2, "not_finite": 0, **(metrics or {}),
        },
        per_domain={
            domain: {"samples": images // len(domains), "accuracy": _of_domain(accuracy, place, noise)}
            for place, domain in enumerate(domains)
        },
        per_class={"disc": {"samples": images, "accuracy": accuracy}},
        per_round=[accuracy],
        samples=samples_of(samples or images, len(domains), 0.0 if math.isnan(accuracy) else accuracy),
        running=_running(accuracy, batches, noise, collapse),
        layers=_layers(method, stream, layers, noise),
        collapse=collapse,
        cost={
            "latency_ms": {"p50": latency, "p95": 2 * latency, "mean": latency},
            "images_per_second": 1000.0, "peak_memory_mb": 300.0 + 2 * latency,
            "forward_passes": 1, "backward_passes": 0,
        },
        environment={
            "findtta": version, "torch": "2.13.0+cpu", "numpy": "2.0.0", "python": "3.11.0",
            "system": "Linux x86_64", "device": device, "threads": 1, "started": started, "seconds": 1.0,
        },
    )  # fmt: skip


def unplanned(method: str = "find", digest: str = "unplanned-0") -> Result:
    """The record of a run that failed before it was known what it would compute."""
    spec = {"method": method, "options": {}, "model": "net", "data": "nowhere", "stream": "static", "seed": 0}
    error = {"type": "OptionError", "message": "no such data"}
    return Result(digest=digest, status="failed", spec=spec, error=error)


def cifar(method: str = "find", **changes: Any) -> Result:
    """A run as the paper made it."""
    usual = {
        "accuracy": None, "latency": None, "data": "cifar10-c", "model": "resnet50-thin", "weights": "5eed" * 4,
        "domains": tuple(f"{name}@5" for name in MAIN_CORRUPTIONS), "images": 30_000, "points": 120, "layers": 53,
    }  # fmt: skip
    return made(method, **{**usual, **changes})


def benchmark(seeds: int = 2) -> list[Result]:
    """Thirteen methods on four streams, a setting that cannot be compared with it, and some failures."""
    memory = {"type": "OutOfMemoryError", "message": "cannot allocate 2.1 GB\nwith 24 GB in use"}
    special: dict[tuple[str, str, int], dict[str, Any]] = {
        ("vida", "shuffle", 1): {"error": {"type": ATTACK, "message": ATTACK}},
        ("tent", "random", 0): {
            "accuracy": 30.0,
            "collapse": {"batch": 180, "reason": "97 % of the predictions are one class"},
        },
        **{("note", "static", seed): {"error": memory} for seed in range(seeds)},
    }
    results = [
        cifar(run[0], stream=run[1], seed=run[2], started=1.7e9 + 60 * number, **special.get(run, {}))
        for number, run in enumerate(itertools.product(METHODS, STREAMS, range(seeds)))
    ]
    shapes = {"data": "shapes-c (generated)", "model": "shapes-resnet26", "images": 2_400, "layers": 27}
    few = itertools.product(("source", "tbn", "alpha-bn", "find", "find-star"), ("crossmix", "wild"))
    results += [cifar(method, stream=stream, **shapes) for method, stream in few]
    return [*results, unplanned(f"find{ATTACK}", "0" * 20)]


@functools.cache
def samples_of(count: int, domains: int, accuracy: float) -> dict[str, str]:
    """Samples of the same images in each domain; whoever is more accurate is right wherever the others are."""
    order = np.random.default_rng(0).permutation(count)
    correct = np.argsort(order) < round(count * accuracy / 100)
    return Scores(np.arange(count) // domains, correct.astype(np.int8)).encode()


def _of_domain(mean: float, place: int, noise: random.Random) -> float:
    return min(100.0, max(0.0, mean - 18 * math.sin(1.7 * place) + noise.gauss(0, 1.5)))


def _running(
    mean: float, batches: list[int], noise: random.Random, collapse: dict[str, Any] | None
) -> dict[str, Any]:
    accuracies = []
    for number, batch in enumerate(batches):
        fallen = collapse is not None and batch > collapse["batch"]
        level = mean + 30 * collapse["batch"] / batch if fallen else mean + 30 * (collapse is not None)
        accuracies.append(level + noise.gauss(0, 8) / (1 + number))
    accuracies[-1] = mean
    return {"batch": batches, "accuracy": accuracies, "window": accuracies}


def _layers(method: str, stream: str, count: int, noise: random.Random) -> list[dict[str, Any]]:
    if method not in ("find", "find-star"):
        return []
    offset = _STREAM_BONUS.get(stream, 6.0) / 3
    found = []
    for place in range(count):
        score = 0.9 * math.exp(-place / 12) + 0.05 + noise.random() * 0.05
        is_split = method == "find" or score > 0.2
        groups = 4 + offset + 14 * math.exp(-(((place - 18) / 14) ** 2)) + noise.gauss(0, 0.3)
        found.append(
            {
                "name": f"layer{1 + place // 14}.{place % 14 // 3}.bn{1 + place % 3}",
                "kind": "BatchNorm2d",
                "channels": 16 * 2 ** (place // 14),
                "groups_mean": groups if is_split else None,
                "groups_std": 0.5 + groups / 6 if is_split else None,
                "score": score if method == "find-star" else None,
                "split": is_split if method == "find-star" else None,
            }
        )
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
