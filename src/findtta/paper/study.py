"""What items ask for, runs and measurements, what these gave, and computing it: nothing that a store has twice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from findtta._io import write_file
from findtta.bench import Planner, Result, RunSpec
from findtta.bench.code import code_digest, module_files
from findtta.bench.evaluate import machine_record
from findtta.bench.execute import schedule
from findtta.bench.executors import Executor, Serial, Watch, ignore
from findtta.bench.plan import digest_of
from findtta.bench.store import MEASUREMENTS as MEASURED
from findtta.bench.store import Store, without_folders
from findtta.errors import FindTTAError
from findtta.intervals import interval
from findtta.paper.context import Context, Setup
from findtta.paper.measure import MEASUREMENTS
from findtta.tables import Cell

FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A measurement that no run gives."""

    kind: str  # a name in ``findtta.paper.measure.MEASUREMENTS``
    spec: RunSpec  # model, data and stream that it is taken with
    settings: Mapping[str, Any] = field(default_factory=dict)  # its own, as plain values

    def to_dict(self) -> dict[str, Any]:
        """Return the probe as plain values that JSON can write."""
        return {"kind": self.kind, "spec": self.spec.to_dict(), "settings": dict(self.settings)}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a probe gave, as plain values; one that was not taken is "missing"."""

    digest: str  # the identity of the measurement
    status: Literal["done", "failed", "missing"]
    probe: Mapping[str, Any]  # what was asked for
    value: Mapping[str, Any] = field(default_factory=dict)  # empty unless it is done
    config: Mapping[str, Any] = field(default_factory=dict)  # what decided it: that of the planned run
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions, machine and time
    error: Mapping[str, str] | None = None  # type and message

    def cell(self, number: float | None) -> Cell:
        """Return the cell of a number of it, or why there is none."""
        if number is None:
            return Cell(text=FAILED if self.status == "failed" else "")
        return Cell(values={int(self.probe["spec"]["seed"]): number})


class Results:
    """Runs with their results and probes with their readings, done or failed."""

    def __init__(self, found: Iterable[tuple[RunSpec | Probe, Result | Reading]] = ()) -> None:
        self._found = {key(asked): record for asked, record in found}

    @property
    def runs(self) -> list[Result]:
        """All results of runs, each once."""
        return list({one.digest: one for one in self._found.values() if isinstance(one, Result)}.values())

    @property
    def readings(self) -> list[Reading]:
        """All readings of probes, each once."""
        return list({one.digest: one for one in self._found.values() if isinstance(one, Reading)}.values())

    @property
    def records(self) -> list[Result | Reading]:
        """All results and readings, each once."""
        return [*self.runs, *self.readings]

    def get(self, asked: RunSpec | Probe) -> Result | Reading | None:
        """Return what a run or probe gave, done or failed, or None if there is nothing."""
        return self._found.get(key(asked)) or self._found.get(key(asked, folders=False))

    def also(self, more: Results) -> Results:
        """Return these results and more."""
        both = Results()
        both._found = {**self._found, **more._found}
        return both


class Study:
    """What an item is made with and made of: a context and results. It records what is asked of it.

    Any result may be missing or failed; without any, a study only records.
    """

    def __init__(self, context: Context, results: Results | None = None) -> None:
        self.context = context
        self.asked: dict[str, RunSpec | Probe] = {}
        self._results = results or Results()

    @property
    def own(self) -> Results:
        """The results that were asked for."""
        pairs = ((asked, self._results.get(asked)) for asked in self.asked.values())
        return Results((asked, found) for asked, found in pairs if found is not None)

    def runs(self, setup: Setup, **settings: Any) -> dict[int, Result]:
        """Return the results of a run, done or failed, by seed; ``options`` may be a function of the seed."""
        found = {}
        for spec in self.context.specs(setup, **settings):
            self.asked[key(spec)] = spec
            result = self._results.get(spec)
            if isinstance(result, Result):
                found[spec.seed] = result
        return found

    def done(self, setup: Setup, **settings: Any) -> list[Result]:
        """Return the results of a run that are done, one for each seed at most."""
        return [result for result in self.runs(setup, **settings).values() if result.status == "done"]

    def cell(
        self,
        setup: Setup | None,
        read: Callable[[Result], float] | None = None,
        *,
        paper: float | None = None,
        spread: float | None = None,
        **settings: Any,
    ) -> Cell:
        """Return a number of a run for each seed, by default the accuracy with its interval, beside the paper's.

        ``spread`` is what the paper prints after a plus-minus sign. Without a setup the cell has only the paper's.
        """
        found = self.runs(setup, **settings) if setup else {}
        done = {seed: result for seed, result in found.items() if result.status == "done"}
        scores = {seed: result.scores for seed, result in done.items() if read is None}
        return Cell(
            paper=paper,
            spread=spread,
            values={seed: read(result) if read else result.accuracy for seed, result in done.items()},
            margin=interval(scores.values()).margin if scores else None,
            scores=scores,
            text=FAILED if len(done) < len(found) else "",
        )

    def reading(self, kind: str, setup: Setup, settings: Mapping[str, Any], **run: Any) -> Reading:
        """Return the reading of a measurement, of the first seed."""
        # What is measured beside runs is measured of the model as it is.
        spec = self.context.spec(setup, **run, compile=False, precision="float32")
        probe = Probe(kind=kind, spec=spec, settings=settings)
        self.asked[key(probe)] = probe
        found = self._results.get(probe)
        return found if isinstance(found, Reading) else Reading(digest="", status="missing", probe=probe.to_dict())


def key(asked: RunSpec | Probe, *, folders: bool = True) -> str:
    """Return what identifies a run or probe as it was asked for; an archive knows files without their folders."""
    fields = asked.to_dict()
    if not folders:
        spec = fields if isinstance(asked, RunSpec) else fields["spec"]
        spec |= without_folders(spec)
    return json.dumps(fields, sort_keys=True)


# Computing


def stored(store: Store) -> Results:
    """Return all that a store has, whatever version of the code computed it; a newer result wins over an older.

    No table mixes weights: of a model that was trained again under its name, only what was computed with the
    weights of its newest result counts.
    """
    runs = [(RunSpec.from_dict(result.spec), result) for result in store.all()]
    readings = []
    for reading in (Reading(**values) for values in store.measurements()):
        asked = {**reading.probe, "spec": RunSpec.from_dict(reading.probe["spec"])}
        readings.append((Probe(**asked), reading))
    found: list[tuple[RunSpec | Probe, Result | Reading]] = [*runs, *readings]
    found.sort(key=lambda pair: float(pair[1].environment.get("started") or 0))
    newest = {_model(asked): _weights(record) for asked, record in found if record.config}
    return Results(
        (asked, record)
        for asked, record in found
        if not record.config or _weights(record) == newest[_model(asked)]
    )


def _model(asked: RunSpec | Probe) -> tuple[str | None, ...]:
    spec = asked if isinstance(asked, RunSpec) else asked.spec
    return spec.model, spec.weights, spec.data


def _weights(record: Result | Reading) -> str:
    return str(record.config["model"]["weights"])


#: Called with what is computed next, in words, and how many of how many steps are done.
Progress = Callable[[str, int, int], None]


def gather(
    asked: Iterable[RunSpec | Probe],
    store: Store,
    *,
    executor: Executor | None = None,
    planner: Planner | None = None,
    retry_failed: bool = False,
    progress: Progress = lambda what, done, total: None,
    watch: Watch = ignore,
) -> Results:
    """Compute runs and measurements, and return all results; whatever fails becomes a record of its failure.

    What the store has is not computed again, unless it failed the last time and ``retry_failed`` is given. The
    executor computes the runs, by default one after the other in this process.
    """
    planner, asked = planner or Planner(), list(asked)
    specs = [one for one in asked if isinstance(one, RunSpec)]
    probes = [one for one in asked if isinstance(one, Probe)]
    # What cannot be planned is not stored: the next time it may well be possible.
    plan = schedule(
        specs,
        store,
        planner,
        retry_failed=retry_failed,
        unplanned="return",
        progress=lambda spec: progress("planning", 0, len(specs)),
    )
    total = len(plan.todo) + len(probes)
    for done, result in enumerate(plan.run(executor or Serial(planner), watch), start=1):
        spec = result.spec
        progress(f"{spec['method']} on {spec['stream']} of {spec['data']}, seed {spec['seed']}", done, total)
    readings = []
    for done, probe in enumerate(probes, start=len(plan.todo)):
        progress(f"measuring {probe.kind}", done, total)
        readings.append((probe, take(probe, store, planner, retry_failed=retry_failed)))
    return Results([*plan.pairs(), *readings])


def take(probe: Probe, store: Store, planner: Planner, *, retry_failed: bool = False) -> Reading:
    """Return the reading of a probe, done or failed: the stored one, or else a new one, which is stored."""
    asked = probe.to_dict()
    try:
        plan = planner.plan(probe.spec)
    except FindTTAError as error:
        return Reading(digest=digest_of(asked), status="failed", probe=asked, error=_error(error))
    asked_of = {"kind": probe.kind, "settings": dict(probe.settings), "run": plan.digest}
    digest = digest_of({**asked_of, "code": code_digest(module_files([MEASUREMENTS[probe.kind]]))})
    path = store.folder / MEASURED / f"{digest}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):  # a damaged file is measured again
        known = Reading(**json.loads(path.read_text(encoding="utf-8")))
        if known.status == "done" or not retry_failed:
            return known
    began = time.time()
    outcome: dict[str, Any]
    try:
        value = MEASUREMENTS[probe.kind](plan, probe.settings)
        outcome = {"status": "done", "value": json.loads(json.dumps(value))}
    except Exception as error:
        outcome = {"status": "failed", "error": _error(error)}
    environment = machine_record(torch.device(plan.spec.device), began)
    reading = Reading(digest=digest, probe=asked, config=plan.config, environment=environment, **outcome)
    write_file(path, json.dumps(dataclasses.asdict(reading), indent=1, sort_keys=True).encode())
    return reading


def _error(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}
