"""Metrics of a stream, gathered batch by batch in constant memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from findtta.errors import InputError

BINS = 15  # of confidence, for the calibration error
POINTS = 200  # of the accuracy curve at most
_MILLISECONDS = np.geomspace(1e-3, 1e6, 2084)  # edges one per cent apart


class Metrics:
    """Accuracy, calibration and likelihood of predictions, overall and by domain, class and round.

    Args:
        domains: The names of the domains.
        classes: The names of the classes.
        batches: The length of the stream, which decides how finely the accuracy curve is kept.
        rounds: How many times the data is gone through.
    """

    def __init__(self, domains: Sequence[str], classes: Sequence[str], batches: int, rounds: int) -> None:
        self._domains, self._classes = domains, classes
        self._by_domain = np.zeros((len(domains), 2), np.int64)  # samples, right ones
        self._by_class = np.zeros((len(classes), 2), np.int64)
        self._by_round = np.zeros((rounds, 2), np.int64)
        self._bins = np.zeros((BINS, 3))  # samples, right ones, sum of confidence
        self._nll = self._brier = 0.0
        self._not_finite = 0
        self._stride = max(1, -(-batches // POINTS))
        self._window = np.zeros(2, np.int64)
        self._curve: list[tuple[int, float, float]] = []
        self._batches = 0

    @property
    def samples(self) -> int:
        """How many samples were seen."""
        return int(self._by_round[:, 0].sum())

    @property
    def accuracy(self) -> float:
        """Percentage right so far."""
        return _percent(self._by_round.sum(axis=0))

    def update(
        self, logits: Tensor, labels: NDArray[Any], domain_ids: NDArray[Any], round_number: int = 0
    ) -> None:
        """Take note of the predictions for one batch.

        Args:
            logits: Shape (n, classes); on any device.
            labels: The right classes.
            domain_ids: The domains of the samples.
            round_number: The pass over the data that the batch belongs to.
        """
        if logits.ndim != 2 or logits.shape[0] != len(labels) or logits.shape[1] < len(self._classes):
            raise InputError(
                f"the model must give logits of shape ({len(labels)}, {len(self._classes)} or more) for a batch, "
                f"but gave {tuple(logits.shape)}: model and data do not belong together."
            )
        scores = logits.detach().float().cpu()
        finite = scores.isfinite().all(1)
        self._not_finite += len(scores) - int(finite.sum())
        # A prediction with NaN is wrong whatever its label, and as unsure as can be.
        scores = torch.where(finite[:, None], scores, 0.0)
        log_probabilities = F.log_softmax(scores.double(), dim=1)
        probabilities = log_probabilities.exp()
        truth = torch.from_numpy(np.asarray(labels, np.int64))
        confidence, predicted = probabilities.max(1)
        right = ((predicted == truth) & finite).numpy()
        of_truth = probabilities.gather(1, truth[:, None])[:, 0]
        self._nll -= float(log_probabilities.gather(1, truth[:, None]).sum())
        self._brier += float((probabilities.square().sum(1) - 2 * of_truth + 1).sum())
        bins = (confidence.numpy() * BINS).astype(np.int64).clip(0, BINS - 1)
        self._bins += np.stack(
            [np.bincount(bins, weights=weights, minlength=BINS) for weights in (None, right, confidence.numpy())],
            1,
        )
        _count(self._by_domain, domain_ids, right)
        _count(self._by_class, labels, right)
        seen = np.array([len(right), int(right.sum())])
        self._by_round[round_number] += seen
        self._window += seen
        self._batches += 1
        if self._batches % self._stride == 0:
            self._curve.append(self._point())
            self._window[:] = 0

    def summary(self) -> dict[str, Any]:
        """Return all metrics as plain values; percentages for accuracies."""
        samples = max(self.samples, 1)
        filled = self._bins[self._bins[:, 0] > 0]
        # The curve ends where the stream ends, also between two points.
        curve = [*self._curve, self._point()] if self._window[0] else self._curve
        return {
            "metrics": {
                "samples": self.samples,
                "accuracy": self.accuracy,
                "error": 100 - self.accuracy,
                "nll": self._nll / samples,
                "brier": self._brier / samples,
                "ece": 100 * float(np.abs(filled[:, 1] - filled[:, 2]).sum()) / samples,
                "mean_domain_accuracy": _mean([_percent(row) for row in self._by_domain if row[0]]),
                "not_finite": self._not_finite,
            },
            "per_domain": _named(self._domains, self._by_domain),
            "per_class": _named(self._classes, self._by_class),
            "per_round": [_percent(row) for row in self._by_round],
            "running": {
                "batch": [point[0] for point in curve],
                "accuracy": [point[1] for point in curve],
                "window": [point[2] for point in curve],
            },
        }

    def _point(self) -> tuple[int, float, float]:
        return self._batches, self.accuracy, _percent(self._window)


class Latencies:
    """Durations in a histogram whose bins are one per cent wide, so that any number of them fits."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_MILLISECONDS) + 1, np.int64)
        self._total = 0.0

    def add(self, milliseconds: float) -> None:
        """Take note of one duration."""
        self._counts[np.searchsorted(_MILLISECONDS, milliseconds)] += 1
        self._total += milliseconds

    def percentile(self, share: float) -> float:
        """Return the duration below which this share (0 to 1) of them lies, to one per cent."""
        rank = share * max(int(self._counts.sum()) - 1, 0)
        below = int(rank)
        low, high = self._smallest(below), self._smallest(below + 1)
        return low + (rank - below) * (high - low)

    def mean(self) -> float:
        """Return the mean duration."""
        return self._total / max(int(self._counts.sum()), 1)

    def _smallest(self, rank: int) -> float:
        """Return the duration that so many others come before."""
        count = int(self._counts.sum())
        if not count:
            return 0.0
        position = int(np.searchsorted(self._counts.cumsum(), min(rank, count - 1), side="right"))
        edges = _MILLISECONDS[[max(position - 1, 0), min(position, len(_MILLISECONDS) - 1)]]
        return float(np.sqrt(edges.prod()))  # the middle of the bin


class GroupCounts:
    """Mean and deviation of the number of groups in every layer, over the batches (Welford's recurrence)."""

    def __init__(self) -> None:
        self._layers: dict[str, list[float]] = {}

    def add(self, layer: str, groups: int) -> None:
        """Take note of the groups of one layer in one batch."""
        seen = self._layers.setdefault(layer, [0.0, 0.0, 0.0])
        seen[0] += 1
        away = groups - seen[1]
        seen[1] += away / seen[0]
        seen[2] += away * (groups - seen[1])

    def of(self, layer: str) -> tuple[float, float] | None:
        """Return mean and deviation of a layer's group counts, or None if it never split."""
        if layer not in self._layers:
            return None
        count, mean, squares = self._layers[layer]
        return mean, (squares / count) ** 0.5


def _count(table: NDArray[np.int64], which: NDArray[Any], right: NDArray[Any]) -> None:
    table[:, 0] += np.bincount(which, minlength=len(table))
    table[:, 1] += np.bincount(which, weights=right, minlength=len(table)).astype(np.int64)


def _percent(seen_and_right: NDArray[Any]) -> float:
    seen, right = seen_and_right
    return 100 * int(right) / int(seen) if seen else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _named(names: Sequence[str], table: NDArray[np.int64]) -> dict[str, dict[str, float]]:
    return {
        name: {"samples": int(row[0]), "accuracy": _percent(row)}
        for name, row in zip(names, table, strict=True)
        if row[0]
    }
