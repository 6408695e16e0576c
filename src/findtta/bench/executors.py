"""Where the runs of a grid are computed: here, in processes of this machine, or on a Ray cluster.

Whatever computes them, each run gives a result: a run that raises an error, or whose process dies again and
again, gives the record of its failure. Results arrive as they are finished, and nothing but the caller writes
them anywhere, so that workers need no disk in common with it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from findtta.bench.plan import Plan, Planner
from findtta.bench.result import Result
from findtta.bench.run import Progress, failure, run
from findtta.bench.spec import RunSpec
from findtta.errors import InputError, MissingExtraError, OptionError

RETRIES = 2  # of a run whose process died, which may not have been its fault
_REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Task:
    """A run to compute, small enough to send anywhere.

    Attributes:
        spec: What to run.
        digest: The identity of the run, which a worker must arrive at as well.
        config: What the identity is made of.
    """

    spec: RunSpec
    digest: str
    config: Mapping[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> Task:
        """Return the task of a plan."""
        return cls(plan.spec, plan.digest, plan.config)

    def failed(self, error: BaseException) -> Result:
        """Return the record of a failure."""
        return failure(self.spec, self.digest, error, dict(self.config))


#: Told, while a run is computed, what share of it is done, 0 to 1; executors far away may say nothing.
Watch = Callable[[Task, float], None]


def ignore(task: Task, share: float) -> None:
    """Watch nothing."""


class Executor(Protocol):
    """Something that computes runs."""

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Compute runs.

        Args:
            tasks: The runs.
            watch: Told how far a run is.

        Yields:
            One result for every task, as soon as it is there; closing the iterator stops what is still computed.
        """
        ...


@dataclass(frozen=True)
class Serial:
    """Computes one run after the other in this process.

    Attributes:
        planner: Keeps models and datasets open from one run to the next.
    """

    planner: Planner = field(default_factory=Planner)

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Compute runs; see :class:`Executor`."""
        for task in tasks:
            watch(task, 0.0)
            yield compute(task, self.planner, functools.partial(watch, task))


@dataclass(frozen=True)
class Processes:
    """Computes runs in processes of this machine; a process that dies costs a retry and nothing else.

    Attributes:
        workers: How many runs at once.
        threads: CPU threads of each; by default the cores are shared out, so that runs do not fight for them.
    """

    workers: int
    threads: int | None = None

    def __post_init__(self) -> None:
        _require_positive("workers", self.workers)
        _require_positive("threads", self.threads)

    def execute(self, tasks: Sequence[Task], watch: Watch = ignore) -> Generator[Result, None, None]:
        """Compute runs; see :class:`Executor`."""
        waiting = deque((task, 0) for task in tasks)
        threads = self.threads or threads_each(self.workers)
        workers: dict[Any, _Worker] = {}  # those that compute, by their connections
        idle: list[_Worker] = []
        try:
            while waiting or workers:
                while waiting and len(workers) < self.workers:
                    worker = idle.pop() if idle else _Worker(threads)
                    workers[worker.connection] = worker
                    worker.begin(*waiting.popleft())
                for connection in multiprocessing.connection.wait(list(workers)):
                    worker = workers[connection]
                    task, deaths = worker.work
                    message = worker.receive()
                    if isinstance(message, float):
                        watch(task, message)
                        continue
                    if message is not None:
                        if waiting:  # keep it busy while our caller has the result
                            worker.begin(*waiting.popleft())
                        else:
                            idle.append(workers.pop(connection))
                        yield message
                        continue
                    workers.pop(connection).stop()
                    if deaths < RETRIES:
                        waiting.append((task, deaths + 1))
                    else:
                        yield task.failed(
                            ProcessDied(f"its process {worker.death()} in each of {deaths + 1} attempts.")
                        )
        finally:
            for worker in (*workers.values(), *idle):
                worker.stop()


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
        _require_positive("workers", self.workers)
        _require_positive("threads", self.threads)
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


class ProcessDied(RuntimeError):
    """The process that computed a run ended in the middle of it."""


def compute(task: Task, planner: Planner, progress: Callable[[float], None]) -> Result:
    """Compute one run; an error becomes the record of a failure.

    Args:
        task: The run.
        planner: What to plan it with.
        progress: Told now and then what share of the run is done.

    Returns:
        The result.
    """
    try:
        plan = planner.plan(task.spec)
        if plan.digest != task.digest:
            raise InputError(
                f"the run is another one here than where it was planned, since {_difference(task, plan)} differ: "
                "data, weights and releases must be the same everywhere."
            )
        return run(plan, _now_and_then(progress, len(plan.stream)))
    except _Abandoned:
        raise
    except Exception as error:
        return task.failed(error)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """Return how many threads each of so many workers gets of this machine's cores."""
    return max(1, usable_cores() // workers)


def _require_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise OptionError(f"{name} must be at least 1, but is {value}.")


def _difference(task: Task, plan: Plan) -> str:
    names = [name for name in task.config if task.config[name] != plan.config.get(name)]
    return " and ".join(names) or "releases"


def _now_and_then(progress: Callable[[float], None], batches: int) -> Progress:
    """Return what tells the share of batches done, but not so often that it costs time."""
    last = time.monotonic()

    def tell(done: int, accuracy: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            progress(done / batches)

    return tell


class _Abandoned(BaseException):
    """Nobody waits for this run any more."""


class _Worker:
    """A process that computes one run after the other, as seen by the one that started it."""

    work: tuple[Task, int]

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked torch can hang
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, threads), daemon=True)
        # The count must stand before torch is imported there. Ctrl-C is for us alone: a process that begins
        # with the signal ignored goes on ignoring it.
        with _environment(OMP_NUM_THREADS=str(threads)), _deaf_to_interrupts():
            self._process.start()
        theirs.close()  # so that the death of the process closes the connection

    def begin(self, task: Task, deaths: int) -> None:
        """Hand it a run, which so many processes have died of."""
        self.work = task, deaths
        with contextlib.suppress(OSError):  # it has died since: receive will say so
            self.connection.send(task)

    def receive(self) -> Result | float | None:
        """Return a result, or the share done of it, or None if the process is dead."""
        try:
            message: Result | float = self.connection.recv()
            return message
        except (EOFError, OSError):
            return None

    def death(self) -> str:
        """Say how the process ended, once it is stopped."""
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def stop(self) -> None:
        """End the process; it has nothing to lose."""
        self.connection.close()
        self._process.join(timeout=1.0)  # an idle one ends by itself, a dead one keeps its own exit code
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _work(connection: multiprocessing.connection.Connection, threads: int) -> None:
    """Compute what arrives until the connection closes; runs in a process of its own."""
    torch.set_num_threads(threads)
    planner = Planner()

    def tell(share: float) -> None:
        try:
            connection.send(share)
        except OSError:
            raise _Abandoned from None  # whoever started us is gone

    while True:
        try:
            task = connection.recv()
            connection.send(compute(task, planner, tell))
        except (EOFError, OSError, _Abandoned):
            return


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may, and only it is interrupted
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
        with _environment(RAY_USAGE_STATS_ENABLED="0"):
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        where = "on this machine" if address is None else f"at {address!r}"
        raise OptionError(f"ray_address: there is no Ray {where} to work with ({reason}).") from error
