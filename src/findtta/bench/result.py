"""What a run gave: a JSON document, whether it is complete, and a flat row of it for other tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Self

from findtta.errors import InputError

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gave; everything in it is plain values.

    Attributes:
        digest: The identity of the run.
        status: ``"done"``, or ``"failed"`` with an ``error``.
        spec: What was asked for.
        config: All that decided the result (empty if the run failed before it was known).
        metrics: Samples, accuracy, error, mean_domain_accuracy, ece (per cent), nll, brier, not_finite.
        per_domain: Samples and accuracy of each domain.
        per_class: Samples and accuracy of each class.
        per_round: Accuracy of each pass over the data.
        running: The accuracy curve: batch, accuracy so far, accuracy since the last point.
        layers: Name, kind, channels, groups (mean and standard deviation), score and split of each adapted layer.
        collapse: When and how the predictions collapsed, or None.
        cost: Latency per batch (ms), images per second, peak memory (MB), passes.
        environment: Versions, machine and time; nothing that decides the result.
        error: Type and message of the error.
    """

    digest: str
    status: Literal["done", "failed"]
    spec: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    per_domain: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    per_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    per_round: list[float] = field(default_factory=list)
    running: Mapping[str, list[float]] = field(default_factory=dict)
    layers: Sequence[Mapping[str, Any]] = field(default_factory=list)
    collapse: Mapping[str, Any] | None = None
    cost: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, str] | None = None

    @property
    def accuracy(self) -> float:
        """The accuracy in per cent."""
        return self.metrics["accuracy"]

    @property
    def is_done(self) -> bool:
        """Whether the run did not fail."""
        return self.status == "done"

    @property
    def seed(self) -> Any:
        """The seed, as planned or else as asked for."""
        return self.config.get("seed", self.spec.get("seed"))

    @property
    def started(self) -> float:
        """When the run began, in seconds since 1970, or 0 if that is not known."""
        started = self.environment.get("started")
        return float(started) if isinstance(started, int | float) else 0.0

    @property
    def error_text(self) -> str:
        """The error in words; empty if there is none."""
        return f"{self.error.get('type')}: {self.error.get('message')}" if self.error else ""

    def to_json(self) -> str:
        """Return the result as a JSON document."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the result in a JSON document, or raise ``InputError`` if it is not one."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise InputError("the result was written by another version of findtta, in another format.")
            result = cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not the result of a run: {error}") from error
        if result.status not in ("done", "failed"):
            raise InputError(f"not the result of a run: status must be 'done' or 'failed', got {result.status!r}.")
        for name, empty in vars(cls(digest="", status="failed", spec={})).items():
            value, kind = getattr(result, name), dict | None if empty is None else type(empty)
            if not isinstance(value, kind):
                raise InputError(f"not the result of a run: {name} is {value!r}.")
        for path, names in _NEEDED.items():
            first, _, second = path.partition(".")
            if result.is_done or (first == "config" and result.config):
                part = getattr(result, first)[second] if second else getattr(result, first)
                missing = [name for name in names if not isinstance(part, dict) or name not in part]
                if missing:
                    raise InputError(f"not the result of a run: {path}.{missing[0]} is missing.")
        return result


#: What the parts of a result must have if it is done; the config also if it failed.
_NEEDED: dict[str, tuple[str, ...]] = {
    "config": ("method", "options", "model", "data", "stream", "seed", "reset", "device", "versions"),
    "config.model": ("name", "weights"),
    "config.data": ("name", "identity", "generated", "domains", "images"),
    "config.stream": ("scenario", "settings", "batch_size", "samples", "digest"),
    "metrics": ("accuracy", "error", "nll", "brier", "ece"),
    "running": ("batch", "accuracy"),
    "cost": ("latency_ms", "peak_memory_mb"),
    "cost.latency_ms": ("p50",),
}


#: The columns of :func:`flat` in groups, each with the type of its values; any of them may be None.
FLAT_GROUPS: dict[str, dict[str, type]] = {
    "run": {"digest": str, "status": str},
    "settings": {
        "method": str, "options": str, "model": str, "weights": str, "data": str, "data_identity": str,
        "generated": bool, "domains": str, "images": int, "stream": str, "stream_settings": str,
        "stream_digest": str, "batch_size": int, "batches": int, "seed": int, "reset": str, "device": str,
    },
    "measurements": {
        "samples": int, "accuracy": float, "error": float, "mean_domain_accuracy": float, "nll": float,
        "brier": float, "ece": float, "not_finite": int, "latency_p50_ms": float, "latency_p95_ms": float,
        "latency_mean_ms": float, "images_per_second": float, "peak_memory_mb": float, "forward_passes": int,
        "backward_passes": int, "collapse_batch": int, "collapse_reason": str,
    },
    "failure": {"failure_type": str, "failure_message": str},
    "environment": {
        "started": str, "seconds": float, "threads": int, "system": str,
        "findtta": str, "torch": str, "numpy": str, "python": str,
    },
}  # fmt: skip
#: All of these columns.
FLAT_COLUMNS: dict[str, type] = {name: kind for group in FLAT_GROUPS.values() for name, kind in group.items()}


def flat(result: Result) -> dict[str, Any]:
    """Return a result as a flat row, with a value or None for each of ``FLAT_COLUMNS``.

    Options and settings are JSON texts, the time of the start is ISO 8601 in UTC.
    """
    planned = {**result.spec, **result.config}  # what was asked for, where the run was not planned
    model, data, stream = (result.config.get(name, {}) for name in ("model", "data", "stream"))
    values = {
        **result.environment,
        **result.metrics,
        **result.cost,
        **{name: planned.get(name) for name in ("method", "seed", "reset", "device")},
        "digest": result.digest,
        "status": result.status,
        "options": _json(planned.get("options")),
        "model": model.get("name", result.spec.get("model")),
        "weights": model.get("weights"),
        "data": data.get("name", result.spec.get("data")),
        "data_identity": data.get("identity"),
        "generated": data.get("generated"),
        "domains": _json(data.get("domains", result.spec.get("domains"))),
        "images": data.get("images"),
        "stream": stream.get("scenario", result.spec.get("stream")),
        "stream_settings": _json(stream.get("settings")),
        "stream_digest": stream.get("digest"),
        "batch_size": stream.get("batch_size", result.spec.get("batch_size")),
        "batches": stream.get("batches"),
        **{f"latency_{name}_ms": value for name, value in result.cost.get("latency_ms", {}).items()},
        **{f"collapse_{name}": value for name, value in (result.collapse or {}).items()},
        **{f"failure_{name}": value for name, value in (result.error or {}).items()},
        "started": datetime.fromtimestamp(result.started, UTC).isoformat(timespec="seconds"),
    }
    return {name: _typed(values.get(name), kind) for name, kind in FLAT_COLUMNS.items()}


def _typed(value: Any, kind: type) -> Any:
    """Return a value if it has the type of its column, else None."""
    if isinstance(value, bool) and kind is not bool:
        return None
    if kind is float and isinstance(value, int):
        return float(value)
    return value if isinstance(value, kind) else None


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)
