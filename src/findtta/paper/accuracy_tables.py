"""Printed tables of accuracies run again: each cell is a method in a stream of a dataset."""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper import numbers
from findtta.paper.context import Context, Setup
from findtta.paper.items import Item, table
from findtta.paper.notes import display
from findtta.paper.numbers import COMPARISONS, DATASETS, SIDE_BY_SIDE, Cells, Claim, PaperColumn, PaperRow
from findtta.paper.study import Results, Study
from findtta.registry import load_method
from findtta.tables import Cell, Column, Table

#: The paper's names of streams.
STREAM_TITLES = {"crossmix": "CrossMix", "random": "Random", "shuffle": "Shuffle", "static": "Static"}
FIND = "FIND"
MARGINS = "ours ± half of the 95% interval, clustered by image"
INTERVALS = "95% intervals, paired by sample, clustered by image"
_STREAMS = {
    "random": "random:variant=authors",
    "shuffle": "shuffle:variant=authors",
    "wild": "wild:delta={delta},variant=authors-random",
    "lifelong": "lifelong:rounds={rounds}",
}
#: Streams with the batches of another one in another order: no difference to a method without state.
_SAME_BATCHES = {"shuffle": "random"}
#: Those with its samples in other batches: none to a method that looks at single images.
_SAME_SAMPLES = {"static": "crossmix"}
_RUN_ONCE = {
    "shuffle": "Shuffle has the batches of Random in another order: methods without state were run in Random.",
    "static": "Methods that look at single images were run in CrossMix, where they have the same accuracy.",
}


def stream_of(scenario: str, method: str | None = None, **settings: Any) -> str:
    """Return the stream for the settings of a column of the paper, or one in which a method has the same accuracy.

    >>> stream_of("wild", delta=0.01)
    'wild:delta=0.01,variant=authors-random'
    >>> stream_of("shuffle", "find"), stream_of("shuffle", "find-star")
    ('random:variant=authors', 'shuffle:variant=authors')
    >>> stream_of("static", "source"), stream_of("static", "find")
    ('crossmix', 'static')
    """
    if method is not None and not (kind := load_method(method)).stateful:
        scenario = _SAME_BATCHES.get(scenario, scenario)
        scenario = scenario if kind.batch_dependent else _SAME_SAMPLES.get(scenario, scenario)
    return _STREAMS.get(scenario, scenario).format(**settings)


