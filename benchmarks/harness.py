"""Timing several functions against each other, fairly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

TURN_S = 0.02  # least time of a turn: a shorter call is repeated
FEWEST_ROUNDS = 5
Clock = Callable[[], float]
WARM_UP = 10  # calls before the clock starts on a GPU, which chooses its kernels and raises its clock rate


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    calls: int = 1,
    device: str = "cpu",
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Time each function in turn, round after round, so that all see the same state of the machine.

    Args:
        functions: What to time, by name.
        rounds: How often to go round.
        calls: Timed calls per turn. If several, one more goes before them untimed, since it meets the
            caches as the previous function left them; a call worth timing alone is too long to notice.
        device: Where they compute: on ``cuda`` the times are those between events in the stream.
        clock: What is read on the CPU; ``time.process_time`` does not count what other processes take.

    Returns:
        Seconds per call, one value per round, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(1 if device == "cpu" else WARM_UP):
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            if calls > 1:
                function()
            times[name].append(_seconds(function, calls, device, clock) / calls)
    return times


def interleave_for(
    functions: Mapping[str, Callable[[], object]],
    seconds: float,
    device: str = "cpu",
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Time functions that take about as long as each other, in as many rounds as fit into some seconds."""
    first = next(iter(functions.values()))
    first()
    once = _seconds(first, 1, device, clock)
    calls = max(1, round(TURN_S / once))
    turn = once * (calls + (calls > 1))
    return interleave(functions, max(FEWEST_ROUNDS, int(seconds / turn / len(functions))), calls, device, clock)


def _seconds(function: Callable[[], object], calls: int, device: str, clock: Clock) -> float:
    if device == "cpu":
        start = clock()
        for _ in range(calls):
            function()
        return clock() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        function()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def quartiles(times: Mapping[str, list[float]], to: str) -> dict[str, tuple[float, float, float]]:
    """Quartiles of the ratio to one of the functions within each round."""
    result = {}
    for name, values in times.items():
        each = [value / base for value, base in zip(values, times[to], strict=True)]
        low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else (each[0],) * 3
        result[name] = (low, middle, high)
    return result


def ratios(times: Mapping[str, list[float]], to: str) -> dict[str, str]:
    """Median ratio to one of the functions within each round, with the quartiles."""
    return {name: f"{mid:.2f} [{low:.2f}, {high:.2f}]" for name, (low, mid, high) in quartiles(times, to).items()}
