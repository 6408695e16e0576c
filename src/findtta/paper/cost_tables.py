"""The tables of time and memory: all methods (Table 4), and FIND with other clusterings (Table 3)."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.bench import Result
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper import numbers
from findtta.paper.accuracy_tables import claims_table
from findtta.paper.context import Context, Setup
from findtta.paper.items import Item, table
from findtta.paper.notes import TEXTS, display
from findtta.paper.numbers import METHODS
from findtta.paper.study import FAILED, Reading, Results, Study
from findtta.partitioners import partitioners
from findtta.tables import Cell, Column, Table

TIMED_BATCHES, TIMED_BATCHES_QUICK = 12, 4
MEMORY_BATCHES = 3
#: For each candidate its ``method`` and ``options``.
Candidates = Mapping[str, Mapping[str, Any]]


def timed(study: Study, setup: Setup, candidates: Candidates) -> Reading:
    """Return the measured time of candidates, the source model among them."""
    batches = TIMED_BATCHES_QUICK if study.context.quick else TIMED_BATCHES
    source = {"method": "source", "options": {}}
    settings = {"batches": batches, "candidates": {"source": source, **candidates}}
    return study.reading("times", setup, settings, **source, stream="crossmix", images=_images(study, batches))


def timing_notes(results: Results) -> list[str]:
    """Return how time was measured, and which candidates could not be."""
    candidates = [item for one in results.readings for item in one.value.get("candidates", {}).items()]
    failed = [f"Not timed: {name}. {found['error']}" for name, found in candidates if "error" in found]
    return [TEXTS["cost"]["time"], *failed]


def _images(study: Study, batches: int) -> int:
    """Return how many images per domain give this many batches, and a little more for data with fewer domains."""
    return math.ceil(batches * study.context.batch_size / len(MAIN_CORRUPTIONS)) + 1


def _is_measured(found: Table) -> bool:
    return any(cell.values or cell.text for row in found.rows for cell in row.cells if cell)


@dataclass(kw_only=True, eq=False)
class CostTable(Item):
    """Time and memory of some candidates, for each setup or, without any, the paper's numbers alone."""

    row_title: str  # what the candidates are
    baseline: str  # the candidate that others are compared with
    #: For each column what it ``shows`` (see ``cell``), its settings, and whether it is shown ``only`` if the data
    #: are the "same" dataset as the paper's or an "other".
    columns: Sequence[Mapping[str, Any]]

    def candidates(self, context: Context) -> Candidates:
        """Return what is measured."""
        raise NotImplementedError

    def display(self, name: str) -> str:
        """Return the paper's name of a candidate."""
        return display(name)

    def tables(self, study: Study) -> list[Table]:
        setups: list[Setup | None] = [*self.setups(study)]
        tables = [self._table(study, setup) for setup in setups or [None]]
        # Setups that nothing was measured with are left out, unless it is all of them.
        return [table for table in tables if _is_measured(table)] or tables

    def _table(self, study: Study, setup: Setup | None) -> Table:
        dataset = numbers.table(self.id).settings["dataset"]
        which = "same" if setup is None or setup.stands_for == dataset else "other"
        columns = {}
        for fields in self.columns:
            if fields.get("only", which) == which:
                settings = {name: value for name, value in fields.items() if name not in ("shows", "only")}
                columns[fields["shows"]] = Column(**settings)
        rows = {
            self.display(name): [self.cell(study, setup, name, shows) for shows in columns]
            for name in self.candidates(study.context)
        }
        title = setup.title if setup else "the paper's numbers; no setup has a ResNet"
        return table(title, self.row_title, columns.values(), rows)

    def cell(self, study: Study, setup: Setup | None, name: str, shows: str) -> Cell:
        """Return a cell of a candidate: a number of the paper (such as "paper latency") or what was measured."""
        what, _, rest = shows.partition(" ")
        if what == "paper":
            return Cell(paper=self._printed(name, rest))
        if what in ("accuracy", "groups"):
            run = self.candidates(study.context)[name]
            printed = self._printed(name, "accuracy") if rest == "compared" else None
            return study.cell(setup, READS[what], paper=printed, **run, stream="crossmix")
        if setup is None:
            ours = Cell()
        elif what == "memory":
            ours = self._memory(study, setup, name, rest.removeprefix("above "))
        else:
            ours = self._time(study, setup, name, what, rest.removeprefix("to "))
        if shows == f"ratio to {self.baseline}":
            own, base = (self._printed(one, "latency") for one in (name, self.baseline))
            ours = dataclasses.replace(ours, paper=own / base if own is not None and base else None)
        return ours

    def _printed(self, name: str, column: str) -> float | None:
        """Return the paper's number of a candidate, or None if it has none."""
        printed = {row.name for row in numbers.table(self.id).rows}
        return numbers.value(self.id, name, column) if name in printed else None

    def _time(self, study: Study, setup: Setup, name: str, measure: str, over: str) -> Cell:
        """Return a number of a candidate, as a multiple of another candidate's if one is named, or its passes."""
        reading = timed(study, setup, self.candidates(study.context))
        found = reading.value.get("candidates", {})
        own, base = found.get(name, {}), found.get(over, {}) if over else {measure: 1.0}
        if measure == "passes":
            return Cell(text=f"{own['forward']:g} + {own['backward']:g}" if "forward" in own else "")
        if measure not in own or measure not in base:
            return Cell(text="" if reading.status == "missing" else FAILED)
        return reading.cell(own[measure] / base[measure])

    def _memory(self, study: Study, setup: Setup, name: str, above: str) -> Cell:
        """Return the peak memory of a candidate in megabytes, or how much it is above another's."""
        stream = {"stream": "crossmix", "images": _images(study, MEMORY_BATCHES)}
        runs = [self.candidates(study.context)[one] for one in (name, above) if one]
        readings = [study.reading("memory", setup, {}, **run, **stream) for run in runs]
        peaks = [reading.value["megabytes"] for reading in readings if reading.status == "done"]
        if len(peaks) < len(readings):
            return Cell(text="" if readings[0].status == "missing" else FAILED)
        return readings[0].cell(peaks[0] - sum(peaks[1:]))

    def notes(self, context: Context, results: Results) -> list[str]:
        memory = TEXTS["cost"]["gpu" if context.device.startswith("cuda") else "cpu"]
        printed = (f"The paper's table: {note}" for note in numbers.table(self.id).notes)
        return [f"Measured on: {context.device}.", *timing_notes(results), memory, *printed]


