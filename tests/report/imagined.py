"""Results as a benchmark gives them, made up: the same ones every time."""

import hashlib
import json
import math
import random
from collections.abc import Iterable
from typing import Any

from findtta.bench import Result
from findtta.data.dataset import MAIN_CORRUPTIONS

METHODS = (
    "source", "tent", "eata", "note", "sar", "rotta", "vida", "deyo",
    "tbn", "alpha-bn", "iabn", "find", "find-star",
)  # fmt: skip
STREAMS = ("crossmix", "random", "shuffle", "static")
ATTACK = '<script>document.title = "attacked"</script><img src=x onerror="document.title=1">'

_STREAM_BONUS = {"crossmix": 0.0, "random": 5.0, "shuffle": 5.5, "static": 9.0, "wild": -4.0}
_ACCURACY = dict(zip(METHODS, (57, 63, 62, 63, 62, 44, 62, 69, 62, 62, 63, 71.5, 70.7), strict=True))
_LATENCY = dict(zip(METHODS, (21, 70, 72, 640, 140, 260, 1900, 95, 28, 29, 80, 74, 52), strict=True))
_DOMAINS = tuple(f"{name}@5" for name in MAIN_CORRUPTIONS)


def run(
    method: str = "find",
    *,
    stream: str = "crossmix",
    settings: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    seed: int = 0,
    data: str = "cifar10-c",
    model: str = "resnet50-thin",
    weights: str = "5eed" * 4,
    domains: tuple[str, ...] = _DOMAINS,
    images: int = 30_000,
    batch_size: int = 64,
    reset: str = "never",
    accuracy: float | None = None,
    latency: float | None = None,
    points: int = 120,
    layers: int = 53,
    version: str = "0.1.0",
    started: float = 1.7e9,
    collapse: dict[str, Any] | None = None,
    error: dict[str, str] | None = None,
) -> Result:
    """One run; what is not said follows from the method and the stream, with some noise."""
    config = {
        "method": method,
        "options": options or {},
        "model": {"name": model, "weights": weights},
        "data": {
            "name": data,
            "identity": _digest([data, domains, images])[:16],
            "generated": "(generated)" in data,
            "domains": list(domains),
            "images": images,
        },
        "stream": {
            "scenario": stream,
            "settings": settings or {},
            "batch_size": batch_size,
            "batches": images // batch_size,
            "samples": images,
            "digest": _digest([stream, settings, batch_size, seed, domains, images]),
        },
        "seed": seed,
        "reset": reset,
        "device": "cpu",
        "versions": {"findtta": version, "torch": "2.13.0", "numpy": "2.0.0"},
    }
    spec = {
        "method": method, "options": options or {}, "model": model, "data": data, "stream": stream,
        "batch_size": batch_size, "seed": seed, "reset": reset, "device": "cpu",
    }  # fmt: skip
    fields: dict[str, Any] = {"digest": _digest(config)[:20], "spec": spec, "config": config}
    if error:
        return Result(**fields, status="failed", error=error, environment={"findtta": version, "started": started})
    noise = random.Random(_digest(config))
    mean = _ACCURACY.get(method, 60.0) + _STREAM_BONUS.get(stream, 0.0) * (method not in ("source", "iabn"))
    mean = noise.gauss(mean, 0.3) if accuracy is None else accuracy
    median = noise.gauss(1, 0.04) * _LATENCY.get(method, 50) if latency is None else latency
    return Result(
        **fields,
        status="done",
        metrics={
            "samples": images, "accuracy": mean, "error": 100 - mean, "mean_domain_accuracy": mean,
            "nll": 4 - mean / 25, "brier": 1 - mean / 120, "ece": 40 - mean / 2.2, "not_finite": 0,
        },
        per_domain=_domains(mean, domains, images, noise),
        per_class={"cat": {"samples": images, "accuracy": mean}},
        per_round=[mean],
        running=_running(mean, points, images // batch_size, noise, collapse),
        layers=_layers(method, stream, layers, noise),
        collapse=collapse,
        cost={
            "latency_ms": {"p50": median, "p95": 1.3 * median, "mean": 1.05 * median},
            "images_per_second": 1e3 * batch_size / median,
            "peak_memory_mb": 300 + 2 * median,
            "forward_passes": 1,
            "backward_passes": 0,
        },
        environment={
            "findtta": version, "torch": "2.13.0+cpu", "numpy": "2.0.0", "python": "3.11.7",
            "system": "Linux x86_64", "device": "cpu", "threads": 1, "started": started, "seconds": 31.5,
        },
    )  # fmt: skip


def benchmark(seeds: int = 2) -> list[Result]:
    """Thirteen methods on four streams, a setting that cannot be compared with it, and some that went wrong."""
    results = [
        run(method, stream=stream, seed=seed, started=1.7e9 + 60 * number)
        for number, (method, stream, seed) in enumerate(_grid(METHODS, STREAMS, range(seeds)))
        if (method, stream, seed) not in (("vida", "shuffle", 1), ("note", "static", 0), ("note", "static", 1))
    ]
    results = [result for result in results if not _is(result, "tent", "random", 0)]
    collapse = {"batch": 180, "reason": "97 % of the predictions are one class"}
    results.append(run("tent", stream="random", accuracy=30.0, collapse=collapse))
    memory = {"type": "OutOfMemoryError", "message": "cannot allocate 2.1 GB\nwith 24 GB in use"}
    results += [run("note", stream="static", seed=seed, error=memory) for seed in range(seeds)]
    results.append(run("vida", stream="shuffle", seed=1, error={"type": ATTACK, "message": ATTACK}))
    shapes = {"data": "shapes-c (generated)", "model": "shapes-resnet26", "images": 2_400, "layers": 27}
    results += [
        run(method, stream=stream, **shapes)
        for method, stream, _ in _grid(
            ("source", "tbn", "alpha-bn", "find", "find-star"), ("crossmix", "wild"), [0]
        )
    ]
    results.append(
        Result(
            digest="0" * 20,
            status="failed",
            spec={"method": f"find{ATTACK}", "options": {}, "stream": "static", "data": "nowhere", "seed": 0},
            error={"type": "OptionError", "message": "there is no such data"},
        )
    )
    return results


def _grid(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = [()]
    for axis in axes:
        values = list(axis)
        found = [(*left, right) for left in found for right in values]
    return found


def _is(result: Result, method: str, stream: str, seed: int) -> bool:
    config = result.config
    return (config["method"], config["stream"]["scenario"], config["seed"]) == (method, stream, seed)


def _domains(mean: float, domains: tuple[str, ...], images: int, noise: random.Random) -> dict[str, Any]:
    share = images // len(domains)
    hardness = [18 * math.sin(1.7 * place) for place in range(len(domains))]
    centre = sum(hardness) / len(hardness)
    return {
        domain: {"samples": share, "accuracy": min(100.0, max(0.0, mean - hard + centre + noise.gauss(0, 1.5)))}
        for domain, hard in zip(domains, hardness, strict=True)
    }


def _running(
    mean: float, points: int, batches: int, noise: random.Random, collapse: dict[str, Any] | None
) -> dict[str, Any]:
    places = [round(batches * (point + 1) / points) for point in range(points)]
    curve, total = [], 0.0
    for point in range(points):
        total += noise.gauss(mean, 9)
        curve.append(total / (point + 1))
    curve = [value + (mean - curve[-1]) * (point + 1) / points for point, value in enumerate(curve)]
    if collapse:
        fall = collapse["batch"]
        curve = [62.0 if at < fall else (62 * fall + 10 * (at - fall)) / at for at in places]
    return {"batch": places, "accuracy": curve, "window": curve}


def _layers(method: str, stream: str, count: int, noise: random.Random) -> list[dict[str, Any]]:
    if method not in ("find", "find-star"):
        return []
    offset = {"crossmix": 3.0, "random": 2.0, "shuffle": 1.0, "static": 0.0}.get(stream, 2.5)
    found = []
    for place in range(count):
        score = 0.9 * math.exp(-place / 12) + 0.05 + noise.random() * 0.05
        is_split = method == "find" or score > 0.2
        groups = 4 + offset + 14 * math.exp(-(((place - 18) / 14) ** 2))
        found.append(
            {
                "name": f"layer{1 + place // 14}.{place % 14 // 3}.bn{1 + place % 3}",
                "kind": "BatchNorm2d",
                "channels": 16 * 2 ** (place // 14),
                "groups_mean": groups + noise.gauss(0, 0.3) if is_split else None,
                "groups_std": 0.5 + groups / 6 if is_split else None,
                "score": score if method == "find-star" else None,
                "split": is_split if method == "find-star" else None,
            }
        )
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
