"""A printed table of accuracies, run again: each cell is a method in a stream of a dataset."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from findtta.bench.result import Result
from findtta.bench.spec import RunSpec
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper import numbers
from findtta.paper.claims import claims_about, claims_table
from findtta.paper.document import Cell, Column, Document, Row, Table
from findtta.paper.items import DATASETS, Context, Item, Results, Setup
from findtta.paper.notes import dataset_title, display, outcome_notes, provenance, setting_notes
from findtta.paper.numbers import PaperTable

FAILED = "failed"
_SCENARIOS: Mapping[str, str] = {
    "crossmix": "crossmix",
    "random": "random:variant=paper",
    "shuffle": "shuffle",
    "static": "static",
    "wild": "wild:delta={delta},variant=paper",
    "lifelong": "lifelong:rounds={rounds}",
}


def stream_of(settings: Mapping[str, Any]) -> str:
    """Return the stream for the settings of a column of the paper.

    >>> stream_of({"scenario": "wild", "delta": 0.01})
    'wild:delta=0.01,variant=paper'
    """
    return _SCENARIOS[settings["scenario"]].format(**settings)


def domains_of(settings: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the first so many of the fifteen corruptions, or None for all of them."""
    count = settings.get("domains", len(MAIN_CORRUPTIONS))
    return None if count == len(MAIN_CORRUPTIONS) else MAIN_CORRUPTIONS[:count]


class AccuracyTable(Item):
    """A printed table of accuracies.

    Args:
        table: The id of the table.
        complete: Whether methods that the paper compares elsewhere get a row as well.
        extend: Whether datasets at hand that the table does not have get a column as well.
    """

    kind = "table"

    def __init__(self, table: str, *, complete: bool = True, extend: bool = False) -> None:
        self.paper = numbers.table(table)
        self.id, self.title = self.paper.id, self.paper.title
        self.aliases = tuple(f"table{number}" for number in self.paper.numbers)
        self.complete, self.extend = complete, extend

    @property
    def network(self) -> str:
        """The network of the paper."""
        return str(self.paper.settings["model"])

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for column in self._at_hand(context)
            for row in self.rows(context)
            for spec in self.cell_specs(context, row, column)
        ]

    def document(self, context: Context, results: Results) -> Document:
        own = results.only(self.specs(context), self.probes(context))
        claims = claims_table(claims_about(self.id), lambda *place: get_cell(context, results, *place))
        tables = [
            *self.parts(context, results),
            *self.more_tables(context, results),
            *([claims] if claims else []),
        ]
        return Document(
            id=self.id,
            title=f"{numbered(self.paper)}: {self.title}",
            tables=tuple(tables),
            notes=tuple([*setting_notes(context, own, self.network), *self.notes(context), *outcome_notes(own)]),
            provenance=provenance(context, own),
        )

    def more_tables(self, context: Context, results: Results) -> list[Table]:
        """Return tables that follow the printed one; most have none."""
        return []

    def rows(self, context: Context) -> list[numbers.PaperRow]:
        """Return the rows to run: those of the paper, then methods that it has elsewhere."""
        rows = list(self.paper.rows)
        if self.complete:
            main = numbers.table("main-resnet50")
            rows += [_without_numbers(main.row(method)) for method in self.paper.absent]
        return [row for row in rows if context.wants(row.name) or context.wants(row.method)]

    def columns(self, context: Context) -> list[numbers.PaperColumn]:
        """Return the measured columns: those of the paper, then those of more datasets."""
        columns = [column for column in self.paper.columns if not column.average_of]
        if not self.extend:
            return columns
        known = {self.paper.settings_of(column.name).get("dataset") for column in columns}
        more = [setup for setup in context.for_network(self.network) if setup.stands_for not in known]
        first = columns[0]
        return columns + [
            numbers.PaperColumn(
                name=f"{self.paper.settings['scenario']}/{setup.stands_for}",
                printed=DATASETS[setup.stands_for],
                unit=first.unit,
                settings={**first.settings, "dataset": setup.stands_for},
            )
            for setup in more
        ]

    def setup(self, context: Context, column: numbers.PaperColumn) -> Setup | None:
        """Return what a column is run with, or None if nothing at hand stands for its dataset."""
        return context.find(self._settings(column)["dataset"], self.network)

    def cell_specs(self, context: Context, row: numbers.PaperRow, column: numbers.PaperColumn) -> list[RunSpec]:
        """Return the runs behind a cell, one for every seed."""
        setup = self.setup(context, column)
        if setup is None:
            return []
        settings = self._settings(column)
        return context.specs(
            setup,
            method=row.method,
            options=dict(row.options),
            stream=stream_of(settings),
            domains=domains_of(settings),
        )

    def read(self, result: Result) -> float:
        """Return the number of a run that the table shows."""
        return result.accuracy

    def cell(self, context: Context, results: Results, row: numbers.PaperRow, column: numbers.PaperColumn) -> Cell:
        """Return a cell with the paper's number and ours."""
        printed: dict[str, Any] = {
            "paper": row.values.get(column.name),
            "spread": row.spreads.get(column.name),
        }
        if column.average_of:
            parts = [self.cell(context, results, row, self.paper.column(name)) for name in column.average_of]
            return Cell(**printed, values=_average(parts))
        specs = self.cell_specs(context, row, column)
        return Cell(
            **printed,
            values=results.values(specs, self.read),
            text=FAILED if results.failed(specs) else "",
        )

    def parts(self, context: Context, results: Results) -> list[Table]:
        """Return the table in parts that fit a page: one for each first half of the names of columns."""
        groups: dict[str, list[numbers.PaperColumn]] = {}
        for column in self._shown(context):
            groups.setdefault(_group(column), []).append(column)
        rows = self.rows(context)
        return [
            Table(
                title=_part_title(self, name),
                row_title="method",
                columns=tuple(self._heading(context, column) for column in columns),
                rows=tuple(
                    Row(self.row_title(row), tuple(self.cell(context, results, row, column) for column in columns))
                    for row in rows
                ),
            )
            for name, columns in groups.items()
        ]

    def row_title(self, row: numbers.PaperRow) -> str:
        """Return what a row is called."""
        return display(row.name) if self.complete else row.printed

    def notes(self, context: Context) -> list[str]:
        """Return notes about the table itself: what is not at hand, what is ours alone, what was misprinted."""
        notes = []
        missing = {self._settings(column)["dataset"] for column in self.columns(context)} - {
            self._settings(column)["dataset"] for column in self._at_hand(context)
        }
        if missing:
            names = ", ".join(title for dataset, title in DATASETS.items() if dataset in missing)
            averages = (
                "; averages over it are left out" if any(one.average_of for one in self.paper.columns) else ""
            )
            notes.append(f"Nothing at hand stands for {names} with {self.network}{averages}.")
        added = [row for row in self.rows(context) if not row.values]
        if added:
            notes.append(f"Not in the paper's table: {', '.join(map(self.row_title, added))}.")
        left_out = [row for row in self.paper.rows if row not in self.rows(context)]
        if left_out:
            notes.append(f"Left out here: {', '.join(map(self.row_title, left_out))}.")
        notes += [
            f"The paper's {self.row_title(self.paper.row(erratum.row))} in {erratum.column} is printed as "
            f"{erratum.printed:.2f}, but its cells give {erratum.recomputed:.2f}."
            for erratum in self.paper.errata
        ]
        return [*notes, *(f"The paper's table: {note}" for note in self.paper.notes)]

    def _settings(self, column: numbers.PaperColumn) -> dict[str, Any]:
        return {**self.paper.settings, **column.settings}

    def _at_hand(self, context: Context) -> list[numbers.PaperColumn]:
        return [column for column in self.columns(context) if self.setup(context, column) is not None]

    def _shown(self, context: Context) -> list[numbers.PaperColumn]:
        """Return the columns to show: of the paper's those that are at hand, or all of them if none is."""
        at_hand = {column.name for column in self._at_hand(context)}
        printed = [
            column for column in self.paper.columns if at_hand.issuperset(column.average_of or (column.name,))
        ]
        more = [column for column in self.columns(context) if column not in self.paper.columns]
        return (printed or list(self.paper.columns)) + more

    def _heading(self, context: Context, column: numbers.PaperColumn) -> Column:
        if column.average_of:
            return Column(title="average", unit=column.unit)
        settings = self._settings(column)
        setup = self.setup(context, column)
        title = DATASETS[settings["dataset"]] if setup is None else dataset_title(setup)
        if "domains" in column.settings:
            title = f"{title}, {settings['domains']} domains"
        is_printed = column in self.paper.columns
        return Column(title=title, kind="compared" if is_printed else "ours", unit=column.unit)


