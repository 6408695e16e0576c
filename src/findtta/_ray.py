"""The one way to start Ray or to join a cluster, and what tasks sent there need to know about this process."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findtta._extras import require
from findtta._processes import environment, ignore_sigint
from findtta.errors import OptionError, first_line


def start_ray(address: str | None, *, num_cpus: int, **local: Any) -> Any:
    """Join the Ray cluster at an address or at ``$RAY_ADDRESS``, or else start Ray here; returns ``ray``.

    ``num_cpus`` and what follows are arguments of ``ray.init`` for a local Ray. Raises ``OptionError`` if Ray
    cannot be started or joined.
    """
    ray = require("ray", "ray", "running on Ray")
    address = address or os.environ.get("RAY_ADDRESS")
    # Without an address Ray would join whatever cluster runs on this machine.
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {"address": "local", "num_cpus": num_cpus, "include_dashboard": False, **local}
    try:
        # Ray lowers the priority of its workers unless told otherwise.
        with environment(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0"), ignore_sigint():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except Exception as error:  # Ray raises all kinds, also for a machine that is too busy
        where = "on this machine" if address is None else f"at {address!r}"
        raise OptionError(f"ray_address: Ray {where} cannot be used ({worker_error(error)}).") from error
    return ray


def joins_cluster(address: str | None) -> bool:
    """Return whether ``start_ray`` joins a cluster at this address, whose machines may have other devices."""
    return bool(address or os.environ.get("RAY_ADDRESS"))


def require_gpus(ray: Any, count: int) -> None:
    """Raise ``OptionError`` if Ray has fewer GPUs: it would wait for them forever."""
    there = ray.cluster_resources().get("GPU", 0)
    if there < count:
        raise OptionError(f"device: {count} GPUs are needed, but Ray has {there:g}.")


@contextlib.contextmanager
def ray_session(address: str | None, *, num_cpus: int, **local: Any) -> Iterator[Any]:
    """Use the Ray that this process has joined already, or else one that is joined or started for the block."""
    ray = require("ray", "ray", "running on Ray")
    if ray.is_initialized():
        yield ray
        return
    start_ray(address, num_cpus=num_cpus, **local)
    try:
        yield ray
    finally:
        ray.shutdown()


def worker_error(error: BaseException) -> str:
    """Return an error in one line; Ray reports the error of a worker as the text of its traceback."""
    raised = re.search(r"^[A-Za-z_][\w.]*: .+", str(error), re.MULTILINE)
    return (raised.group() if raised else first_line(error))[:300]


@dataclass(frozen=True)
class Place:
    """The working directory and import path of a process, so that a worker resolves names as it does."""

    folder: str
    imports: tuple[str, ...]

    @classmethod
    def here(cls) -> Place:
        """Return those of this process."""
        return cls(str(Path.cwd()), tuple(sys.path))

    def enter(self) -> None:
        """Take them over, as far as they exist on this machine."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path.extend(folder for folder in self.imports if folder not in sys.path)
