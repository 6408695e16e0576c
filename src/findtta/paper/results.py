"""What items ask for, runs and measurements, and what these gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from findtta.bench import Result, RunSpec
from findtta.paper.context import Context, Setup
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
    """What a probe gave, as plain values."""

    digest: str  # the identity of the measurement
    status: Literal["done", "failed"]
    probe: Mapping[str, Any]  # what was asked for
    value: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # what decided it: that of the planned run
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions, machine and time
    error: Mapping[str, str] | None = None  # type and message

    @property
    def is_done(self) -> bool:
        """Whether it has a value."""
        return self.status == "done"


class Results:
    """Runs with their results and probes with their readings, done or failed."""

    def __init__(
        self, runs: Iterable[tuple[RunSpec, Result]] = (), readings: Iterable[tuple[Probe, Reading]] = ()
    ) -> None:
        self._runs = {key(spec): result for spec, result in runs}
        self._readings = {key(probe): reading for probe, reading in readings}

    @property
    def runs(self) -> list[Result]:
        """All results of runs, each once."""
        return list({result.digest: result for result in self._runs.values()}.values())

    @property
    def readings(self) -> list[Reading]:
        """All readings of probes, each once."""
        return list({reading.digest: reading for reading in self._readings.values()}.values())

    @property
    def records(self) -> list[Result | Reading]:
        """All results and readings, each once."""
        return [*self.runs, *self.readings]

    def run(self, spec: RunSpec) -> Result | None:
        """Return the result of a run, done or failed, or None if it was not run."""
        return self._runs.get(key(spec))

    def reading(self, probe: Probe) -> Reading | None:
        """Return the reading of a probe, done or failed, or None if it was not taken."""
        return self._readings.get(key(probe))

    def also(self, more: Results) -> Results:
        """Return these results and more."""
        both = Results()
        both._runs = {**self._runs, **more._runs}
        both._readings = {**self._readings, **more._readings}
        return both


class Study:
    """What an item is made with and made of: a context and results. It records what is asked of it.

    Args:
        context: Setups, seeds and methods.
        results: What there is; any result may be missing or failed. Without any, a study only records.
    """

    def __init__(self, context: Context, results: Results | None = None) -> None:
        self.context = context
        self.specs: dict[str, RunSpec] = {}
        self.probes: dict[str, Probe] = {}
        self._results = results or Results()

    @property
    def own(self) -> Results:
        """The results that were asked for."""
        runs = [(spec, result) for spec in self.specs.values() if (result := self._results.run(spec)) is not None]
        readings = [
            (probe, one) for probe in self.probes.values() if (one := self._results.reading(probe)) is not None
        ]
        return Results(runs, readings)

    def runs(self, setup: Setup, **settings: Any) -> dict[int, Result]:
        """Return the results of a run, done or failed, by seed.

        Args:
            setup: Data and model.
            **settings: Settings of the run; ``options`` may be a function of the seed.
        """
        found = {}
        for spec in self.context.specs(setup, **settings):
            self.specs[key(spec)] = spec
            result = self._results.run(spec)
            if result is not None:
                found[spec.seed] = result
        return found

    def done(self, setup: Setup, **settings: Any) -> list[Result]:
        """Return the results of a run that are done, one for each seed at most."""
        return [result for result in self.runs(setup, **settings).values() if result.status == "done"]

    def cell(
        self,
        setup: Setup | None,
        read: Callable[[Result], float] = lambda result: result.accuracy,
        *,
        paper: float | None = None,
        spread: float | None = None,
        **settings: Any,
    ) -> Cell:
        """Return a number of a run for each seed, the accuracy by default, beside the paper's number.

        Args:
            setup: Data and model; without them the cell has the paper's number alone.
            read: Takes the number from a result.
            paper: The paper's number.
            spread: The number that the paper prints after a plus-minus sign.
            **settings: Settings of the run.
        """
        found = self.runs(setup, **settings) if setup else {}
        values = {seed: read(result) for seed, result in found.items() if result.status == "done"}
        return Cell(paper=paper, spread=spread, values=values, text=FAILED if len(values) < len(found) else "")

    def reading(self, kind: str, setup: Setup, settings: Mapping[str, Any], **run: Any) -> Reading | None:
        """Return the reading of a measurement, done or failed, or None if it was not taken; of the first seed."""
        probe = Probe(kind=kind, spec=self.context.spec(setup, **run), settings=settings)
        self.probes[key(probe)] = probe
        return self._results.reading(probe)


def key(asked: RunSpec | Probe) -> str:
    """Return what identifies a run or probe as it was asked for."""
    return json.dumps(asked.to_dict(), sort_keys=True)
