"""Running one method on one stream, and measuring what matters about it."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import findtta
from findtta.algorithms.base import Adapted
from findtta.bench.memory import PeakMemory
from findtta.bench.metrics import GroupCounts, Latencies, Metrics
from findtta.bench.plan import Plan, Planner
from findtta.bench.result import Result
from findtta.bench.spec import RunSpec
from findtta.collapse import CollapseGuard
from findtta.errors import OptionError
from findtta.images import to_input
from findtta.streams import Batch

#: Called after every batch with the number of batches done and the accuracy so far.
Progress = Callable[[int, float], None]


def run(spec: RunSpec | Plan, progress: Progress | None = None) -> Result:
    """Run one method on one stream.

    Args:
        spec: What to run.
        progress: Called after every batch with the number of batches done and the accuracy so far.

    Returns:
        Accuracy, calibration, cost and what the layers did.

    Example:
        >>> spec = RunSpec(method="find", data_options={"count": 20}, domains=("fog", "snow"), batch_size=16)
        >>> run(spec).metrics["samples"]
        40
    """
    plan = spec if isinstance(spec, Plan) else Planner().plan(spec)
    device = _usable_device(plan.spec.device)
    began = time.time()
    memory = PeakMemory(device)
    adapted = findtta.adapt(plan.model, plan.spec.method, **plan.options)
    adapted.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    metrics = Metrics(
        plan.dataset.domains, plan.dataset.classes, len(plan.stream), int(plan.stream.rounds.max()) + 1
    )
    guard = CollapseGuard().to(device)
    latencies, groups = Latencies(), GroupCounts()
    last_domain: int | None = None
    for batch in plan.stream:
        images, labels = plan.dataset.batch(batch.domain_ids, batch.rows)
        if plan.spec.reset == "domain":
            last_domain = _reset_at_new_domain(adapted, batch, last_domain)
        inputs = to_input(images, device)
        _synchronize(device)
        start = time.perf_counter()
        logits = adapted(inputs)
        _synchronize(device)
        latencies.add(1e3 * (time.perf_counter() - start))
        metrics.update(logits, labels, batch.domain_ids, batch.round)
        guard.observe(logits)
        for name, layer in adapted.layers():
            count = layer.describe().get("groups")
            if count is not None:
                groups.add(name, count)
        if progress is not None:
            progress(batch.index + 1, metrics.accuracy)
    collapse = guard.verdict()
    return Result(
        digest=plan.digest,
        status="done",
        spec=plan.spec.to_dict(),
        config=plan.config,
        layers=_layers(adapted, groups),
        collapse=None if collapse is None else {"batch": collapse.batch, "reason": collapse.reason},
        cost={
            "latency_ms": {
                "p50": latencies.percentile(0.5),
                "p95": latencies.percentile(0.95),
                "mean": latencies.mean(),
            },
            "images_per_second": 1e3 * metrics.samples / (latencies.mean() * len(plan.stream)),
            "peak_memory_mb": memory.read(),
            "forward_passes": adapted.cost.forward,
            "backward_passes": adapted.cost.backward,
        },
        environment={
            "findtta": findtta.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "started": began,
            "seconds": time.time() - began,
        },
        **metrics.summary(),
    )


def failure(spec: RunSpec, digest: str, error: BaseException, config: dict[str, Any] | None = None) -> Result:
    """Return the record of a run that went wrong."""
    return Result(
        digest=digest,
        status="failed",
        spec=spec.to_dict(),
        config=config or {},
        error={"type": type(error).__name__, "message": str(error)},
        environment={"findtta": findtta.__version__, "python": sys.version.split()[0], "started": time.time()},
    )


def _usable_device(name: str) -> torch.device:
    device = torch.device(name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise OptionError(f"device {name!r} cannot be used on this machine: {reason}") from error
    return device


def _reset_at_new_domain(adapted: Adapted, batch: Batch, last: int | None) -> int | None:
    """Let the method forget everything if this batch is of one domain, and the last one was of another."""
    first = int(batch.domain_ids[0])
    if not (batch.domain_ids == first).all():
        return last
    if last is not None and first != last:
        adapted.reset()
    return first


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _layers(adapted: Adapted, groups: GroupCounts) -> list[dict[str, Any]]:
    layers = []
    for layer in adapted.report():
        counted = groups.of(layer.name)
        layers.append(
            {
                "name": layer.name,
                "kind": layer.kind,
                "channels": layer.channels,
                "groups_mean": None if counted is None else counted[0],
                "groups_std": None if counted is None else counted[1],
                "score": layer.score,
                "split": layer.split,
            }
        )
    return layers
