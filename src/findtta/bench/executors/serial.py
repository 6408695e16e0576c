"""One run after the other, in this process."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from findtta.bench.executors.task import (
    Task,
    Watch,
    compute,
    ignore,
)
from findtta.bench.plan import Planner
from findtta.bench.result import Result


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
