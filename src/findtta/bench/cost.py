"""What a method costs: peak memory of a run, and time compared between models."""

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MEGA = 1e6

T = TypeVar("T")
Call = Callable[[Tensor], object]


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
    for number, batch in enumerate((*batches[:warmup], *batches)):
        start = number % len(names)
        for name in (*names[start:], *names[:start]):
            taken, _ = timed(calls[name], batch)
            if number >= warmup:
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
