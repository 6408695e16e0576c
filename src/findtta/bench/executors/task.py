"""What an executor is, and computing one run for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from findtta.bench.plan import Plan, Planner
from findtta.bench.result import Result
from findtta.bench.run import Progress, failure, run
from findtta.bench.spec import RunSpec
from findtta.errors import InputError, OptionError

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
    except Abandoned:
        raise
    except Exception as error:
        return task.failed(error)


def require_positive(name: str, value: int | None) -> None:
    """Raise unless a number is at least 1, or not given."""
    if value is not None and value < 1:
        raise OptionError(f"{name} must be at least 1, got {value}.")


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


class Abandoned(BaseException):
    """Nobody waits for this run any more."""