class Efficiency(CostTable):
    """Time and memory of all methods, measured side by side, and how often they pass through the model."""

    def candidates(self, context: Context) -> Candidates:
        always = ("source", self.baseline)
        names = [name for name in (*METHODS, *context.further) if context.wants(name) or name in always]
        return {name: {"method": name, "options": {}} for name in names}

    def claims(self, study: Study) -> list[Table]:
        return claims_table(self.id, lambda _, method, column: self._claimed(study, method, column))

    def _claimed(self, study: Study, method: str, column: str) -> Cell:
        """Return what claims are about, of the first setup; memory only where it is that of the model alone."""
        setup = next(iter(self.setups(study)), None)
        measured = column == "latency" or study.context.device.startswith("cuda")
        ours = Cell()
        if method in self.candidates(study.context) and measured:
            ours = self.cell(study, setup, method, {"latency": "ratio", "memory": "memory"}[column])
        return dataclasses.replace(self.cell(study, None, method, f"paper {column}"), values=ours.values)


class Clustering(CostTable):
    """FIND with other clusterings in place of LFD: accuracy, time, memory, and the defaults of their libraries."""

    def candidates(self, context: Context) -> Candidates:
        return {row.name: {"method": row.method, "options": row.options} for row in numbers.table(self.id).rows}

    def display(self, name: str) -> str:
        return numbers.table(self.id).row(name).printed.replace(" (Ours)", "")

    def tables(self, study: Study) -> list[Table]:
        return super().tables(study) + [self._defaults_table(study, setup) for setup in self.setups(study)]

    def _defaults_table(self, study: Study, setup: Setup) -> Table:
        rows = {}
        for row in numbers.table(self.id).rows:
            name = row.options.get("partitioner")
            defaults = dict(partitioners()[name].library_defaults) if name else {}
            if defaults:
                options = {**row.options, "partitioner_options": defaults}
                run: dict[str, Any] = {"method": "find", "options": options, "stream": "crossmix"}
                text = ", ".join(f"{key} {value}" for key, value in defaults.items())
                rows[row.printed] = [*(study.cell(setup, read, **run) for read in READS.values()), Cell(text=text)]
        columns = (
            Column(title="accuracy"),
            Column(title="groups", unit="", decimals=1),
            Column(title="settings", kind="text", unit=""),
        )
        return table(f"{setup.title}, with the defaults of the libraries", "grouping", columns, rows)


def mean_groups(result: Result) -> float:
    """Return the mean number of groups over layers and batches."""
    counted = [groups for layer in result.layers if (groups := layer.get("groups_mean")) is not None]
    return statistics.fmean(counted) if counted else float("nan")


#: What is read from runs of candidates.
READS: Mapping[str, Callable[[Result], float]] = {
    "accuracy": lambda result: result.accuracy,
    "groups": mean_groups,
}
