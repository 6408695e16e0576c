"""What the paper printed: its tables, the claims of its text, and its figures in words.

The numbers are in the TOML files beside this module, one per table, exactly as printed. Thirteen tables are
printed. Those of the Wild and of the life-long stream belong together: ``"wild"`` and ``"lifelong"``
name them side by side.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from findtta._io import read_toml
from findtta.options import require_known

#: The methods the paper compares, by their names here, in the order of its main table.
METHODS = (
    "source", "tent", "eata", "note", "sar", "rotta", "vida", "deyo",
    "tbn", "alpha-bn", "iabn", "find", "find-star",
)  # fmt: skip
#: The datasets of the paper, by their names here, with their printed names.
DATASETS = {"cifar10-c": "CIFAR10-C", "cifar100-c": "CIFAR100-C", "imagenet-c": "ImageNet-C"}
#: The models of the paper; the first is that of most tables.
NETWORKS = ("ResNet-50", "ResNet-26", "EfficientViT-M5")
#: The printed tables, in the order in which LaTeX numbers them: the first is Table 1.
PRINTED = (
    "main-resnet50", "main-efficientvit", "clustering", "efficiency", "ablation", "domains", "resnet26", "static",
    "wild-0.1", "wild-0.01", "wild-0.005", "lifelong-2", "lifelong-3",
)  # fmt: skip
#: Printed tables that are one experiment.
SIDE_BY_SIDE = {"wild": ("wild-0.1", "wild-0.01", "wild-0.005"), "lifelong": ("lifelong-2", "lifelong-3")}
#: How a claim compares two numbers of the tables; gain and saving are in percent of the right one.
COMPARISONS: Mapping[str, Callable[[float, float], float]] = {
    "difference": lambda left, right: left - right,
    "ratio": lambda left, right: left / right,
    "gain": lambda left, right: 100 * (left / right - 1),
    "saving": lambda left, right: 100 * (1 - left / right),
}


def read(name: str) -> dict[str, Any]:
    """Return the content of the data file ``name``, given without its ending."""
    return read_toml(Path(__file__).with_name(f"{name}.toml"))


# Tables


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A column of a printed table."""

    name: str  # such as "crossmix/cifar10-c"
    printed: str  # its heading
    unit: str
    settings: Mapping[str, Any]  # what holds for its cells: those of the table, and its own scenario, delta, ...
    average_of: Sequence[str] = ()  # the columns whose mean it is; empty for a measured one


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A row of a printed table: a method with options, and its numbers by the names of the columns."""

    name: str
    printed: str  # its heading
    method: str  # by its name here
    options: Mapping[str, Any] = field(default_factory=dict)  # those that make the row
    values: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)  # numbers after a plus-minus sign; mostly empty
    venue: str = ""  # where the method appeared, as printed in the main tables


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper; one that is printed with methods across is transposed."""

    id: str
    numbers: tuple[int, ...]  # its number in the paper; several if printed tables stand side by side
    title: str  # in our words
    label: str  # in the paper's source
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    settings: Mapping[str, Any]  # what holds for all its cells, as far as the paper says
    notes: Sequence[str] = ()  # what is remarkable about it
    #: Printed averages that do not follow from the printed cells: row, column, printed, recomputed to two digits.
    errata: Sequence[Mapping[str, Any]] = ()

    @property
    def absent(self) -> tuple[str, ...]:
        """The compared methods that have no row here."""
        present = {row.name for row in self.rows}
        return tuple(method for method in METHODS if method not in present)

    def row(self, name: str) -> PaperRow:
        """Return the row called ``name``."""
        rows = {row.name: row for row in self.rows}
        require_known(f"the row of the paper's table {self.id!r}", name, rows)
        return rows[name]

    def column(self, name: str) -> PaperColumn:
        """Return the column called ``name``."""
        columns = {column.name: column for column in self.columns}
        require_known(f"the column of the paper's table {self.id!r}", name, columns)
        return columns[name]


