"""Executors compute runs: one after the other here, in several processes of this machine, or on a Ray cluster.

Wherever it is computed, each run gives a result: a run that raises an error, or whose process keeps dying, gives a
record of the failure. Executors write no files, so workers need no shared disk.

The method ``execute`` yields the result of each task as soon as it is there; closing the generator stops the rest.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from findtta._extras import require
from findtta._processes import environment, how_ended, ignore_sigint, threads_each, torch_threads, usable_cores
from findtta._ray import Place, joins_cluster, ray_session, require_gpus
from findtta.bench.evaluate import Progress, failure, run
from findtta.bench.plan import Plan, Planner, RunSpec
from findtta.bench.result import Result
from findtta.errors import InputError, OptionError, WorkerError
from findtta.options import Count, Options, option, require_device

RETRIES = 2  # of a run whose process died, which may not have been its fault

_REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Task:
    """A planned run, small enough to send to a worker, which must arrive at the same digest and config."""

    spec: RunSpec
    digest: str
    config: Mapping[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> Task:
        """Return the task of a plan."""
        return cls(plan.spec, plan.digest, plan.config)

    @property
    def gpus(self) -> int:
        """The number of GPUs that it takes."""
        return int(self.spec.device.startswith("cuda"))

    def failed(self, error: BaseException) -> Result:
        """Return the record of a failure."""
        return failure(self.spec, self.digest, error, dict(self.config))


#: Called while a run is computed, with the fraction of its batches done and the accuracy so far; not by Ray.
Watch = Callable[[Task, float, float], None]


def ignore(task: Task, done: float, accuracy: float) -> None:
    """Watch nothing."""


@dataclass(frozen=True)
class Execution(Options):
    """Where runs are computed."""

    executor: Literal["serial", "processes", "ray"] | None = option(
        None,
        "compute runs one after the other, in several processes of this machine, or on a Ray cluster",
        shown="ray with --ray-address, processes with several --workers, else serial",
    )
    workers: Count | None = option(None, "number of runs computed at once")
    threads: Count | None = option(
        None,
        "CPU threads of each run",
        shown="torch's own number, or with several workers the cores divided among them",
    )
    ray_address: str | None = option(
        None, "address of the Ray cluster", metavar="ADDRESS", shown="$RAY_ADDRESS, or a Ray on this machine"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray_address and self.kind != "ray":
            raise OptionError(f"ray_address is for the executor 'ray', but executor is {self.kind!r}.")
        if self.kind == "serial" and self.workers not in (None, 1):
            raise OptionError(f"workers must be 1 for the executor 'serial', got {self.workers}.")

    @property
    def kind(self) -> str:
        """The executor that is used."""
        return self.executor or (
            "ray" if self.ray_address else "processes" if (self.workers or 1) > 1 else "serial"
        )

    def check_device(self, *devices: str) -> None:
        """Raise ``OptionError`` unless the devices of runs can be used here, or may be those of a cluster."""
        for device in dict.fromkeys(devices):
            require_device(device, elsewhere=self.kind == "ray" and joins_cluster(self.ray_address))

    def make(self, planner: Planner) -> Executor:
        """Return the executor; a serial one plans with the given planner."""
        if self.kind == "ray":
            return Ray(self.ray_address, self.workers, self.threads)
        if self.kind == "processes":
            return Processes(usable_cores() if self.workers is None else self.workers, self.threads)
        return Serial(planner, self.threads)


@dataclass(frozen=True)
class Serial:
    """Computes one run after the other in this process."""

    planner: Planner = field(default_factory=Planner)
    threads: int | None = None  # None leaves torch's number as it is
    raise_errors: bool = False  # rather than record an error as the result of its run

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Yield the result of each run."""
        for task in tasks:
            watch(task, 0.0, 0.0)
            with torch_threads(self.threads):
                result = compute(task, self.planner, functools.partial(watch, task), self.raise_errors)
            yield result