@dataclass(kw_only=True, eq=False)
class AccuracyTable(Item):
    """A printed table of accuracies."""

    complete: bool = True  # methods that the paper compares elsewhere get a row as well
    extend: bool = False  # available datasets that the table does not have get a column as well

    def __post_init__(self) -> None:
        super().__post_init__()
        self.paper = numbers.table(self.id)
        self.network = str(self.paper.settings["model"])
        measured = [column for column in self.paper.columns if not column.average_of]
        self.places = list(dict.fromkeys((column.settings["dataset"], self.network) for column in measured))

    def tables(self, study: Study) -> list[Table]:
        """Return the table in parts that fit a page, and the rounds of life-long streams one by one."""
        parts: dict[str, list[PaperColumn]] = {}
        for column in self.columns(study.context):
            name, slash, _ = column.name.partition("/")
            parts.setdefault(name if slash else "", []).append(column)
        tables = [part for name, columns in parts.items() for part in self._part(study, name, columns)]
        return tables + [rounds for column in self.paper.columns for rounds in self._rounds(study, column)]

    def claims(self, study: Study) -> list[Table]:
        def get(table_id: str, row: str, column: str) -> Cell:
            item = AccuracyTable(id=table_id, kind="table")
            return item.cell(study, item.paper.row(row), item.paper.column(column))

        return claims_table(self.id, get)

    def rows(self, context: Context) -> list[PaperRow]:
        """Return the rows to run: those of the paper, methods that it has elsewhere, and those that it lacks."""
        others = [numbers.table("main-resnet50").row(method) for method in self.paper.absent if self.complete]
        rows = [*self.paper.rows, *(dataclasses.replace(row, values={}, spreads={}, options={}) for row in others)]
        further = [PaperRow(name=name, printed=name, method=name) for name in context.further if self.complete]
        return [row for row in rows if context.wants(row.name) or context.wants(row.method)] + further

    def cell(self, study: Study, row: PaperRow, column: PaperColumn, **options: Any) -> Cell:
        """Return a cell with the paper's number and ours; the options are those of ``Study.cell``."""
        paper, spread = row.values.get(column.name), row.spreads.get(column.name)
        if column.average_of:
            cells = [self.cell(study, row, self.paper.column(name)) for name in column.average_of]
            return Cell.average(cells, paper=paper, spread=spread)
        count = column.settings.get("domains", len(MAIN_CORRUPTIONS))
        return study.cell(
            self._setup(study.context, column),
            paper=paper,
            spread=spread,
            method=row.method,
            options=row.options,
            stream=stream_of(**column.settings, method=row.method),
            domains=None if count == len(MAIN_CORRUPTIONS) else MAIN_CORRUPTIONS[:count],
            **options,
        )

    def row_title(self, row: PaperRow) -> str:
        """Return the heading of a row."""
        return display(row.name) if self.complete else row.printed

    def notes(self, context: Context, results: Results) -> list[str]:
        notes = []
        rows = self.rows(context)
        if len(self.available(context)) < len(self.places) and any(one.average_of for one in self.paper.columns):
            notes.append("Averages over datasets that no setup stands for are left out.")
        scenarios = dict.fromkeys(column.settings.get("scenario") for column in self.paper.columns)
        notes += [_RUN_ONCE[scenario] for scenario in scenarios if scenario in _RUN_ONCE]
        differing = {
            "Not in the paper's table": [row for row in rows if not row.values],
            "Left out here": [row for row in self.paper.rows if row not in rows],
        }
        notes += [
            f"{what}: {', '.join(map(self.row_title, found))}." for what, found in differing.items() if found
        ]
        notes += [
            f"The paper's {self.row_title(self.paper.row(erratum['row']))} in {erratum['column']} is printed as "
            f"{erratum['printed']:.2f}, but its cells give {erratum['recomputed']:.2f}."
            for erratum in self.paper.errata
        ]
        return [*notes, *(f"The paper's table: {note}" for note in self.paper.notes)]

    def _setup(self, context: Context, column: PaperColumn) -> Setup | None:
        return None if column.average_of else context.find(column.settings["dataset"], self.network)

    def _added(self, context: Context) -> list[PaperColumn]:
        """Return columns of available datasets that the table lacks, if it is extended by them."""
        known, first = [dataset for dataset, _ in self.places], self.paper.columns[0]
        more = [setup.stands_for for setup in context.for_network(self.network) if self.extend]
        return [
            dataclasses.replace(
                first, name=f"{first.settings['scenario']}/{name}", settings={**first.settings, "dataset": name}
            )
            for name in more
            if name not in known
        ]

    def columns(self, context: Context) -> list[PaperColumn]:
        """Return the columns to show: of the paper's those of available datasets, or all of them if none is."""
        run = {column.name for column in self.paper.columns if self._setup(context, column)}
        printed = [column for column in self.paper.columns if run.issuperset(column.average_of or (column.name,))]
        return (printed or list(self.paper.columns)) + self._added(context)

    def _part(self, study: Study, name: str, columns: list[PaperColumn]) -> list[Table]:
        scenario = str(self.paper.settings.get("scenario", name))
        title = STREAM_TITLES.get(name) or DATASETS.get(name) or STREAM_TITLES.get(scenario)
        heading = f"{title}, accuracy in %" if title else f"{self.title}, in %"
        headings = [self._heading(study.context, column) for column in columns]
        cells = {
            self.row_title(row): [self.cell(study, row, column) for column in columns]
            for row in self.rows(study.context)
        }
        accuracies = table(f"{heading}; {MARGINS}", "method", headings, cells)
        return [accuracies, *gains(title or self.title, headings, cells)]

    def _heading(self, context: Context, column: PaperColumn) -> Column:
        if column.average_of:
            return Column(title="average", kind="compared", unit=column.unit)
        settings, setup = column.settings, self._setup(context, column)
        title = setup.title if setup else DATASETS[settings["dataset"]]
        if settings.get("domains") != self.paper.settings.get("domains"):
            title = f"{title}, {settings['domains']} domains"
        return Column(title=title, kind="compared" if column in self.paper.columns else "ours", unit=column.unit)

    def _rounds(self, study: Study, column: PaperColumn) -> list[Table]:
        """Return the accuracy of every round of a life-long stream, if the column is of one."""
        count, setup = column.settings.get("rounds", 0), self._setup(study.context, column)
        if not count or setup is None:
            return []

        def cell(row: PaperRow, number: int) -> Cell:
            found = self.cell(study, row, column, read=lambda result: result.per_round[number - 1])
            return found if number == count else dataclasses.replace(found, paper=None)

        numbered = range(1, count + 1)
        rounds = table(
            f"{setup.title}, accuracy of every round in %, the last one beside the paper's",
            "method",
            [Column(title=f"round {one}", kind="compared" if one == count else "ours") for one in numbered],
            {self.row_title(row): [cell(row, one) for one in numbered] for row in self.rows(study.context)},
        )
        return [rounds]


