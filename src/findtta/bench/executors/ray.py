"""Runs on a Ray cluster, or on a Ray of this machine."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from findtta._processes import environment
from findtta.bench.executors.task import (
    RETRIES,
    ProcessDied,
    Task,
    Watch,
    compute,
    ignore,
    require_positive,
    threads_each,
    usable_cores,
)
from findtta.bench.plan import Planner
from findtta.bench.result import Result
from findtta.errors import MissingExtraError, OptionError


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
        if importlib.util.find_spec("ray") is None:
            raise MissingExtraError("the executor 'ray' needs the 'ray' extra: pip install \"findtta[ray]\"")

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Compute runs; see :class:`Executor`."""
        ray: Any = importlib.import_module("ray")
        started = not ray.is_initialized()
        address = self.address or os.environ.get("RAY_ADDRESS")
        workers = self.workers or usable_cores()
        threads = self.threads or (threads_each(workers) if address is None else 1)
        if started:
            _start_ray(ray, address, workers * threads)
        pending: dict[Any, Task] = {}
        try:
            for task in tasks:
                needs_gpu = task.spec.device.startswith("cuda")
                remote = ray.remote(max_retries=RETRIES, num_cpus=threads, num_gpus=int(needs_gpu))(
                    _compute_far_away
                )
                pending[remote.remote(task, _Place.here(), threads)] = task
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
            if started:
                ray.shutdown()


@dataclass(frozen=True)
class _Place:
    """What relative paths and imports of a task refer to."""

    folder: str
    imports: tuple[str, ...]

    @classmethod
    def here(cls) -> _Place:
        return cls(str(Path.cwd()), tuple(sys.path))

    def enter(self) -> None:
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path.extend(folder for folder in self.imports if folder not in sys.path)


def _compute_far_away(task: Task, place: _Place, threads: int) -> Result:
    """Compute one run in a process of Ray's."""
    place.enter()
    torch.set_num_threads(threads)
    return compute(task, Planner(), lambda share: None)


def _start_ray(ray: Any, address: str | None, cores: int) -> None:
    # Without an address Ray would join whatever cluster runs on this machine.
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    try:
        with environment(RAY_USAGE_STATS_ENABLED="0"):
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        where = "on this machine" if address is None else f"at {address!r}"
        raise OptionError(f"ray_address: there is no Ray {where} to work with ({reason}).") from error
