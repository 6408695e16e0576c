"""What runs with several seeds gave together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any

from findtta.bench.result import Result

CURVE_POINTS = 100


@dataclass(frozen=True)
class Layer:
    """What an adapted layer did, as the mean over seeds.

    Attributes:
        name: Its name in the network.
        groups: The number of groups per batch, or None if it was not split into groups.
        deviation: The standard deviation of that number, over batches and seeds.
        score: The sensitivity score, or None if it has none.
        split: The share of the runs in which it was split, or None if that was not decided.
    """

    name: str
    groups: float | None
    deviation: float
    score: float | None
    split: float | None


def domain_accuracies(runs: Iterable[Result]) -> dict[str, float]:
    """Return the accuracy in every domain, as the mean over runs, in the order of the data."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for domain in run.config["data"]["domains"]:
            part = run.per_domain.get(domain)
            accuracy = _number(part.get("accuracy")) if isinstance(part, Mapping) else None
            if accuracy is not None:
                found[domain].append(accuracy)
    return {domain: fmean(values) for domain, values in found.items()}


def curve(runs: Sequence[Result]) -> list[tuple[float, float]]:
    """Return the accuracy so far after so many batches, as the mean over runs, thinned out if long."""
    curves = [dict(_curve(run)) for run in runs]
    batches = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    return [(batch, fmean(curve[batch] for curve in curves)) for batch in _thinned(batches)]


def collapses(runs: Iterable[Result]) -> list[tuple[float, str]]:
    """Return the batches at which predictions collapsed, each with what happened."""
    found = []
    for run in runs:
        batch = _number(run.collapse.get("batch")) if run.collapse else None
        if batch is not None and run.collapse:
            found.append((batch, f"seed {run.config['seed']}, batch {batch:g}: {run.collapse.get('reason')}"))
    return sorted(found)


def layers(runs: Sequence[Result]) -> list[Layer]:
    """Return what the layers did that have groups or a score, in the order of the network."""
    by_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        for layer in run.layers:
            if isinstance(layer, Mapping) and isinstance(layer.get("name"), str):
                by_name[layer["name"]].append(layer)
    found = [_layer(name, parts) for name, parts in by_name.items()]
    return found if any(layer.groups is not None or layer.score is not None for layer in found) else []


def _layer(name: str, parts: Sequence[Mapping[str, Any]]) -> Layer:
    groups, deviations, scores = (
        [value for part in parts if (value := _number(part.get(key))) is not None]
        for key in ("groups_mean", "groups_std", "score")
    )
    split = [bool(part["split"]) for part in parts if part.get("split") is not None]
    # The variance of all batches of all seeds: within the seeds, and between them.
    variance = fmean(value**2 for value in deviations) if deviations else 0.0
    return Layer(
        name=name,
        groups=fmean(groups) if groups else None,
        deviation=math.sqrt(variance + (pvariance(groups) if len(groups) > 1 else 0.0)),
        score=fmean(scores) if scores else None,
        split=fmean(split) if split else None,
    )


def _curve(run: Result) -> Iterable[tuple[float, float]]:
    """Yield the points of a curve that are of any use."""
    batches, accuracies = run.running.get("batch"), run.running.get("accuracy")
    if isinstance(batches, list) and isinstance(accuracies, list):
        for batch, accuracy in zip(batches, accuracies, strict=False):
            place, height = _number(batch), _number(accuracy)
            if place is not None and height is not None:
                yield place, height


def _thinned(batches: Sequence[float]) -> Sequence[float]:
    """Keep so many of them, evenly spaced, the first and the last among them."""
    if len(batches) <= CURVE_POINTS:
        return batches
    step = (len(batches) - 1) / (CURVE_POINTS - 1)
    return [batches[round(index * step)] for index in range(CURVE_POINTS)]


def _number(value: object) -> float | None:
    """Return a finite number, or None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]
