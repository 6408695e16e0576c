"""Time of a batch: all candidates in one run, in turn, on the same batches, after a warm-up."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import findtta
from findtta.bench.cost import interleaved_ratios
from findtta.bench.plan import Plan
from findtta.errors import FindTTAError, InputError
from findtta.images import to_input

SOURCE = "source"


def measure_times(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Measure how long candidates take for a batch of the plan's stream.

    Args:
        plan: Model, stream and device.
        settings: ``candidates``: for each name a ``method`` with ``options``, one of them called ``"source"``;
            ``batches``: how many are timed.

    Returns:
        For each candidate ``ratio`` (to the source's time, the median over batches) and ``seconds`` (the median),
        or why it was not measured as ``error``.
    """
    device = torch.device(plan.spec.device)
    batches = first_batches(plan, int(settings["batches"]), device)
    calls: dict[str, _Timed] = {}
    errors: dict[str, str] = {}
    for name, candidate in settings["candidates"].items():
        try:
            calls[name] = _settled(plan, candidate, batches, device)
        except FindTTAError as error:
            errors[name] = f"{type(error).__name__}: {error}"
    ratios = interleaved_ratios(calls, batches, baseline=SOURCE)
    return {
        "batches": len(batches),
        "batch_size": plan.spec.batch_size,
        "candidates": {
            **{
                name: {
                    "ratio": ratios[name],
                    "seconds": statistics.median(call.seconds[-len(batches) :]),
                    "forward": call.adapted.cost.forward,
                    "backward": call.adapted.cost.backward,
                }
                for name, call in calls.items()
            },
            **{name: {"error": error} for name, error in errors.items()},
        },
    }


def first_batches(plan: Plan, count: int, device: torch.device) -> list[Tensor]:
    """Return the first full batches of a stream as inputs of a model."""
    full = [
        batch for batch, _ in zip(plan.stream, range(count), strict=False) if len(batch) == plan.spec.batch_size
    ]
    if len(full) < 2:
        raise InputError(f"images: the stream has {len(full)} full batches, too few to measure; take more images.")
    return [to_input(plan.dataset.batch(batch.domain_ids, batch.rows)[0], device) for batch in full]


class _Timed:
    """A model that takes note of how long each call takes."""

    def __init__(self, adapted: Any, device: torch.device) -> None:
        self.adapted = adapted
        self.seconds: list[float] = []
        self._wait: Callable[[], None] = (
            functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else _nothing
        )

    def __call__(self, batch: Tensor) -> object:
        self._wait()
        start = time.perf_counter()
        result = self.adapted(batch)
        self._wait()
        self.seconds.append(time.perf_counter() - start)
        return result


def _settled(plan: Plan, candidate: Mapping[str, Any], batches: Sequence[Tensor], device: torch.device) -> _Timed:
    """Return a model as it is for most of a stream: past its cold start, if it has one."""
    adapted = findtta.adapt(plan.model, candidate["method"], **candidate["options"])
    adapted.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for number in range(getattr(adapted.options, "cold_start", 0)):
        adapted(batches[number % len(batches)])
    return _Timed(adapted, device)


def _nothing() -> None:
    pass
