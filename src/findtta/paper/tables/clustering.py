"""Table 3: other clusterings in the place of LFD; accuracy, time, memory, and the defaults of their libraries."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from findtta.bench.result import Result
from findtta.bench.spec import RunSpec
from findtta.paper import numbers
from findtta.paper.cost import (
    TIMING_NOTE,
    memory_cell,
    memory_note,
    memory_probe,
    time_cell,
    times_probe,
    timing_failures,
)
from findtta.paper.document import Cell, Column, Document, Row, Table
from findtta.paper.items import DATASETS, Context, Item, Probe, Results, Setup
from findtta.paper.notes import dataset_title, outcome_notes, provenance, setting_notes
from findtta.paper.printed import FAILED, numbered
from findtta.partitioners import partitioners

_DATASET = "imagenet-c"


class Clustering(Item):
    """FIND with other clusterings in the place of LFD."""

    kind = "table"
    paper = numbers.table("clustering")
    id, title = paper.id, paper.title
    aliases = ("table3",)
    network = "ResNet-50"

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for setup in context.for_network(self.network)
            for row in self.paper.rows
            for options in (dict(row.options), _library_options(row))
            if options is not None
            for spec in self._specs(context, setup, options)
        ]

    def probes(self, context: Context) -> list[Probe]:
        setups = context.for_network(self.network)
        memory = [self._memory(context, setup, row) for setup in setups for row in self.paper.rows]
        return [*(self._times(context, setup) for setup in setups), *memory]

    def document(self, context: Context, results: Results) -> Document:
        setups = context.for_network(self.network)
        tables = [self._table(context, results, setup) for setup in (setups or (None,))]
        tables += [self._defaults_table(context, results, setup) for setup in setups]
        own = results.only(self.specs(context), self.probes(context))
        failures = [
            note for setup in setups for note in timing_failures(results.reading(self._times(context, setup)))
        ]
        return Document(
            id=self.id,
            title=f"{numbered(self.paper)}: {self.title}",
            tables=tuple(tables),
            notes=tuple(
                [
                    *setting_notes(context, own, self.network),
                    "The paper gives no parameters. Distances are scaled to the features of each layer, and "
                    "K-means has 15 clusters; the second table has the defaults of each library, which may be "
                    "what the authors took.",
                    "The clusterings compute on the CPU, one layer after the other.",
                    TIMING_NOTE,
                    memory_note(context),
                    "Those that come from scikit-learn bring that library into memory, too.",
                    *(f"The paper's table: {note}" for note in self.paper.notes),
                    *failures,
                    *outcome_notes(own),
                ]
            ),
            provenance=provenance(context, own),
        )

    def _specs(self, context: Context, setup: Setup, options: dict[str, Any]) -> list[RunSpec]:
        return context.specs(setup, method="find", options=options, stream="crossmix")

    def _times(self, context: Context, setup: Setup) -> Probe:
        return times_probe(context, setup, {row.name: (row.method, row.options) for row in self.paper.rows})

    def _memory(self, context: Context, setup: Setup, row: numbers.PaperRow) -> Probe:
        return memory_probe(context, setup, row.method, row.options)

    def _table(self, context: Context, results: Results, setup: Setup | None) -> Table:
        is_same = setup is None or setup.stands_for == _DATASET
        title = dataset_title(setup) if setup else "the paper's numbers; no ResNet is at hand"
        accuracy = (
            [Column(title="accuracy")]
            if is_same
            else [Column(title=f"accuracy on {DATASETS[_DATASET]}, paper", kind="paper"),
                  Column(title="accuracy, here", kind="ours")]
        )  # fmt: skip
        columns = (
            *accuracy,
            Column(title="groups", kind="ours", unit="", decimals=1),
            Column(title="s per batch, paper", kind="paper", unit="s"),
            Column(title="s per batch, here", kind="ours", unit="s", decimals=3),
            Column(title="times FIND", unit="times"),
            Column(title="GB, paper", kind="paper", unit="GB"),
            Column(title="MB above FIND, here", kind="ours", unit="MB", decimals=0),
        )
        rows = tuple(
            Row(row.printed.replace(" (Ours)", ""), self._cells(context, results, setup, row, is_same))
            for row in self.paper.rows
        )
        return Table(title=title, row_title="grouping", columns=columns, rows=rows)

    def _cells(
        self, context: Context, results: Results, setup: Setup | None, row: numbers.PaperRow, is_same: bool
    ) -> tuple[Cell, ...]:
        paper, find = row.values, self.paper.row("find")
        ratio = paper["latency"] / find.values["latency"]
        if setup is None:
            return (
                Cell(paper=paper["accuracy"]), Cell(), Cell(paper=paper["latency"]), Cell(), Cell(paper=ratio),
                Cell(paper=paper["memory"]), Cell(),
            )  # fmt: skip
        specs, times = self._specs(context, setup, dict(row.options)), self._times(context, setup)
        ours = _accuracy(results, specs)
        accuracy = Cell(paper=paper["accuracy"], values=ours.values, text=ours.text)
        over_find = time_cell(context, results, times, row.name, "ratio", "find")
        return (
            *((accuracy,) if is_same else (Cell(paper=paper["accuracy"]), ours)),
            Cell(values=results.values(specs, mean_groups), text=ours.text),
            Cell(paper=paper["latency"]),
            time_cell(context, results, times, row.name, "seconds"),
            dataclasses.replace(over_find, paper=ratio),
            Cell(paper=paper["memory"]),
            memory_cell(context, results, self._memory(context, setup, row), self._memory(context, setup, find)),
        )

    def _defaults_table(self, context: Context, results: Results, setup: Setup) -> Table:
        rows = []
        for row in self.paper.rows:
            options = _library_options(row)
            if options is not None:
                specs = self._specs(context, setup, options)
                accuracy = _accuracy(results, specs)
                settings = ", ".join(f"{name} {value}" for name, value in options["partitioner_options"].items())
                cells = (accuracy, Cell(values=results.values(specs, mean_groups), text=accuracy.text))
                rows.append(Row(row.printed, (*cells, Cell(text=settings))))
        return Table(
            title=f"{dataset_title(setup)}, at the defaults of the libraries",
            row_title="grouping",
            columns=(
                Column(title="accuracy", kind="ours"),
                Column(title="groups", kind="ours", unit="", decimals=1),
                Column(title="settings", kind="text", unit=""),
            ),
            rows=tuple(rows),
        )


def mean_groups(result: Result) -> float:
    """Return the mean number of groups over layers and batches."""
    counted = [layer["groups_mean"] for layer in result.layers if layer["groups_mean"] is not None]
    return statistics.fmean(counted) if counted else float("nan")


def _accuracy(results: Results, specs: list[RunSpec]) -> Cell:
    return Cell(values=results.values(specs), text=FAILED if results.failed(specs) else "")


def _library_options(row: numbers.PaperRow) -> dict[str, Any] | None:
    """Return the options that make a row what its library does if nothing is said, or None without a library."""
    name = row.options.get("partitioner")
    defaults = dict(partitioners()[name].library_defaults) if name else {}
    return {**row.options, "partitioner_options": defaults} if defaults else None


ITEM = Clustering()
