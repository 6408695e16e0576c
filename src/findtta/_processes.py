"""Processes and cores: the environment that processes start with, and how many threads each gets."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """Return how many threads each worker gets if they share the cores of this machine."""
    return max(1, usable_cores() // workers)


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

    Ctrl-C reaches all processes of a terminal, and only the one that started the others should answer it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it is interrupted
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
