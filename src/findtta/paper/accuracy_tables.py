"""Printed tables of accuracies run again: each cell is a method in a stream of a dataset."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from findtta.bench import Result
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper import numbers
from findtta.paper.context import Context, Setup
from findtta.paper.items import Item
from findtta.paper.notes import display
from findtta.paper.numbers import COMPARISONS, DATASETS, SIDE_BY_SIDE, Cells, Claim, PaperColumn, PaperRow
from findtta.paper.results import Results, Study
from findtta.tables import Cell, Column, Row, Table

#: The paper's names of streams.
STREAM_TITLES: Mapping[str, str] = {
    "crossmix": "CrossMix",
    "random": "Random",
    "shuffle": "Shuffle",
    "static": "Static",
}
_STREAMS: Mapping[str, str] = {
    "random": "random:variant=paper",
    "wild": "wild:delta={delta},variant=paper",
    "lifelong": "lifelong:rounds={rounds}",
}


def stream_of(scenario: str, **settings: Any) -> str:
    """Return the stream for the settings of a column of the paper.

    >>> stream_of("wild", delta=0.01)
    'wild:delta=0.01,variant=paper'
    """
    return _STREAMS.get(scenario, scenario).format(**settings)


@dataclass(kw_only=True, eq=False)
class AccuracyTable(Item):
    """A printed table of accuracies.

    Attributes:
        complete: Whether methods that the paper compares elsewhere get a row as well.
        extend: Whether available datasets that the table does not have get a column as well.
    """

    complete: bool = True
    extend: bool = False

    def __post_init__(self) -> None:
        self.paper = numbers.table(self.id)
        self.network = str(self.paper.settings["model"])
        settings = [self._settings(column) for column in self.paper.columns if not column.average_of]
        self.places = tuple(dict.fromkeys((known["dataset"], self.network) for known in settings))

    def tables(self, study: Study) -> list[Table]:
        """Return the table in parts that fit a page."""
        parts: dict[str, list[PaperColumn]] = {}
        for column in self._shown(study.context):
            name, slash, _ = column.name.partition("/")
            parts.setdefault(name if slash else "", []).append(column)
        return [self._part(study, name, columns) for name, columns in parts.items()]

    def claims(self, study: Study) -> list[Table]:
        return claims_table(self.id, functools.partial(get_cell, study))

    def rows(self, context: Context) -> list[PaperRow]:
        """Return the rows to run: those of the paper, then methods that it has elsewhere."""
        main = numbers.table("main-resnet50")
        others = [main.row(method) for method in self.paper.absent if self.complete]
        rows = list(self.paper.rows) + [
            PaperRow(name=row.name, printed=row.printed, method=row.method, options=row.options) for row in others
        ]
        return [row for row in rows if context.wants(row.name) or context.wants(row.method)]

    def cell(
        self, study: Study, row: PaperRow, column: PaperColumn, read: Callable[[Result], float] | None = None
    ) -> Cell:
        """Return a cell with the paper's number and ours: the accuracy, or what ``read`` takes from a result."""
        paper, spread = row.values.get(column.name), row.spreads.get(column.name)
        if column.average_of:
            cells = [self.cell(study, row, self.paper.column(name)) for name in column.average_of]
            return Cell(values=mean_values(cell.values for cell in cells), paper=paper, spread=spread)
        settings = self._settings(column)
        count = settings.get("domains", len(MAIN_CORRUPTIONS))
        return study.cell(
            self._setup(study.context, column),
            read or (lambda result: result.accuracy),
            paper=paper,
            spread=spread,
            method=row.method,
            options=dict(row.options),
            stream=stream_of(**settings),
            domains=None if count == len(MAIN_CORRUPTIONS) else MAIN_CORRUPTIONS[:count],
        )

    def row_title(self, row: PaperRow) -> str:
        """Return the heading of a row."""
        return display(row.name) if self.complete else row.printed

    def notes(self, context: Context, results: Results) -> list[str]:
        notes = []
        rows = self.rows(context)
        if len(self.available(context)) < len(self.places) and any(one.average_of for one in self.paper.columns):
            notes.append("Averages over datasets that no setup stands for are left out.")
        added = [self.row_title(row) for row in rows if not row.values]
        if added:
            notes.append(f"Not in the paper's table: {', '.join(added)}.")
        left_out = [self.row_title(row) for row in self.paper.rows if row not in rows]
        if left_out:
            notes.append(f"Left out here: {', '.join(left_out)}.")
        notes += [
            f"The paper's {self.row_title(self.paper.row(erratum.row))} in {erratum.column} is printed as "
            f"{erratum.printed:.2f}, but its cells give {erratum.recomputed:.2f}."
            for erratum in self.paper.errata
        ]
        return [*notes, *(f"The paper's table: {note}" for note in self.paper.notes)]

    def _settings(self, column: PaperColumn) -> dict[str, Any]:
        return {**self.paper.settings, **column.settings}

    def _setup(self, context: Context, column: PaperColumn) -> Setup | None:
        return context.find(self._settings(column)["dataset"], self.network)

    def _added(self, context: Context) -> list[PaperColumn]:
        """Return columns of available datasets that the table lacks, if it is extended by them."""
        known = {dataset for dataset, _ in self.places}
        more = [
            setup for setup in context.for_network(self.network) if self.extend and setup.stands_for not in known
        ]
        first = self.paper.columns[0]
        return [
            PaperColumn(
                name=f"{self.paper.settings['scenario']}/{setup.stands_for}",
                printed=DATASETS[setup.stands_for],
                unit=first.unit,
                settings={**first.settings, "dataset": setup.stands_for},
            )
            for setup in more
        ]

    def _measured(self, context: Context) -> list[PaperColumn]:
        """Return the columns to run: those of available datasets."""
        columns = [column for column in self.paper.columns if not column.average_of] + self._added(context)
        return [column for column in columns if self._setup(context, column) is not None]

    def _shown(self, context: Context) -> list[PaperColumn]:
        """Return the columns to show: of the paper's those that are run, or all of them if none is."""
        run = {column.name for column in self._measured(context)}
        printed = [column for column in self.paper.columns if run.issuperset(column.average_of or (column.name,))]
        return (printed or list(self.paper.columns)) + self._added(context)

    def _part(self, study: Study, name: str, columns: list[PaperColumn]) -> Table:
        scenario = str(self.paper.settings.get("scenario", name))
        title = STREAM_TITLES.get(name) or DATASETS.get(name) or STREAM_TITLES.get(scenario)
        return Table(
            title=f"{title}, accuracy in %" if title else f"{self.title}, in %",
            row_titles=("method",),
            columns=tuple(self._heading(study.context, column) for column in columns),
            rows=tuple(
                Row((self.row_title(row),), tuple(self.cell(study, row, column) for column in columns))
                for row in self.rows(study.context)
            ),
        )

    def _heading(self, context: Context, column: PaperColumn) -> Column:
        if column.average_of:
            return Column(title="average", kind="compared", unit=column.unit)
        settings, setup = self._settings(column), self._setup(context, column)
        title = setup.title if setup else DATASETS[settings["dataset"]]
        if "domains" in column.settings:
            title = f"{title}, {settings['domains']} domains"
        return Column(title=title, kind="compared" if column in self.paper.columns else "ours", unit=column.unit)


