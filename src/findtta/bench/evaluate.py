"""Evaluating one method on one stream: accuracy, calibration, cost, and what the adapted layers did."""

import contextlib
import dataclasses
import platform
import statistics
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import findtta
from findtta._prefetch import one_ahead
from findtta.algorithms.base import Adapted
from findtta.bench.plan import Plan, Planner, RunSpec
from findtta.bench.result import Result
from findtta.collapse import CollapseGuard
from findtta.errors import InputError
from findtta.intervals import Scores
from findtta.options import require_device
from findtta.streams import Batch

BINS = 15  # of confidence, for the calibration error
POINTS = 200  # of the accuracy curve at most
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MEGA = 1e6

T = TypeVar("T")
Call = Callable[[Tensor], object]

#: Called after each batch with the number of batches done and the accuracy so far.
Progress = Callable[[int, float], None]


def run(spec: RunSpec | Plan, progress: Progress | None = None) -> Result:
    """Evaluate one method on one stream: accuracy, calibration, cost and what the layers did.

    Example:
        >>> spec = RunSpec(method="find", data_options={"count": 20}, domains=("fog", "snow"), batch_size=16)
        >>> run(spec).metrics["samples"]
        40
    """
    device = require_device(spec.spec.device if isinstance(spec, Plan) else spec.device)
    plan = spec if isinstance(spec, Plan) else Planner().plan(spec)
    began = time.time()
    memory = PeakMemory(device)
    adapted = findtta.adapt(plan.model, plan.spec.method, compile=plan.spec.compile, **plan.options)
    adapted.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    rounds = int(plan.stream.rounds.max()) + 1
    metrics = Metrics(plan.dataset.domains, plan.dataset.classes, len(plan.stream), rounds)
    guard = CollapseGuard().to(device)
    latencies, groups = array("d"), GroupCounts()
    correct = np.zeros(len(plan.stream.rows), np.bool_)
    last_domain: int | None = None
    # Files are decoded while the model computes; what is in memory is there before a thread could be asked for it.
    batches = one_ahead(plan.batches()) if plan.dataset.encoded else plan.batches()
    for inputs, labels, batch in batches:
        if plan.spec.reset == "domain":
            last_domain = _reset_at_new_domain(adapted, batch, last_domain)
        before = compiled_in(adapted)
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.spec.precision == "bfloat16"):
            seconds, logits = timed(adapted, inputs)
        latencies.append(1e3 * (seconds - (compiled_in(adapted) - before)))
        where = slice(*plan.stream.boundaries[batch.index : batch.index + 2])
        correct[where] = metrics.update(logits, labels, batch.domain_ids, batch.round)
        guard.observe(logits)
        groups.add({name: layer.describe().get("groups") for name, layer in adapted.layers()})
        if progress is not None:
            progress(batch.index + 1, metrics.accuracy)
    collapse = guard.verdict()
    p50, p95 = np.percentile(latencies, (50, 95))
    return Result(
        digest=plan.digest,
        status="done",
        spec=plan.spec.to_dict(),
        config=plan.config,
        layers=_layers(adapted, groups),
        collapse=None if collapse is None else {"batch": collapse.batch, "reason": collapse.reason},
        cost={
            "latency_ms": {"p50": float(p50), "p95": float(p95), "mean": float(np.mean(latencies))},
            "images_per_second": 1e3 * metrics.samples / sum(latencies),
            "compile_seconds": compiled_in(adapted),
            "peak_memory_mb": memory.read(),
            "forward_passes": adapted.cost.forward,
            "backward_passes": adapted.cost.backward,
        },
        environment=machine_record(device, began),
        samples=_scores(plan, correct).encode(),
        **metrics.summary(),
    )


def _scores(plan: Plan, correct: NDArray[np.bool_]) -> Scores:
    domain_ids, rows = plan.stream.domain_ids, plan.stream.rows
    return Scores.sort(plan.dataset.image_numbers(domain_ids, rows), domain_ids, correct)


def machine_record(device: torch.device, began: float) -> dict[str, Any]:
    """Return versions, machine and time of what began at ``began`` and ends now; nothing that decides a result."""
    return {
        "findtta": findtta.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "started": began,
        "seconds": time.time() - began,
    }


def failure(spec: RunSpec, digest: str, error: BaseException, config: dict[str, Any] | None = None) -> Result:
    """Return the record of a run that failed."""
    return Result(
        digest=digest,
        status="failed",
        spec=spec.to_dict(),
        config=config or {},
        error={"type": type(error).__name__, "message": str(error)},
        environment={
            "findtta": findtta.__version__,
            "python": platform.python_version(),
            "started": time.time(),
        },
    )


