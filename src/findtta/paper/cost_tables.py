"""The tables of time and memory: all methods (Table 4), and FIND with other clusterings (Table 3)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from findtta.bench import Result
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper import numbers
from findtta.paper.accuracy_tables import claims_table
from findtta.paper.context import Context, Setup
from findtta.paper.items import Item
from findtta.paper.notes import display
from findtta.paper.numbers import DATASETS, METHODS
from findtta.paper.results import FAILED, Results, Study
from findtta.partitioners import partitioners
from findtta.tables import Cell, Column, Row, Table

TIMED_BATCHES, TIMED_BATCHES_QUICK = 12, 4
MEMORY_BATCHES = 3
TIMING_NOTE = (
    "Time: all in one process, in turn on the same batches after a warm-up, FIND* after its cold start; ratios "
    "are medians of ratios within a batch, seconds medians. Seconds depend on the machine, so compare the ratios."
)
_GPU_MEMORY = "Memory: the peak of what torch allocated on the GPU, each in a process of its own."
_CPU_MEMORY = (
    "Memory: the peak resident memory of a whole process, Python and torch included, each in a process of its own "
    "on the CPU; the paper's is that of a GPU, so compare what is above the others, not the totals."
)
#: For each candidate the method with its options.
Candidates = Mapping[str, tuple[str, Mapping[str, Any]]]


def timed(study: Study, setup: Setup, candidates: Candidates) -> Mapping[str, Any] | None:
    """Return the measured time of candidates, the source model among them, or None if it was not measured."""
    batches = TIMED_BATCHES_QUICK if study.context.quick else TIMED_BATCHES
    settings = {
        name: {"method": method, "options": dict(options)}
        for name, (method, options) in {"source": ("source", {}), **candidates}.items()
    }
    reading = study.reading(
        "times",
        setup,
        {"batches": batches, "candidates": settings},
        method="source",
        stream="crossmix",
        images=_images(study, batches),
    )
    return reading.value.get("candidates", {}) if reading else None


def timing_notes(results: Results) -> list[str]:
    """Return how time was measured, and which candidates could not be."""
    candidates = [item for one in results.readings for item in one.value.get("candidates", {}).items()]
    return [
        TIMING_NOTE,
        *(f"Not timed: {name}. {found['error']}" for name, found in candidates if "error" in found),
    ]


def _images(study: Study, batches: int) -> int:
    """Return how many images per domain give this many batches, and a little more for data with fewer domains."""
    return math.ceil(batches * study.context.batch_size / len(MAIN_CORRUPTIONS)) + 1


class CostTable(Item):
    """Time and memory of some candidates, for each setup or, without any, the paper's numbers alone."""

    row_title: str
    baseline: str  # the candidate that others are compared with

    def candidates(self, context: Context) -> Candidates:
        """Return what is measured."""
        raise NotImplementedError

    def columns(self, setup: Setup | None) -> tuple[Column, ...]:
        """Return the columns."""
        raise NotImplementedError

    def cells(self, study: Study, setup: Setup | None, name: str) -> tuple[Cell, ...]:
        """Return the row of a candidate."""
        raise NotImplementedError

    def tables(self, study: Study) -> list[Table]:
        setups: list[Setup | None] = [*self.setups(study)] or [None]
        return [
            Table(
                title=setup.title if setup else "the paper's numbers; no setup has a ResNet",
                row_titles=(self.row_title,),
                columns=self.columns(setup),
                rows=tuple(
                    Row((self.display(name),), self.cells(study, setup, name))
                    for name in self.candidates(study.context)
                ),
            )
            for setup in setups
        ]

    def display(self, name: str) -> str:
        """Return the paper's name of a candidate."""
        return display(name)

    def notes(self, context: Context, results: Results) -> list[str]:
        memory = _GPU_MEMORY if context.device.startswith("cuda") else _CPU_MEMORY
        printed = (f"The paper's table: {note}" for note in numbers.table(self.id).notes)
        return [f"Measured on: {context.device}.", *timing_notes(results), memory, *printed]

    def printed(self, name: str, column: str) -> Cell:
        """Return a number of the paper."""
        return Cell(paper=numbers.value(self.id, name, column))

    def time(self, study: Study, setup: Setup | None, name: str, measure: str, over: str = "") -> Cell:
        """Return a number of a candidate, as a multiple of another candidate's if one is named."""
        found = timed(study, setup, self.candidates(study.context)) if setup else None
        if found is None:
            return Cell()
        own, base = found.get(name, {}), found.get(over, {}) if over else {measure: 1.0}
        if measure not in own or measure not in base:
            return Cell(text=FAILED)
        return Cell(values={study.context.seeds[0]: own[measure] / base[measure]})

    def ratio(self, study: Study, setup: Setup | None, name: str) -> Cell:
        """Return the time of a candidate as a multiple of the baseline's, beside the paper's."""
        own, base = (numbers.value(self.id, one, "latency") for one in (name, self.baseline))
        ours = self.time(study, setup, name, "ratio", self.baseline)
        return dataclasses.replace(ours, paper=own / base if own is not None and base else None)

    def memory(self, study: Study, setup: Setup | None, name: str, above: str = "") -> Cell:
        """Return the peak memory of a candidate in megabytes, or how much it is above another's."""
        readings = []
        for one in (name, above):
            if one and setup:
                method, options = self.candidates(study.context)[one]
                run = {"method": method, "options": dict(options), "stream": "crossmix"}
                readings.append(study.reading("memory", setup, {}, **run, images=_images(study, MEMORY_BATCHES)))
        if not readings or readings[0] is None:
            return Cell()
        peaks = [reading.value["megabytes"] for reading in readings if reading is not None and reading.is_done]
        if len(peaks) < len(readings):
            return Cell(text=FAILED)
        return Cell(values={study.context.seeds[0]: peaks[0] - sum(peaks[1:])})


