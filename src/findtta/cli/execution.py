"""How a grid is run: arguments that choose the executor, and making it."""

from __future__ import annotations

import argparse

from findtta._processes import usable_cores
from findtta.bench.executors import Executor, Processes, Ray, Serial
from findtta.bench.plan import Planner
from findtta.cli.run import set_threads
from findtta.errors import OptionError


def add_execution(how: argparse._ArgumentGroup) -> None:
    """Declare the arguments that say where and how often runs are tried."""
    how.add_argument(
        "--executor",
        choices=("serial", "processes", "ray"),
        help="one run after the other, several on this machine, or on a Ray cluster (default: by --workers)",
    )
    how.add_argument("--workers", type=int, metavar="N", help="how many runs at once")
    how.add_argument("--ray-address", metavar="ADDRESS", help="of the Ray cluster (default: start one here)")
    how.add_argument("--retry-failed", action="store_true", help="run again what failed the last time")


def chosen_executor(arguments: argparse.Namespace, planner: Planner) -> Executor:
    """Return the executor that the command line asks for."""
    workers, threads = arguments.workers, arguments.threads
    kind = arguments.executor
    if kind is None:
        kind = "ray" if arguments.ray_address else "serial" if workers in (None, 1) else "processes"
    if arguments.ray_address and kind != "ray":
        raise OptionError(f"--ray-address is for the executor 'ray', but --executor is {kind!r}.")
    if kind == "ray":
        return Ray(arguments.ray_address, workers, threads)
    if kind == "processes":
        return Processes(usable_cores() if workers is None else workers, threads)
    if workers not in (None, 1):
        raise OptionError(f"--workers: the executor 'serial' is one worker, but --workers is {workers}.")
    set_threads(threads)
    return Serial(planner)
