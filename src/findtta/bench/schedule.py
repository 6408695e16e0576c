"""What is left to do of a grid, and doing it: every result is kept as soon as it is there."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from findtta.bench.executors import Executor, Task, Watch, ignore
from findtta.bench.plan import Planner
from findtta.bench.result import Result
from findtta.bench.run import failure
from findtta.bench.spec import RunSpec
from findtta.bench.store import Store
from findtta.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Schedule:
    """The runs of a grid by what is to be done about them.

    Attributes:
        todo: Runs to compute, each once.
        done: Results that are there already.
        failed_before: Records of runs that failed the last time and are left alone.
        unplanned: Records of runs that cannot be planned, because their weights are missing, say.
    """

    todo: list[Task] = field(default_factory=list)
    done: list[Result] = field(default_factory=list)
    failed_before: list[Result] = field(default_factory=list)
    unplanned: list[Result] = field(default_factory=list)


def schedule(
    specs: Sequence[RunSpec],
    store: Store,
    planner: Planner,
    *,
    retry_failed: bool = False,
    strict: bool = False,
    progress: Callable[[RunSpec], object] | None = None,
) -> Schedule:
    """Plan runs, and find out which of them are to be computed.

    Args:
        specs: The runs.
        store: Where results may be already; it is only read.
        planner: What to plan with.
        retry_failed: Whether runs that failed the last time are to be computed again.
        strict: Whether a run that cannot be planned is an error. It always is if a name in it is unknown, and
            if no run can be planned.
        progress: Called with every run before it is planned.

    Returns:
        What is to be done.
    """
    plan = Schedule()
    seen: set[str] = set()
    first_error: Exception | None = None
    for spec in specs:
        if progress is not None:
            progress(spec)
        try:
            task = Task.of(planner.plan(spec))
        except UnknownNameError:
            raise
        except Exception as error:
            if strict:
                raise
            first_error = first_error or error
            plan.unplanned.append(failure(spec, _unplanned_digest(spec.to_dict()), error))
            continue
        if task.digest in seen:
            continue
        seen.add(task.digest)
        stored = look_up(store, task.digest)
        if stored is None or (stored.status == "failed" and retry_failed):
            plan.todo.append(task)
        else:
            (plan.done if stored.status == "done" else plan.failed_before).append(stored)
    if first_error is not None and not seen:
        raise first_error
    return plan


def carry_out(plan: Schedule, store: Store, executor: Executor, watch: Watch = ignore) -> Iterator[Result]:
    """Compute what is to be done, and keep every result before it is handed on.

    Args:
        plan: What is to be done.
        store: Where to keep results.
        executor: Where to compute them.
        watch: Told how far a run is.

    Yields:
        The records of runs that cannot be planned, then every result as it is finished.
    """
    for record in plan.unplanned:
        store.put(record)
        yield record
    with contextlib.closing(executor.execute(plan.todo, watch)) as results:
        for result in results:
            store.put(result)
            if result.status == "done":  # what stood in its way is gone
                (store.folder / f"{_unplanned_digest(result.spec)}.json").unlink(missing_ok=True)
            yield result


def look_up(store: Store, digest: str) -> Result | None:
    """Return what the store has of a run; a file that is damaged is an error, not a run to be done again."""
    try:
        return store.get(digest)
    except UnknownNameError:
        return None
    except InputError as error:
        raise InputError(f"{error} Delete it, and the run is computed anew.") from error


def label(spec: RunSpec) -> str:
    """Return a short name of a run for people."""
    options = ",".join(f"{name}={value}" for name, value in spec.options.items())
    method = f"{spec.method}:{options}" if options else spec.method
    return f"{method} on {spec.stream} of {spec.data}, {spec.model}, batch {spec.batch_size}, seed {spec.seed}"


def _unplanned_digest(spec: Mapping[str, Any]) -> str:
    return "unplanned-" + hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:20]
