"""One flat row per run, for spreadsheets and other tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from findtta.bench.result import Result

#: The columns of :func:`flat`, each with the type of its values; any of them may be None.
FLAT_COLUMNS: dict[str, type] = {
    "digest": str, "status": str,
    "method": str, "options": str,
    "model": str, "weights": str,
    "data": str, "data_identity": str, "generated": bool, "domains": str, "images": int,
    "stream": str, "stream_settings": str, "stream_digest": str, "batch_size": int, "batches": int,
    "seed": int, "reset": str, "device": str,
    "samples": int, "accuracy": float, "error": float, "mean_domain_accuracy": float,
    "nll": float, "brier": float, "ece": float, "not_finite": int,
    "latency_p50_ms": float, "latency_p95_ms": float, "latency_mean_ms": float, "images_per_second": float,
    "peak_memory_mb": float, "forward_passes": int, "backward_passes": int,
    "collapse_batch": int, "collapse_reason": str,
    "failure_type": str, "failure_message": str,
    "started": str, "seconds": float, "threads": int, "system": str,
    "findtta": str, "torch": str, "numpy": str, "python": str,
}  # fmt: skip


def flat(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return one flat row per run, with a value or None for each of ``FLAT_COLUMNS``.

    Args:
        results: What runs gave, done or failed.

    Returns:
        The rows; options and settings are JSON texts, the time of the start is ISO 8601 in UTC.
    """
    return [_flat_row(result) for result in results]


def _flat_row(result: Result) -> dict[str, Any]:
    config, spec, environment = result.config, result.spec, result.environment
    model, data, stream = (_mapping(config.get(part)) for part in ("model", "data", "stream"))
    latency, collapse, failure = map(_mapping, (result.cost.get("latency_ms"), result.collapse, result.error))
    row = {
        "digest": result.digest,
        "status": result.status,
        "method": config.get("method", spec.get("method")),
        "options": _json(config.get("options", spec.get("options"))),
        "model": model.get("name", spec.get("model")),
        "weights": model.get("weights"),
        "data": data.get("name", spec.get("data")),
        "data_identity": data.get("identity"),
        "generated": data.get("generated"),
        "domains": _json(data.get("domains", spec.get("domains"))),
        "images": data.get("images"),
        "stream": stream.get("scenario", spec.get("stream")),
        "stream_settings": _json(stream.get("settings")),
        "stream_digest": stream.get("digest"),
        "batch_size": stream.get("batch_size", spec.get("batch_size")),
        "batches": stream.get("batches"),
        "latency_p50_ms": latency.get("p50"),
        "latency_p95_ms": latency.get("p95"),
        "latency_mean_ms": latency.get("mean"),
        "collapse_batch": collapse.get("batch"),
        "collapse_reason": collapse.get("reason"),
        "failure_type": failure.get("type"),
        "failure_message": failure.get("message"),
        "started": _iso_time(environment.get("started")),
    }
    row |= {name: config.get(name, spec.get(name)) for name in ("seed", "reset", "device")}
    named = {**environment, **result.metrics, **result.cost}
    return {
        name: _typed(row[name] if name in row else named.get(name), kind) for name, kind in FLAT_COLUMNS.items()
    }


def _typed(value: Any, kind: type) -> Any:
    """Return a value if it is of the kind that its column holds, else None."""
    if isinstance(value, bool) and kind is not bool:
        return None
    if kind is float and isinstance(value, int):
        return float(value)
    return value if isinstance(value, kind) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


def _iso_time(seconds: Any) -> str | None:
    if not isinstance(seconds, int | float):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