@dataclass(frozen=True)
class Processes:
    """Computes runs in processes of this machine; a run whose process dies is tried again."""

    workers: int
    threads: int | None = None  # of each run; by default the cores are divided among the workers

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Yield the result of each run."""
        waiting = deque((task, 1) for task in tasks)
        threads = self.threads or threads_each(self.workers)
        busy: dict[Any, _Worker] = {}  # by their connections
        idle: list[_Worker] = []
        finished: list[Result] = []
        try:
            while waiting or busy or finished:
                while waiting and len(busy) < self.workers:
                    worker = idle.pop() if idle else _Worker(threads)
                    worker.begin(*waiting.popleft())
                    busy[worker.connection] = worker
                yield from finished  # while the workers are busy with the next runs
                finished = []
                for connection in multiprocessing.connection.wait(list(busy)) if busy else ():
                    worker = busy[connection]
                    message = worker.receive()
                    if isinstance(message, tuple):
                        watch(worker.task, *message)
                        continue
                    del busy[connection]
                    if message is not None:
                        idle.append(worker)
                        finished.append(message)
                        continue
                    worker.stop()
                    if worker.attempt <= RETRIES:
                        waiting.append((worker.task, worker.attempt + 1))
                    else:
                        error = WorkerError(f"its process {worker.death()} in each of {worker.attempt} attempts.")
                        finished.append(worker.task.failed(error))
        finally:
            for worker in (*busy.values(), *idle):
                worker.stop()


class _Worker:
    """A process that computes one run after the other, as seen by the process that started it."""

    task: Task
    attempt: int

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked torch can hang
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, threads), daemon=True)
        # The number of threads must be set before torch is imported there. Ctrl-C is for us alone.
        with environment(OMP_NUM_THREADS=str(threads)), ignore_sigint():
            self._process.start()
        theirs.close()  # so that the death of the process closes the connection

    def begin(self, task: Task, attempt: int) -> None:
        """Send it a run."""
        self.task, self.attempt = task, attempt
        with contextlib.suppress(OSError):  # it has died since: receive will say so
            self.connection.send(task)

    def receive(self) -> Result | tuple[float, float] | None:
        """Return a result, or how far it is, or None if the process is dead."""
        try:
            message: Result | tuple[float, float] = self.connection.recv()
            return message
        except (EOFError, OSError):
            return None

    def death(self) -> str:
        """Say how the process ended, once it is stopped."""
        return how_ended(self._process)

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.join(timeout=1.0)  # an idle one ends by itself, a dead one keeps its own exit code
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _work(connection: multiprocessing.connection.Connection, threads: int) -> None:
    """Compute what arrives until the connection closes; runs in a process of its own."""
    torch.set_num_threads(threads)
    planner = Planner()

    def tell(done: float, accuracy: float) -> None:
        connection.send((done, accuracy))

    # Once the process that waits is gone, nothing can be sent any more.
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(compute(connection.recv(), planner, tell))


@dataclass(frozen=True)
class Ray:
    """Computes runs on a Ray cluster, or on a Ray of this machine; a run whose worker dies is tried again.

    Files of data and weights must be at the same path on every machine; a worker that finds others there, or that
    has other versions installed, refuses.
    """

    # None means ``$RAY_ADDRESS``, or the cluster that this process has joined already, or else a Ray that is
    # started on this machine and stopped again.
    address: str | None = None
    workers: int | None = None  # runs at once on this machine; a cluster runs as many as it has room for
    threads: int | None = None  # CPU threads of each run, which Ray reserves

    def __post_init__(self) -> None:
        require("ray", "ray", "the executor 'ray'")

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Yield the result of each run."""
        on_cluster = self.address or os.environ.get("RAY_ADDRESS")
        workers = self.workers or usable_cores()
        threads = self.threads or (1 if on_cluster else threads_each(workers))
        pending: dict[Any, Task] = {}
        with ray_session(self.address, num_cpus=workers * threads) as ray:
            require_gpus(ray, max((task.gpus for task in tasks), default=0))
            try:
                for task in tasks:
                    remote = ray.remote(max_retries=RETRIES, num_cpus=threads, num_gpus=task.gpus)(_compute_on_ray)
                    pending[remote.remote(task, Place.here(), threads)] = task
                while pending:
                    ready, _ = ray.wait(list(pending))
                    for reference in ready:
                        task = pending.pop(reference)
                        try:
                            result: Result = ray.get(reference)
                        except ray.exceptions.RayError as error:
                            result = task.failed(WorkerError(str(error).strip()))
                        yield result
            finally:
                for reference in pending:
                    ray.cancel(reference, force=True)


#: Something that computes runs.
Executor = Serial | Processes | Ray


def _compute_on_ray(task: Task, place: Place, threads: int) -> Result:
    place.enter()
    torch.set_num_threads(threads)
    return compute(task, Planner(), lambda done, accuracy: None)


def compute(
    task: Task, planner: Planner, progress: Callable[[float, float], None], raise_errors: bool = False
) -> Result:
    """Compute one run here; unless errors are to be raised, one becomes the record of a failure."""
    try:
        plan = planner.plan(task.spec)
        if plan.digest != task.digest:
            names = [name for name in task.config if task.config[name] != plan.config.get(name)] or ["versions"]
            raise InputError(
                f"the run is not the one that was planned, since {' and '.join(names)} differ: data, weights and "
                "versions must be the same everywhere."
            )
        return run(plan, _now_and_then(progress, len(plan.stream)))
    except Exception as error:
        if raise_errors:
            raise
        return task.failed(error)


def _now_and_then(progress: Callable[[float, float], None], batches: int) -> Progress:
    """Return what reports progress at most every half second, so that it costs no time."""
    last = time.monotonic()

    def tell(done: int, accuracy: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_SECONDS:
            last = time.monotonic()
            progress(done / batches, accuracy)

    return tell
