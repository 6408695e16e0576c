"""The resident memory of the server while it is under load."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from findtta.errors import MissingExtraError, OptionError

#: What Ray calls the processes that run the deployments of Serve.
REPLICA = b"ray::ServeReplica"
_PROC = Path("/proc")
_MEGA = 1e6
_INTERVAL = 0.5


@dataclass(frozen=True)
class Sample:
    """The memory of some processes at one moment.

    Attributes:
        at: Seconds from the start.
        megabytes: Of all of them together; pages that they share count once for each.
        processes: How many there were.
    """

    at: float
    megabytes: float
    processes: int


@dataclass(frozen=True)
class Memory:
    """How memory went.

    Attributes:
        first: Median of the first tenth of the samples, in megabytes.
        last: Median of the last tenth.
        peak: The highest.
        first_per_process: As ``first``, divided by the number of processes, so that those which die and come
            back do not show.
        last_per_process: As ``last``, divided by the number of processes.
        samples: How many there were.
    """

    first: float
    last: float
    peak: float
    first_per_process: float
    last_per_process: float
    samples: int

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Memory | None:
        """Sum up samples; None if no process was ever seen."""
        seen = [sample for sample in samples if sample.processes]
        if not seen:
            return None
        tenth = max(len(seen) // 10, 1)
        first, last = seen[:tenth], seen[-tenth:]
        return cls(
            first=median(sample.megabytes for sample in first),
            last=median(sample.megabytes for sample in last),
            peak=max(sample.megabytes for sample in seen),
            first_per_process=median(sample.megabytes / sample.processes for sample in first),
            last_per_process=median(sample.megabytes / sample.processes for sample in last),
            samples=len(seen),
        )

    def text(self) -> str:
        """Return it as a sentence."""
        return (
            f"memory of the server: {self.first:.0f} MB in the first tenth, {self.last:.0f} MB in the last "
            f"({self.last / self.first - 1:+.1%}), peak {self.peak:.0f} MB; "
            f"per process {self.first_per_process:.0f} and {self.last_per_process:.0f} MB; {self.samples} samples"
        )


@dataclass(frozen=True)
class Watch:
    """Looks at the memory of processes every half second.

    Attributes:
        find: Returns the processes to look at.
    """

    find: Callable[[], list[int]]

    @classmethod
    def tree(cls, pid: int) -> Watch:
        """Watch a process and all that descend from it."""
        if pid not in processes():
            raise OptionError(f"pid must be that of a running process, but {pid} is none.")
        return cls(lambda: process_tree(pid))

    @classmethod
    def replicas(cls) -> Watch:
        """Watch the replicas of Ray Serve on this machine."""
        return cls(replica_processes)

    async def into(self, samples: list[Sample]) -> None:
        """Add a sample to a list every half second, until cancelled."""
        start = time.monotonic()
        while True:
            # In a thread: going through all processes takes milliseconds in which no answer would be read.
            megabytes, count = await asyncio.to_thread(lambda: resident(self.find()))
            samples.append(Sample(time.monotonic() - start, megabytes, count))
            await asyncio.sleep(_INTERVAL)


def processes() -> dict[int, int]:
    """Return all processes, each with its parent."""
    if not _PROC.is_dir():
        return {process.pid: process.ppid() for process in _psutil().process_iter()}
    parents = {}
    for entry in os.listdir(_PROC):  # noqa: PTH208  a Path for each of them costs more than reading it
        if entry.isdigit() and (stat := _read(entry, "stat")):
            # The name in parentheses may hold spaces, and parentheses.
            parents[int(entry)] = int(stat.rpartition(b")")[2].split()[1])
    return parents


def process_tree(pid: int) -> list[int]:
    """Return a process and all that descend from it, or nothing once it has ended."""
    parents = processes()
    if pid not in parents:
        return []
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for member in found:  # grows while it is gone through
        found += children.get(member, [])
    return found


def replica_processes() -> list[int]:
    """Return the replicas of Ray Serve on this machine."""
    if not _PROC.is_dir():
        named = ((process.pid, process.info["cmdline"]) for process in _psutil().process_iter(["cmdline"]))
        return [pid for pid, words in named if words and words[0].startswith(REPLICA.decode())]
    return [
        int(entry)
        for entry in os.listdir(_PROC)  # noqa: PTH208
        if entry.isdigit() and _read(entry, "cmdline").startswith(REPLICA)
    ]


def resident(pids: Iterable[int]) -> tuple[float, int]:
    """Return the megabytes that processes hold, and how many of them still run."""
    sizes = [size for pid in pids if (size := _resident(pid))]
    return sum(sizes) / _MEGA, len(sizes)


def _resident(pid: int) -> int:
    if not _PROC.is_dir():
        psutil = _psutil()
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return 0
    pages = _read(str(pid), "statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _read(pid: str, name: str) -> bytes:
    try:
        return (_PROC / pid / name).read_bytes()
    except OSError:  # it has ended
        return b""


def _psutil() -> Any:
    try:
        return importlib.import_module("psutil")
    except ImportError as error:
        raise MissingExtraError("pid: memory on this system is read with psutil: pip install psutil") from error
