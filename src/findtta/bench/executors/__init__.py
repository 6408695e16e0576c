"""Where the runs of a grid are computed: here, in processes of this machine, or on a Ray cluster.

Whatever computes them, each run gives a result: a run that raises an error, or whose process dies again and
again, gives the record of its failure. Results arrive as they are finished, and nothing but the caller writes
them anywhere, so that workers need no disk in common with it.
"""

from findtta.bench.executors.processes import Processes
from findtta.bench.executors.ray import Ray
from findtta.bench.executors.serial import Serial
from findtta.bench.executors.task import (
    RETRIES,
    Executor,
    ProcessDied,
    Task,
    Watch,
    compute,
    ignore,
)

__all__ = [
    "RETRIES",
    "Executor",
    "ProcessDied",
    "Processes",
    "Ray",
    "Serial",
    "Task",
    "Watch",
    "compute",
    "ignore",
]
