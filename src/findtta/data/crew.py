"""Blocks of work done here, or shared out among processes."""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from findtta._processes import ignore_sigint
from findtta.data.corrupted import CorruptedDataset
from findtta.errors import FindTTAError


class WorkerError(FindTTAError, RuntimeError):
    """A process that made images has failed."""


@dataclass(frozen=True)
class Block:
    """Rows of one domain, and the file or folder that their images go to."""

    corruption: str
    severity: int
    start: int
    stop: int
    place: Path


Write = Callable[[CorruptedDataset, Block], None]


class Work:
    """Does blocks of work one after another in this process."""

    def __init__(self, dataset: CorruptedDataset) -> None:
        self.dataset = dataset

    def __call__(self, write: Write, blocks: Sequence[Block], bar: Any) -> None:
        for block in blocks:
            write(self.dataset, block)
            bar.update(block.stop - block.start)


class _SharedWork(Work):
    """Hands blocks of work to other processes and waits for all of them."""

    def __init__(self, dataset: CorruptedDataset, workers: int) -> None:
        super().__init__(dataset)
        # Forking a process that has threads (torch has) can hang the copy.
        context = multiprocessing.get_context("spawn")
        self.tasks: Any = context.Queue()
        self.results: Any = context.Queue()
        self.processes = [
            context.Process(target=_worker, args=(dataset, self.tasks, self.results), daemon=True)
            for _ in range(workers)
        ]
        with ignore_sigint():
            for process in self.processes:
                process.start()

    def __call__(self, write: Write, blocks: Sequence[Block], bar: Any) -> None:
        for block in blocks:
            self.tasks.put((write, block))
        for _ in blocks:
            count, error = self._result()
            if error is not None:
                raise WorkerError(f"A process that makes images has failed: {error}")
            bar.update(count)

    def _result(self) -> tuple[int, str | None]:
        while True:
            try:
                result: tuple[int, str | None] = self.results.get(timeout=0.5)
                return result
            except queue.Empty:
                ended = [process.exitcode for process in self.processes if not process.is_alive()]
                if ended:
                    raise WorkerError(
                        f"A process that makes images has ended early, with code {ended[0]}; perhaps memory is "
                        "short. Run the command again to continue, with fewer workers."
                    ) from None

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()
        for channel in (self.tasks, self.results):
            channel.close()
            channel.cancel_join_thread()


def _worker(dataset: CorruptedDataset, tasks: Any, results: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # the processes are the threads
    while True:
        write, block = tasks.get()
        try:
            write(dataset, block)
            results.put((block.stop - block.start, None))
        except Exception as error:
            results.put((0, f"{type(error).__name__}: {error}"))


@contextmanager
def crew(dataset: CorruptedDataset, workers: int) -> Iterator[Work]:
    """Whoever corrupts: this process alone, or several that share the clean images."""
    if workers == 1:
        yield Work(dataset)
        return
    shared = _SharedWork(dataset, workers)
    try:
        yield shared
    finally:
        shared.stop()
