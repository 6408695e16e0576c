"""Processes and cores: the environment that processes start with, and how many threads each gets."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """Return how many threads each worker gets if they share the cores of this machine."""
    return max(1, usable_cores() // workers)


#: Blocks below this size, in bytes, that the process frees stay with it.
KEPT_BLOCK = 1 << 30
#: Numbers of glibc's ``mallopt`` and the variables that say the same to processes started later.
ALLOCATOR_SETTINGS = {-1: "MALLOC_TRIM_THRESHOLD_", -3: "MALLOC_MMAP_THRESHOLD_"}


def keep_freed_memory(*, here: bool = True) -> None:
    """Let the processes that this one starts, and itself if ``here``, keep freed memory for the next feature map.

    glibc gives large blocks back to the system at once, and every new feature map then costs a page fault for each
    4 KiB. Variables that the user has set stay as they are; other C libraries are left alone.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for number, variable in ALLOCATOR_SETTINGS.items():
        if mallopt is not None and variable not in os.environ:
            os.environ[variable] = str(KEPT_BLOCK)
            if here:
                mallopt(number, KEPT_BLOCK)


@contextlib.contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Let torch use this many CPU threads inside the block; None leaves the number as it is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def how_ended(process: BaseProcess) -> str:
    """Say how a process that is over ended, for errors."""
    code = process.exitcode
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables inside the block."""
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
def ignore_sigint() -> Iterator[None]:
    """Let processes that are started inside the block ignore Ctrl-C from their first moment on.

    Ctrl-C reaches all processes of a terminal, and only the one that started the others should answer it: it does
    so when the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows, whose processes inherit no such setting
        yield
        return
    resource_tracker.ensure_running()  # to start it inside the block would let the signal through again
    arrived: list[object] = []
    handles = threading.current_thread() is threading.main_thread()  # only the main thread can, and is interrupted
    handler = signal.signal(signal.SIGINT, lambda *_: arrived.append(None)) if handles else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if arrived:
            signal.raise_signal(signal.SIGINT)
