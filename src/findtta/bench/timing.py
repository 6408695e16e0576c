"""Comparing the speed of models fairly: in turn, on the same batches, as ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Call = Callable[[Tensor], object]


def interleaved_ratios(
    calls: Mapping[str, Call], batches: Sequence[Tensor], *, baseline: str, warmup: int = 1
) -> dict[str, float]:
    """Return how much longer each model takes for a batch than the baseline does.

    Every batch goes through all models in turn, beginning with another one each time, so that whatever else the
    machine does falls on all alike; the median of the ratios leaves outliers out.

    Args:
        calls: The models by name.
        batches: The batches, on the models' device.
        baseline: The name of the one that the others are compared with.
        warmup: Batches that are not counted.

    Returns:
        The ratio for every name.
    """
    device = batches[0].device
    names = list(calls)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for number, batch in enumerate((*batches[:warmup], *batches)):
        start = number % len(names)
        taken = {name: _seconds(calls[name], batch, device) for name in (*names[start:], *names[:start])}
        if number >= warmup:
            for name in names:
                ratios[name].append(taken[name] / taken[baseline])
    return {name: statistics.median(values) for name, values in ratios.items()}


def _seconds(call: Call, batch: Tensor, device: torch.device) -> float:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(batch)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    start = time.perf_counter()
    call(batch)
    return time.perf_counter() - start