class Efficiency(CostTable):
    """Time and memory of all methods, measured side by side, and how often they pass through the model."""

    row_title = "method"
    baseline = "tbn"  # the cheapest method of the paper's table, which lacks Source

    def candidates(self, context: Context) -> Candidates:
        return {name: (name, {}) for name in METHODS if context.wants(name) or name in ("source", self.baseline)}

    def columns(self, setup: Setup | None) -> tuple[Column, ...]:
        return (
            Column(title="s per batch, paper", kind="paper", unit="s"),
            Column(title="s per batch, here", unit="s", decimals=4),
            Column(title="times Source", unit="times"),
            Column(title="times TBN", kind="compared", unit="times"),
            Column(title="GB, paper", kind="paper", unit="GB"),
            Column(title="MB, here", unit="MB", decimals=0),
            Column(title="MB above Source", unit="MB", decimals=0),
            Column(title="passes", kind="text", unit=""),
        )

    def cells(self, study: Study, setup: Setup | None, name: str) -> tuple[Cell, ...]:
        found = (timed(study, setup, self.candidates(study.context)) or {}).get(name, {}) if setup else {}
        return (
            self.printed(name, "latency"),
            self.time(study, setup, name, "seconds"),
            self.time(study, setup, name, "ratio"),
            self.ratio(study, setup, name),
            self.printed(name, "memory"),
            self.memory(study, setup, name),
            self.memory(study, setup, name, above="source"),
            Cell(text=f"{found['forward']:g} + {found['backward']:g}" if "forward" in found else ""),
        )

    def claims(self, study: Study) -> list[Table]:
        return claims_table(self.id, lambda _, method, column: self._claimed(study, method, column))

    def _claimed(self, study: Study, method: str, column: str) -> Cell:
        """Return what claims are about, of the first setup; memory only where it is that of the model alone."""
        setup = next(iter(self.setups(study)), None)
        ours = Cell()
        if method in self.candidates(study.context) and column == "latency":
            ours = self.time(study, setup, method, "ratio")
        elif method in self.candidates(study.context) and study.context.device.startswith("cuda"):
            ours = self.memory(study, setup, method)
        return dataclasses.replace(self.printed(method, column), values=ours.values)