def gains(title: str, columns: Iterable[Column], cells: Mapping[str, Sequence[Cell]]) -> list[Table]:
    """Return how far FIND is above every other row, paired by sample, if there is anything to compare."""
    own = cells.get(FIND, [])
    rows = {
        name: [mine.minus(theirs) for mine, theirs in zip(own, row, strict=True)]
        for name, row in cells.items()
        if own and name != FIND
    }
    if not any(cell.values for row in rows.values() for cell in row):
        return []
    signed = [Column(title=column.title, kind="signed", unit="points") for column in columns]
    return [table(f"{title}, gain of FIND over each in points; {INTERVALS}", "FIND over", signed, rows)]


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
    rows = {}
    for claim in claims_about(table_id):
        stated = " to ".join(f"{number:g}" for number in sorted({claim.low, claim.high}))
        rows[f"{claim.says} ({claim.unit})"] = (Cell(text=stated), _compared(claim, get))
    columns = (
        Column(title="stated", kind="text", unit=""),
        Column(title="by the tables", kind="compared", unit=""),
    )
    title = "What the paper's text says of it, and what the available cells give"
    return [table(title, "claim", columns, rows)] if rows else []


def _compared(claim: Claim, get: GetCell) -> Cell:
    compare = COMPARISONS[claim.compare]
    lefts, rights = (
        [get(side.table, side.method, column) for column in _measured_columns(side)]
        for side in (claim.left, claim.right)
        if side is not None
    )
    available = [pair for pair in zip(lefts, rights, strict=True) if pair[0].values and pair[1].values]
    own, base = (Cell.average(pair[side] for pair in available).values for side in (0, 1))
    paper = claim.recompute()
    if 0 < len(available) < len(lefts):
        sides = zip(*available, strict=True)
        paper = compare(
            *(statistics.fmean(cell.paper for cell in side if cell.paper is not None) for side in sides)
        )
    return Cell(paper=paper, values={seed: compare(own[seed], base[seed]) for seed in own if seed in base})


def _measured_columns(cells: Cells) -> list[str]:
    """Return the columns that were measured behind some cells: for averages those that they are averages of."""
    paper = numbers.table(cells.table)
    return [part for name in cells.columns for part in (paper.column(name).average_of or (name,))]
