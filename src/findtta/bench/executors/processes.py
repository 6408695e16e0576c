"""Several runs at once, in processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from findtta._processes import environment, ignore_sigint, threads_each
from findtta.bench.executors.task import (
    RETRIES,
    Abandoned,
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
class Processes:
    """Computes runs in processes of this machine; a process that dies costs a retry and nothing else.

    Attributes:
        workers: How many runs at once.
        threads: CPU threads of each; by default the cores are shared out, so that runs do not fight for them.
    """

    workers: int
    threads: int | None = None

    def __post_init__(self) -> None:
        require_positive("workers", self.workers)
        require_positive("threads", self.threads)

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


class _Worker:
    """A process that computes one run after the other, as seen by the one that started it."""

    work: tuple[Task, int]

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked torch can hang
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, threads), daemon=True)
        # The count must stand before torch is imported there. Ctrl-C is for us alone: a process that begins
        # with the signal ignored goes on ignoring it.
        with environment(OMP_NUM_THREADS=str(threads)), ignore_sigint():
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
            raise Abandoned from None  # whoever started us is gone

    while True:
        try:
            task = connection.recv()
            connection.send(compute(task, planner, tell))
        except (EOFError, OSError, Abandoned):
            return