def tables() -> dict[str, PaperTable]:
    """Return the printed tables by their ids, in the order of the paper."""
    return {name: table(name) for name in PRINTED}


@functools.cache
def table(id: str) -> PaperTable:
    """Return a table by its id, by its number (``"table1"``), or ``"wild"`` or ``"lifelong"``.

    >>> table("table8").title
    'Accuracy when each batch holds a single domain'
    """
    numbered = {f"table{number}": name for number, name in enumerate(PRINTED, start=1)}
    require_known("the paper's table", id, [*PRINTED, *SIDE_BY_SIDE, *numbered])
    if id in numbered:
        return table(numbered[id])
    if id in SIDE_BY_SIDE:
        return _side_by_side(id, [table(part) for part in SIDE_BY_SIDE[id]])
    content = read(id)
    unit, settings = content.pop("unit"), {**read("settings"), **content.pop("settings")}
    columns = []
    for name, fields in content.pop("columns").items():
        own = {key: fields.pop(key) for key in ("printed", "unit", "average_of") if key in fields}
        columns.append(PaperColumn(**{"unit": unit, **own}, name=name, settings={**settings, **fields}))
    names = [column.name for column in columns]
    measured = [column.name for column in columns if not column.average_of]
    rows = []
    for name, fields in content.pop("rows").items():
        fields["values"] = dict(zip(names, fields["values"], strict=True))
        if "spreads" in fields:
            fields["spreads"] = dict(zip(measured, fields["spreads"], strict=True))
        rows.append(PaperRow(**{"name": name, "method": name, **fields}))
    number = PRINTED.index(id) + 1
    return PaperTable(
        id=id, numbers=(number,), columns=tuple(columns), rows=tuple(rows), settings=settings, **content
    )


