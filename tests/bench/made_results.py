"""Results as runs give them, without running anything."""

import hashlib
import json
from typing import Any

from findtta.bench import Result

OPTIONS: dict[str, dict[str, Any]] = {
    "source": {},
    "tbn": {},
    "find": {"alpha": 0.8},
    "deyo": {"seed": 0},
}


def made(
    method: str = "find",
    accuracy: float = 50.0,
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
    status: str = "done",
    metrics: dict[str, float] | None = None,
    latency: float = 5.0,
) -> Result:
    asked = options or {}
    config = {
        "method": method,
        "options": {**OPTIONS.get(method, {}), **({"seed": seed} if method == "deyo" else {}), **asked},
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
            "batches": 2,
            "samples": samples or images,
            "digest": _digest([stream, stream_settings, batch_size, seed, domains, images, stream_version]),
        },
        "seed": seed,
        "reset": reset,
        "device": device,
        "versions": {"findtta": version, "torch": "2.13.0", "numpy": "2.0.0"},
    }
    spec = {
        "method": method,
        "options": asked,
        "model": model,
        "data": data.partition("-c ")[0],
        "stream": stream,
        "batch_size": batch_size,
        "seed": seed,
        "reset": reset,
        "device": device,
    }
    fields: dict[str, Any] = {"digest": _digest(config)[:20], "status": status, "spec": spec, "config": config}
    if status == "failed":
        error = {"type": "RuntimeError", "message": "two\nlines"}
        return Result(**fields, error=error, environment={"findtta": version, "started": started})
    return Result(
        **fields,
        metrics={
            "samples": samples or images,
            "accuracy": accuracy,
            "error": 100 - accuracy,
            "nll": 1.5,
            "brier": 0.5,
            "ece": 3.0,
            "mean_domain_accuracy": accuracy,
            "not_finite": 0,
            **(metrics or {}),
        },
        per_domain={domain: {"samples": images // len(domains), "accuracy": accuracy} for domain in domains},
        per_class={"disc": {"samples": images, "accuracy": accuracy}},
        per_round=[accuracy],
        running={"batch": [1, 2], "accuracy": [accuracy] * 2, "window": [accuracy] * 2},
        layers=[
            {
                "name": "bn1",
                "kind": "BatchNorm2d",
                "channels": 6,
                "groups_mean": 2.5,
                "groups_std": 0.5,
                "score": None,
                "split": None,
            }
        ],
        cost={
            "latency_ms": {"p50": latency, "p95": 2 * latency, "mean": latency},
            "images_per_second": 1000.0,
            "peak_memory_mb": 300.0,
            "forward_passes": 1,
            "backward_passes": 0,
        },
        environment={
            "findtta": version,
            "torch": "2.13.0+cpu",
            "numpy": "2.0.0",
            "python": "3.11.0",
            "system": "Linux x86_64",
            "device": device,
            "threads": 1,
            "started": started,
            "seconds": 1.0,
        },
    )


def unplanned(method: str = "find", digest: str = "unplanned-0") -> Result:
    """The record of a run that failed before it was known what it would compute."""
    spec = {"method": method, "options": {}, "model": "net", "data": "nowhere", "stream": "static", "seed": 0}
    return Result(
        digest=digest, status="failed", spec=spec, error={"type": "OptionError", "message": "no such data"}
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
