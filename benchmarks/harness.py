"""Timing several functions against each other, fairly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def now() -> float:
    """Read the clock, once the device has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # kernels run on after the call returns
    return time.perf_counter()


def interleave(
    functions: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1
) -> dict[str, list[float]]:
    """Time each function in turn, round after round, so that all see the same state of the machine.

    Args:
        functions: What to time, by name.
        rounds: How often to go round.
        calls: Timed calls per turn. If several, one more goes before them untimed, since it meets the
            caches as the previous function left them; a call worth timing alone is too long to notice.

    Returns:
        Seconds per call, one value per round, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            if calls > 1:
                function()
            start = now()
            for _ in range(calls):
                function()
            times[name].append((now() - start) / calls)
    return times


def ratios(times: dict[str, list[float]], to: str) -> dict[str, str]:
    """Median ratio to one of the functions within each round, with the quartiles."""
    result = {}
    for name, values in times.items():
        each = [value / base for value, base in zip(values, times[to], strict=True)]
        low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else (each[0],) * 3
        result[name] = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
    return result