class LifelongTable(AccuracyTable):
    """Accuracy of the whole stream beside the printed one, then of every round."""

    def tables(self, study: Study) -> list[Table]:
        rounds = [self._rounds(study, column) for column in self._measured(study.context)]
        return super().tables(study) + rounds

    def _rounds(self, study: Study, column: PaperColumn) -> Table:
        setup = self._setup(study.context, column)
        last = int(column.settings["rounds"]) - 1
        rows = []
        for row in self.rows(study.context):
            cells = [
                self.cell(study, row, column, functools.partial(_of_round, number)) for number in range(last + 1)
            ]
            ours = [dataclasses.replace(cell, paper=None) for cell in cells[:last]]
            rows.append(Row((self.row_title(row),), (*ours, cells[last])))
        return Table(
            title=f"{setup.title if setup else ''}, accuracy of every round in %, the last one beside the paper's",
            row_titles=("method",),
            columns=(
                *(Column(title=f"round {number}") for number in range(1, last + 1)),
                Column(title=f"round {last + 1}", kind="compared"),
            ),
            rows=tuple(rows),
        )


def _of_round(number: int, result: Result) -> float:
    return result.per_round[number]


def mean_values(values: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean of several numbers for each seed that all of them have."""
    known = list(values)
    seeds = sorted(set.intersection(*map(set, known))) if known else []
    return {seed: statistics.fmean(one[seed] for one in known) for seed in seeds}


def get_cell(study: Study, table: str, row: str, column: str) -> Cell:
    """Return a cell of a printed table of accuracies, or of several side by side."""
    for name in SIDE_BY_SIDE.get(table, (table,)):
        item = AccuracyTable(id=name, title="", kind="table")
        if column in {known.name for known in item.paper.columns}:
            return item.cell(study, item.paper.row(row), item.paper.column(column))
    return Cell()


# Claims: the numbers that the paper gives in its text

#: Gives the cell of a table of the paper, by table, row and column.
GetCell = Callable[[str, str, str], Cell]


def claims_about(table_id: str) -> list[Claim]:
    """Return the claims about a table; those about several tables are with the last of them."""
    places = {table_id, *(name for name, parts in SIDE_BY_SIDE.items() if parts[-1] == table_id)}
    return [claim for claim in numbers.claims().values() if claim.left is not None and claim.left.table in places]


def claims_table(table_id: str, get: GetCell) -> list[Table]:
    """Return what the paper's text states about a table beside its cells and ours, if it states anything.

    Where setups stand for some of the cells of a claim only, the paper's number is of the same cells as ours.
    """
    rows = []
    for claim in claims_about(table_id):
        stated = f"{claim.low:g}" if claim.low == claim.high else f"{claim.low:g} to {claim.high:g}"
        rows.append(Row((f"{claim.says} ({claim.unit})",), (Cell(text=stated), _compared(claim, get))))
    if not rows:
        return []
    return [
        Table(
            title="What the paper's text says of it, and what the available cells give",
            row_titles=("claim",),
            columns=(
                Column(title="stated", kind="text", unit=""),
                Column(title="by the tables", kind="compared", unit=""),
            ),
            rows=tuple(rows),
        )
    ]


def _compared(claim: Claim, get: GetCell) -> Cell:
    assert claim.left is not None
    assert claim.right is not None
    compare = COMPARISONS[claim.compare]
    lefts, rights = (
        [get(side.table, side.method, column) for column in _measured_columns(side)]
        for side in (claim.left, claim.right)
    )
    available = [pair for pair in zip(lefts, rights, strict=True) if pair[0].values and pair[1].values]
    own, base = (mean_values(pair[side].values for pair in available) for side in (0, 1))
    values = {seed: compare(own[seed], base[seed]) for seed in own if seed in base}
    if not available or len(available) == len(lefts):
        return Cell(paper=claim.recompute(), values=values)
    paper = [(left.paper, right.paper) for left, right in available if None not in (left.paper, right.paper)]
    means = [
        statistics.fmean(number for number in side if number is not None) for side in zip(*paper, strict=True)
    ]
    return Cell(paper=compare(*means) if means else None, values=values)


def _measured_columns(cells: Cells) -> list[str]:
    """Return the columns that were measured behind some cells: for averages those that they are averages of."""
    parts = {column.name: column.average_of or (column.name,) for column in numbers.table(cells.table).columns}
    return [part for column in cells.columns for part in parts[column]]
