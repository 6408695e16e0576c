"""Whether a result has all that tables need; one written by an older release may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from findtta.bench.result import Result


def what_is_missing(result: Result) -> str | None:
    """Return what keeps a result out of tables, such as metrics of another release, or None if nothing does."""
    parts = ("config",) if result.status != "done" else ("config", "metrics", "cost")
    if result.status != "done" and not result.config:
        return None
    for part in parts:
        missing = _missing(getattr(result, part), _NEEDED[part], part)
        if missing:
            return missing
    return None


_NUMBER = (int, float)


_NEEDED: dict[str, dict[str, Any]] = {
    "config": {
        "method": str,
        "options": dict,
        "model": {"name": str, "weights": str},
        "data": {"name": str, "identity": str, "generated": bool, "domains": list, "images": int},
        "stream": {"scenario": str, "settings": dict, "batch_size": int, "samples": int, "digest": str},
        "seed": int,
        "reset": str,
        "device": str,
        "versions": dict,
    },
    "metrics": dict.fromkeys(("accuracy", "error", "nll", "brier", "ece"), _NUMBER),
    "cost": {"latency_ms": {"p50": _NUMBER}, "peak_memory_mb": _NUMBER},
}


def _missing(found: Any, needed: Any, path: str) -> str | None:
    if isinstance(needed, dict):
        if not isinstance(found, Mapping):
            return f"{path} is no object"
        inside = (
            _missing(found[key], part, f"{path}.{key}") if key in found else f"{path}.{key} is missing"
            for key, part in needed.items()
        )
        return next((problem for problem in inside if problem), None)
    if needed is list:
        is_right = isinstance(found, list | tuple) and all(isinstance(item, str) for item in found)
    elif needed is dict:
        is_right = isinstance(found, Mapping)
    else:
        is_right = isinstance(found, needed) and (needed is bool or not isinstance(found, bool))
    return None if is_right else f"{path} is {found!r}"