def _reset_at_new_domain(adapted: Adapted, batch: Batch, last: int | None) -> int | None:
    """Reset the method if this batch has samples of one domain only, and the last such batch those of another."""
    first = int(batch.domain_ids[0])
    if not (batch.domain_ids == first).all():
        return last
    if last is not None and first != last:
        adapted.reset()
    return first


def compiled_in(adapted: Adapted) -> float:
    """Return the seconds that compiling a model has taken so far, 0 if it runs as it is."""
    return 0.0 if adapted.compiled is None else adapted.compiled.seconds


class GroupCounts:
    """Mean and standard deviation of the number of groups in each layer, over the batches."""

    def __init__(self) -> None:
        self._batches: Counter[str] = Counter()  # in which a layer made groups
        self._places: dict[str, int] = {}
        self._total: Any = 0
        self._squares: Any = 0

    def add(self, by_layer: Mapping[str, int | Tensor | None]) -> None:
        """Count the groups of all layers, the same ones in every batch; None for a layer that makes none."""
        if not any(groups is not None for groups in by_layer.values()):
            return
        self._batches.update(name for name, groups in by_layer.items() if groups is not None)
        self._places = {name: place for place, name in enumerate(by_layer)}
        device = next((groups.device for groups in by_layer.values() if isinstance(groups, Tensor)), None)
        # Sums of tensors, so that nothing waits for the device, and few of them.
        counts = (0 if groups is None else groups for groups in by_layer.values())
        groups = torch.stack([torch.as_tensor(count, dtype=torch.int64, device=device) for count in counts])
        self._total = self._total + groups
        self._squares = self._squares + groups.square()

    def of(self, layer: str) -> tuple[float, float] | tuple[None, None]:
        """Return mean and standard deviation of a layer's group counts, or twice None if it never made any."""
        count = self._batches[layer]
        if not count:
            return None, None
        total, squares = (int(sums[self._places[layer]]) for sums in (self._total, self._squares))
        return total / count, max(0, count * squares - total**2) ** 0.5 / count


def _layers(adapted: Adapted, groups: GroupCounts) -> list[dict[str, Any]]:
    layers = []
    for layer in adapted.report():
        described = dataclasses.asdict(layer)
        del described["groups"]  # those of the last batch
        mean, std = groups.of(layer.name)
        layers.append({**described, "groups_mean": mean, "groups_std": std})
    return layers


class Metrics:
    """Accuracy, calibration and likelihood of predictions, overall and by domain, class and round.

    The number of batches in the stream decides how finely the accuracy curve is stored.
    """

    def __init__(self, domains: Sequence[str], classes: Sequence[str], batches: int, rounds: int) -> None:
        self._domains, self._classes = domains, classes
        self._by_domain = np.zeros((len(domains), 2), np.int64)  # samples, correct ones
        self._by_class = np.zeros((len(classes), 2), np.int64)
        self._by_round = np.zeros((rounds, 2), np.int64)
        self._bins = np.zeros((BINS, 3))  # samples, correct ones, sum of confidence
        self._nll = self._brier = 0.0
        self._not_finite = 0
        self._stride = max(1, -(-batches // POINTS))
        self._window = np.zeros(2, np.int64)
        self._curve: list[tuple[int, float, float]] = []
        self._batches = 0

    @property
    def samples(self) -> int:
        """The number of samples so far."""
        return int(self._by_round[:, 0].sum())

    @property
    def accuracy(self) -> float:
        """The accuracy so far, in per cent."""
        return _percent(self._by_round.sum(axis=0))

    def update(
        self, logits: Tensor, labels: NDArray[Any], domain_ids: NDArray[Any], round_number: int = 0
    ) -> NDArray[np.bool_]:
        """Add the predictions for one batch: logits of shape (n, classes) on any device, and the true classes.

        Returns which predictions are right.
        """
        if logits.ndim != 2 or logits.shape[0] != len(labels) or logits.shape[1] < len(self._classes):
            raise InputError(
                f"the model must give logits of shape ({len(labels)}, {len(self._classes)} or more) for a batch, "
                f"but gave {tuple(logits.shape)}: model and data do not belong together."
            )
        # In NumPy: of a batch there is so little to compute that the calls are what it costs.
        scores = logits.detach().float().cpu().numpy().astype(np.float64)
        finite = np.isfinite(scores).all(1)
        self._not_finite += len(scores) - int(finite.sum())
        # A prediction with NaN is wrong whatever its label, and has the least possible confidence.
        scores[~finite] = 0.0
        scores -= scores.max(1, keepdims=True)
        probabilities = np.exp(scores)
        totals = probabilities.sum(1)
        probabilities /= totals[:, None]
        samples, truth = np.arange(len(scores)), np.asarray(labels, np.int64)
        predicted = probabilities.argmax(1)
        confidence, of_truth = probabilities[samples, predicted], probabilities[samples, truth]
        correct: NDArray[np.bool_] = (predicted == truth) & finite
        self._nll -= float((scores[samples, truth] - np.log(totals)).sum())
        self._brier += float((np.square(probabilities).sum(1) - 2 * of_truth + 1).sum())
        bins = (confidence * BINS).astype(np.int64).clip(0, BINS - 1)
        columns = (None, correct, confidence)
        self._bins += np.stack([np.bincount(bins, weights=column, minlength=BINS) for column in columns], 1)
        _count(self._by_domain, domain_ids, correct)
        _count(self._by_class, labels, correct)
        seen = np.array([len(correct), int(correct.sum())])
        self._by_round[round_number] += seen
        self._window += seen
        self._batches += 1
        if self._batches % self._stride == 0:
            self._curve.append(self._point())
            self._window[:] = 0
        return correct

    def summary(self) -> dict[str, Any]:
        """Return all metrics as plain values; accuracies are percentages."""
        samples = max(self.samples, 1)
        filled = self._bins[self._bins[:, 0] > 0]
        by_domain = _named(self._domains, self._by_domain)
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
                "mean_domain_accuracy": sum(row["accuracy"] for row in by_domain.values())
                / max(len(by_domain), 1),
                "not_finite": self._not_finite,
            },
            "per_domain": by_domain,
            "per_class": _named(self._classes, self._by_class),
            "per_round": [_percent(row) for row in self._by_round],
            "running": {
                name: [point[place] for point in curve]
                for place, name in enumerate(("batch", "accuracy", "window"))
            },
        }

    def _point(self) -> tuple[int, float, float]:
        return self._batches, self.accuracy, _percent(self._window)