def get_cell(context: Context, results: Results, table: str, row: str, column: str) -> Cell:
    """Return a cell of a printed table of accuracies, or of several side by side."""
    for name in numbers.SIDE_BY_SIDE.get(table, (table,)):
        item = AccuracyTable(name)
        if column in {known.name for known in item.paper.columns}:
            return item.cell(context, results, item.paper.row(row), item.paper.column(column))
    return Cell()


def numbered(paper: PaperTable) -> str:
    """Return the number of a table, such as ``"Table 1"``."""
    return f"Table {' and '.join(map(str, paper.numbers))}"


def _group(column: numbers.PaperColumn) -> str:
    name, slash, _ = column.name.partition("/")
    return name if slash else ""


def _part_title(item: AccuracyTable, group: str) -> str:
    scenario = str(item.paper.settings.get("scenario", group))
    names = {"crossmix": "CrossMix", "random": "Random", "shuffle": "Shuffle", "static": "Static"}
    title = names.get(group) or DATASETS.get(group) or names.get(scenario) or item.title
    return f"{title}, accuracy in %" if title != item.title else f"{title}, in %"


def _average(cells: Iterable[Cell]) -> dict[int, float]:
    cells = list(cells)
    seeds = set.intersection(*({*cell.values} for cell in cells))
    return {seed: statistics.fmean(cell.values[seed] for cell in cells) for seed in sorted(seeds)}


def _without_numbers(row: numbers.PaperRow) -> numbers.PaperRow:
    return numbers.PaperRow(
        name=row.name, printed=row.printed, method=row.method, options=row.options, values={}, spreads={}
    )
