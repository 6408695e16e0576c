"""Executing runs; what is stored is not computed again, the rest goes to an executor and is stored."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from findtta.bench.evaluate import failure
from findtta.bench.executors import Executor, Task, Watch, ignore
from findtta.bench.plan import SAME_RUN, Planner, RunSpec, changes, digest_of
from findtta.bench.result import Result
from findtta.bench.store import Store
from findtta.errors import InputError, UnknownNameError, few


@dataclass(frozen=True)
class Schedule:
    """Planned runs: which of them are stored already, and which are still to be computed."""

    store: Store | None  # where results are looked up and stored, or None
    # Each run that was asked for, with its digest; different specs can be the same run.
    asked: list[tuple[RunSpec, str]] = field(default_factory=list)
    # By digest: those found in the store, records of runs that cannot be planned, and new ones once computed.
    results: dict[str, Result] = field(default_factory=dict)
    todo: list[Task] = field(default_factory=list)  # the runs to compute, each once
    keep_unplanned: bool = True  # whether the records of runs that cannot be planned are stored

    @property
    def unplanned(self) -> list[Result]:
        """Records of runs that cannot be planned, such as one whose weights are missing."""
        return [result for result in self.results.values() if not result.config]

    def pairs(self) -> list[tuple[RunSpec, Result]]:
        """Return each run that was asked for with its result, as far as there is one."""
        return [(spec, self.results[digest]) for spec, digest in self.asked if digest in self.results]

    def run(self, executor: Executor, watch: Watch = ignore) -> Iterator[Result]:
        """Compute what is to be computed, and yield each result as soon as it is stored."""
        if self.store and self.keep_unplanned:
            for record in self.unplanned:
                self.store.put(record)
        with contextlib.closing(executor.execute(self.todo, watch)) as results:
            for result in results:
                self.results[result.digest] = result
                if self.store:
                    self.store.put(result)
                    if result.is_done:  # it can be planned now
                        self.store.remove(_unplanned_digest(result.spec))
                yield result


def schedule(
    specs: Sequence[RunSpec],
    store: Store | None,
    planner: Planner,
    *,
    again: bool = False,
    retry_failed: bool = False,
    unplanned: Literal["raise", "store", "return"] = "raise",
    progress: Callable[[RunSpec], object] = lambda spec: None,
) -> Schedule:
    """Plan runs, and look up which of them are stored already; nothing is written.

    A stored run is one that the same code and versions computed; where others computed it, the planner tells what
    has changed. Stored runs are computed ``again`` if that is asked for, and those that failed the last time with
    ``retry_failed``. ``unplanned`` says what becomes of a run that cannot be planned: ``"raise"`` the error;
    ``"store"`` a record of the failure (but raise if a name is unknown, or if no run at all can be planned); or
    only ``"return"`` the record. ``progress`` is called with each run before it is planned.
    """
    planned = Schedule(store, keep_unplanned=unplanned == "store")
    first_error: Exception | None = None
    seen: set[str] = set()
    known = store.digests() if store and not again else []
    outdated: dict[str, list[str]] = defaultdict(list)  # by what has changed, the methods
    for spec in specs:
        progress(spec)
        try:
            task = Task.of(planner.plan(spec))
        except Exception as error:
            if unplanned == "raise" or (unplanned == "store" and isinstance(error, UnknownNameError)):
                raise
            first_error = first_error or error
            record = failure(spec, _unplanned_digest(spec.to_dict()), error)
            planned.results[record.digest] = record
            planned.asked.append((spec, record.digest))
            continue
        planned.asked.append((spec, task.digest))
        if task.digest in seen:
            continue
        seen.add(task.digest)
        stored = store.look_up(task.digest) if store and not again else None
        if stored is None or (stored.status == "failed" and retry_failed):
            planned.todo.append(task)
            others = [digest for digest in known if digest[:SAME_RUN] == task.digest[:SAME_RUN]]
            if store and stored is None and (latest := _latest(store, others)):
                outdated[changes(task.config, latest.config)].append(spec.method)
        else:
            planned.results[task.digest] = stored
    for change, methods in outdated.items():
        results = f"{len(methods)} stored results are" if len(methods) > 1 else "a stored result is"
        planner.tell(f"{results} not used ({few(list(dict.fromkeys(methods)))}): {change}")
    if first_error is not None and not seen and unplanned == "store":
        raise first_error
    return planned


def _latest(store: Store, digests: Sequence[str]) -> Result | None:
    """Return the latest of some results that is done, without those whose files are damaged."""
    found = []
    for digest in digests:
        with contextlib.suppress(InputError):
            found.append(store.get(digest))
    return max((result for result in found if result.is_done), key=lambda result: result.started, default=None)


def _unplanned_digest(spec: Mapping[str, Any]) -> str:
    return f"unplanned-{digest_of(spec)}"
