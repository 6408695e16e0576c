"""What a run gave, as one JSON document."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        per_domain: Samples and accuracy of every domain.
        per_class: Samples and accuracy of every class.
        per_round: Accuracy of every pass over the data.
        running: The accuracy curve: batch, accuracy so far, accuracy since the last point.
        layers: For every adapted layer its name, kind, channels, groups (mean and deviation), score and split.
        collapse: When and how the predictions collapsed, or None.
        cost: Latency per batch (ms), images per second, peak memory (MB), passes.
        environment: Versions, machine and time; nothing that decides the result.
        error: Type and message of what went wrong.
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
        """Percentage right."""
        return self.metrics["accuracy"]

    def to_json(self) -> str:
        """Return the result as a JSON document."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the result in a JSON document, or raise ``InputError`` if it holds none."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise InputError("the result was written by another release of findtta, in another format.")
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"no result of a run: {error}") from error