class Clustering(CostTable):
    """FIND with other clusterings in place of LFD: accuracy, time, memory, and the defaults of their libraries."""

    row_title = "grouping"
    baseline = "find"

    def candidates(self, context: Context) -> Candidates:
        return {row.name: (row.method, row.options) for row in numbers.table(self.id).rows}

    def display(self, name: str) -> str:
        return numbers.table(self.id).row(name).printed.replace(" (Ours)", "")

    def columns(self, setup: Setup | None) -> tuple[Column, ...]:
        accuracy = (
            Column(title=f"accuracy on {DATASETS[self._dataset]}, paper", kind="paper"),
            Column(title="accuracy, here"),
        )
        return (
            *(accuracy if self._is_other(setup) else [Column(title="accuracy", kind="compared")]),
            Column(title="groups", unit="", decimals=1),
            Column(title="s per batch, paper", kind="paper", unit="s"),
            Column(title="s per batch, here", unit="s", decimals=3),
            Column(title="times FIND", kind="compared", unit="times"),
            Column(title="GB, paper", kind="paper", unit="GB"),
            Column(title="MB above FIND, here", unit="MB", decimals=0),
        )

    def cells(self, study: Study, setup: Setup | None, name: str) -> tuple[Cell, ...]:
        options = dict(self.candidates(study.context)[name][1])
        accuracy, groups = self._accuracy_and_groups(study, setup, options)
        printed = self.printed(name, "accuracy")
        both = (
            [printed, accuracy] if self._is_other(setup) else [dataclasses.replace(accuracy, paper=printed.paper)]
        )
        return (
            *both,
            groups,
            self.printed(name, "latency"),
            self.time(study, setup, name, "seconds"),
            self.ratio(study, setup, name),
            self.printed(name, "memory"),
            self.memory(study, setup, name, above=self.baseline),
        )

    def tables(self, study: Study) -> list[Table]:
        return super().tables(study) + [self._defaults_table(study, setup) for setup in self.setups(study)]

    @property
    def _dataset(self) -> str:
        return str(numbers.table(self.id).settings["dataset"])

    def _is_other(self, setup: Setup | None) -> bool:
        return setup is not None and setup.stands_for != self._dataset

    def _accuracy_and_groups(self, study: Study, setup: Setup | None, options: dict[str, Any]) -> list[Cell]:
        reads: list[Callable[[Result], float]] = [lambda result: result.accuracy, mean_groups]
        return [study.cell(setup, read, method="find", options=options, stream="crossmix") for read in reads]

    def _defaults_table(self, study: Study, setup: Setup) -> Table:
        rows = []
        for row in numbers.table(self.id).rows:
            name = row.options.get("partitioner")
            defaults = dict(partitioners()[name].library_defaults) if name else {}
            if defaults:
                options = {**row.options, "partitioner_options": defaults}
                text = ", ".join(f"{key} {value}" for key, value in defaults.items())
                cells = (*self._accuracy_and_groups(study, setup, options), Cell(text=text))
                rows.append(Row((row.printed,), cells))
        return Table(
            title=f"{setup.title}, with the defaults of the libraries",
            row_titles=("grouping",),
            columns=(
                Column(title="accuracy"),
                Column(title="groups", unit="", decimals=1),
                Column(title="settings", kind="text", unit=""),
            ),
            rows=tuple(rows),
        )


def mean_groups(result: Result) -> float:
    """Return the mean number of groups over layers and batches."""
    counted = [layer["groups_mean"] for layer in result.layers if layer["groups_mean"] is not None]
    return statistics.fmean(counted) if counted else float("nan")
