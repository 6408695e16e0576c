"""Runs on a Ray cluster, or on a Ray of this machine."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from findtta._processes import threads_each, usable_cores
from findtta._ray import Place, import_ray, ray_session
from findtta.bench.executors.task import (
    RETRIES,
    ProcessDied,
    Task,
    Watch,
    compute,
    ignore,
    require_positive,
)
from findtta.bench.plan import Planner
from findtta.bench.result import Result


@dataclass(frozen=True)
class Ray:
    """Computes runs on a Ray cluster, or on a Ray of its own on this machine; death of a worker costs a retry.

    Data and weights that are files must be in the same place on every machine; a worker that finds others there,
    or that has other releases installed, refuses.

    Attributes:
        address: Of the cluster; None means ``$RAY_ADDRESS``, or the cluster that this process has joined
            already, or else a Ray that is started on this machine and stopped again.
        workers: How many runs at once on this machine; a cluster runs as many as it has room for.
        threads: CPU threads of each run, which Ray reserves.
    """

    address: str | None = None
    workers: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        require_positive("workers", self.workers)
        require_positive("threads", self.threads)
        import_ray("the executor 'ray'")

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Compute runs; see :class:`Executor`."""
        on_cluster = self.address or os.environ.get("RAY_ADDRESS")
        workers = self.workers or usable_cores()
        threads = self.threads or (1 if on_cluster else threads_each(workers))
        pending: dict[Any, Task] = {}
        with ray_session(self.address, num_cpus=workers * threads) as ray:
            try:
                for task in tasks:
                    needs_gpu = task.spec.device.startswith("cuda")
                    remote = ray.remote(max_retries=RETRIES, num_cpus=threads, num_gpus=int(needs_gpu))(
                        _compute_far_away
                    )
                    pending[remote.remote(task, Place.here(), threads)] = task
                while pending:
                    ready, _ = ray.wait(list(pending))
                    for reference in ready:
                        task = pending.pop(reference)
                        try:
                            result: Result = ray.get(reference)
                        except ray.exceptions.RayError as error:
                            result = task.failed(ProcessDied(str(error).strip()))
                        yield result
            finally:
                for reference in pending:
                    ray.cancel(reference, force=True)


def _compute_far_away(task: Task, place: Place, threads: int) -> Result:
    """Compute one run in a process of Ray's."""
    place.enter()
    torch.set_num_threads(threads)
    return compute(task, Planner(), lambda share: None)