def _side_by_side(id: str, parts: Sequence[PaperTable]) -> PaperTable:
    rows = []
    for first in parts[0].rows:
        values = {column: number for part in parts for column, number in part.row(first.name).values.items()}
        rows.append(dataclasses.replace(first, values=values))
    return PaperTable(
        id=id,
        numbers=tuple(number for part in parts for number in part.numbers),
        title=" | ".join(part.title for part in parts),
        label=" | ".join(part.label for part in parts),
        columns=tuple(column for part in parts for column in part.columns),
        rows=tuple(rows),
        settings=parts[0].settings,  # where they differ, their columns have settings
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def value(table_id: str, method: str, column: str) -> float | None:
    """Return a printed number of a row or method, or None if the paper compares the method, but not in this table.

    >>> value("static", "find", "static/imagenet-c")
    31.78
    """
    found = table(table_id)
    name = found.column(column).name
    return None if method in found.absent else found.row(method).values[name]


# Accuracies by what was measured


class PrintedCell(NamedTuple):
    """A printed number with its row, the number after a plus-minus sign if any, and the number of its table."""

    row: PaperRow
    value: float
    spread: float | None
    table: int


@dataclass(frozen=True)
class PrintedAccuracy:
    """Printed accuracies of one experiment, a stream of a dataset."""

    settings: Mapping[str, Any]  # what the paper says of them: network, domains, severity, batch size, ...
    cells: Mapping[str, PrintedCell]  # by the name of the row

    def value(self, row: str) -> float | None:
        """Return the number of a row, or None if it is not printed."""
        return self.cells[row].value if row in self.cells else None


def printed_accuracy(
    scenario: str,
    dataset: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    *,
    network: str | None = None,
    domains: int = 15,
) -> PrintedAccuracy | None:
    """Find the printed accuracies that come nearest to a stream of a dataset; None if there are none of such one.

    Of the settings of the stream, delta and rounds must be those of the paper where they are given. The network is
    that of most tables unless another is named. Of several numbers of domains the nearest is taken.

    >>> printed_accuracy("wild", "cifar10-c", {"delta": 0.1}).value("find")
    69.49
    """
    exact = {name: settings[name] for name in ("delta", "rounds") if settings.get(name) is not None}
    asked = {"scenario": scenario, "dataset": dataset, **exact}
    networks = [network or NETWORKS[0], NETWORKS[0]]  # the second in place of the first, others after both
    candidates = []
    for paper in tables().values():
        for column in paper.columns:
            known = column.settings
            if column.unit == "%" and not column.average_of and asked.items() <= known.items():
                distance = (
                    [*networks, known["model"]].index(known["model"]),
                    abs(known.get("domains", 15) - domains),
                )
                candidates.append((distance, paper, column))
    if not candidates:
        return None
    nearest = min(distance for distance, *_ in candidates)
    # Ties are tables of the same experiment: the ablation has rows that the main table has not.
    columns = [(paper, column) for distance, paper, column in candidates if distance == nearest]
    cells: dict[str, PrintedCell] = {}
    for paper, column in columns:
        for row in paper.rows:
            number, spread = row.values[column.name], row.spreads.get(column.name)
            cells.setdefault(row.name, PrintedCell(row, number, spread, paper.numbers[0]))
    return PrintedAccuracy(columns[0][1].settings, cells)


# Claims


@dataclass(frozen=True)
class Cells:
    """Some cells of a row: the id of the table, the name of the row, the names of the columns."""

    table: str
    method: str
    columns: Sequence[str]

    def mean(self) -> float:
        """Return the mean of the cells."""
        row = table(self.table).row(self.method)
        return statistics.fmean(row.values[column] for column in self.columns)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A number that the paper states in its text."""

    id: str
    where: str  # the part of the paper that states it
    says: str  # what is claimed, in our words
    unit: str  # "points" (of accuracy), "%" (relative) or "times"
    low: float  # the lowest value of the statement
    high: float  # the highest one
    tolerance: float = 0.5  # how far off the tables may be: half of the last digit stated
    compare: str = "difference"  # how left and right are compared, a name in COMPARISONS
    left: Cells | None = None  # None if the tables do not have it
    right: Cells | None = None
    recomputed: float | None = None  # what the tables give, to two digits
    figure: str = ""  # the figure it is read off, if it is not about a table
    note: str = ""  # what else the tables say

    def recompute(self) -> float | None:
        """Return what the paper's tables give, or None if they do not have it."""
        if self.left is None or self.right is None:
            return None
        return COMPARISONS[self.compare](self.left.mean(), self.right.mean())

    @property
    def holds(self) -> bool | None:
        """Whether the paper's tables agree, or None if they do not have it."""
        number = self.recompute()
        return None if number is None else self.low - self.tolerance <= number <= self.high + self.tolerance


@functools.cache
def claims() -> Mapping[str, Claim]:
    """Return the claims by their ids, in the order of the paper.

    >>> claims()["shuffle-over-alpha-bn"].high, claims()["shuffle-over-alpha-bn"].holds
    (13, False)
    """
    found = {}
    for name, fields in read("claims").items():
        fields |= {side: Cells(**fields[side]) for side in ("left", "right") if side in fields}
        found[name] = Claim(id=name, **fields)
    return found


# Figures


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure of the paper in our words; its source has none of the points."""

    id: str
    number: int
    title: str
    label: str  # in the paper's source; empty if it has none
    kind: Literal["measurement", "drawing", "gallery"]  # only measurements have panels
    claim: str  # what the paper concludes from it
    panels: Sequence[Mapping[str, str]] = ()  # each with its letter as name, title, x, y, and label if it has one
    notes: Sequence[str] = ()  # what is remarkable about it


@functools.cache
def figures() -> Mapping[str, PaperFigure]:
    """Return the figures by their ids, in the order of the paper.

    >>> figures()["group-counts"].number
    12
    """
    return {
        name: PaperFigure(id=name, number=number, **fields)
        for number, (name, fields) in enumerate(read("figures").items(), start=1)
    }