def _count(table: NDArray[np.int64], which: NDArray[Any], correct: NDArray[Any]) -> None:
    table[:, 0] += np.bincount(which, minlength=len(table))
    table[:, 1] += np.bincount(which, weights=correct, minlength=len(table)).astype(np.int64)


def _percent(seen_and_correct: NDArray[Any]) -> float:
    seen, correct = seen_and_correct
    return 100 * int(correct) / int(seen) if seen else 0.0


def _named(names: Sequence[str], table: NDArray[np.int64]) -> dict[str, dict[str, float]]:
    return {
        name: {"samples": int(row[0]), "accuracy": _percent(row)}
        for name, row in zip(names, table, strict=True)
        if row[0]
    }


# Cost: peak memory of a run, and time compared between models


class PeakMemory:
    """The highest memory in use since this was made, in megabytes.

    On a GPU it is what torch allocated there. On a CPU it is the resident memory of the whole process, so it is
    comparable only between runs in processes of their own; Linux can reset that peak, other systems give the peak
    since the process started.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with contextlib.suppress(OSError):
                _CLEAR.write_text("5")

    def read(self) -> float:
        """Return the peak so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / _MEGA
        try:
            line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
            return int(line.split()[1]) * 1024 / _MEGA
        except (OSError, StopIteration):
            return _peak_since_start()


def _peak_since_start() -> float:
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MEGA


def interleaved_ratios(
    calls: Mapping[str, Call], batches: Sequence[Tensor], *, baseline: str, warmup: int = 1
) -> dict[str, float]:
    """Return how much longer each model takes for a batch than the baseline does.

    Every batch goes through all models in turn, starting with another model each time, so that other load on the
    machine affects all models alike; the median of the ratios ignores outliers. The first ``warmup`` batches also
    run before, without being timed.
    """
    seconds = interleaved_seconds(calls, batches, warmup=warmup)
    return {
        name: statistics.median(own / base for own, base in zip(taken, seconds[baseline], strict=True))
        for name, taken in seconds.items()
    }


def interleaved_seconds(
    calls: Mapping[str, Call], batches: Sequence[Tensor], *, warmup: int = 1
) -> dict[str, list[float]]:
    """Return the seconds that each model takes for each batch, measured in turn as for the ratios."""
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    untimed = batches[:warmup]
    for number, batch in enumerate((*untimed, *batches)):
        start = number % len(names)
        for name in (*names[start:], *names[:start]):
            taken, _ = timed(calls[name], batch)
            if number >= len(untimed):
                seconds[name].append(taken)
    return seconds


def timed(call: Callable[[Tensor], T], batch: Tensor) -> tuple[float, T]:
    """Return how many seconds a model takes for a batch, and what it gives; waits for the device of the batch."""
    _synchronize(batch.device)
    start = time.perf_counter()
    given = call(batch)
    _synchronize(batch.device)
    return time.perf_counter() - start, given


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
