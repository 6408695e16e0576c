"""The tables of the paper, as printed.

Thirteen tables are printed. Those of the Wild and of the life-long stream belong together, so that ``"wild"`` and
``"lifelong"`` name them side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from findtta.paper.numbers._files import read, unknown

#: The methods the paper compares, by their names here, in the order of its main table.
METHODS = (
    "source", "tent", "eata", "note", "sar", "rotta", "vida", "deyo",
    "tbn", "alpha-bn", "iabn", "find", "find-star",
)  # fmt: skip

#: The printed tables, in the order in which LaTeX numbers them: the first is Table 1.
PRINTED = (
    "main-resnet50", "main-efficientvit", "clustering", "efficiency", "ablation", "domains", "resnet26", "static",
    "wild-0.1", "wild-0.01", "wild-0.005", "lifelong-2", "lifelong-3",
)  # fmt: skip

#: Printed tables that are one experiment.
SIDE_BY_SIDE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"wild": ("wild-0.1", "wild-0.01", "wild-0.005"), "lifelong": ("lifelong-2", "lifelong-3")}
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: What it is called here, such as ``"crossmix/cifar10-c"``.
        printed: Its printed heading.
        unit: The unit of its numbers.
        settings: What distinguishes it from other columns: scenario, dataset, delta, ...
        average_of: The columns whose mean it is; empty for what was measured.
    """

    name: str
    printed: str
    unit: str
    settings: Mapping[str, Any]
    average_of: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table.

    Attributes:
        name: What it is called here.
        printed: Its printed name.
        method: The method behind it, by its name here.
        options: The options of the method that make the row.
        values: The printed numbers, by the name of the column.
        spreads: What is printed after a plus-minus sign, by the name of the column; mostly empty.
        venue: Where the method appeared, as printed in the main tables; empty elsewhere.
    """

    name: str
    printed: str
    method: str
    options: Mapping[str, Any]
    values: Mapping[str, float]
    spreads: Mapping[str, float]
    venue: str = ""


@dataclass(frozen=True)
class Erratum:
    """A printed average that does not follow from the printed cells.

    Attributes:
        row: The name of the row.
        column: The name of the column.
        printed: What is printed.
        recomputed: What the cells give, to two digits.
    """

    row: str
    column: str
    printed: float
    recomputed: float


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        id: What it is called here.
        numbers: Its number in the paper; several if printed tables stand side by side.
        title: What it shows, in our words.
        label: Its label in the paper's source.
        columns: The columns, in order.
        rows: The rows, in order. Tables printed with methods across are turned.
        settings: What holds for all its cells, as far as the paper says.
        notes: What is remarkable about it.
        errata: Averages that do not follow from the cells. ``rows`` has them as printed.
    """

    id: str
    numbers: tuple[int, ...]
    title: str
    label: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=(), repr=False)
    errata: tuple[Erratum, ...] = field(default=(), repr=False)

    @property
    def unit(self) -> str:
        """The unit of the numbers; several, with commas, if columns differ."""
        return ", ".join(dict.fromkeys(column.unit for column in self.columns))

    @property
    def absent(self) -> tuple[str, ...]:
        """The compared methods that have no row here."""
        present = {row.name for row in self.rows}
        return tuple(method for method in METHODS if method not in present)

    def row(self, name: str) -> Row:
        """Return the row called ``name``."""
        for row in self.rows:
            if row.name == name:
                return row
        raise unknown(f"the row of the paper's table {self.id!r}", name, [row.name for row in self.rows])

    def column(self, name: str) -> Column:
        """Return the column called ``name``."""
        for column in self.columns:
            if column.name == name:
                return column
        raise unknown(
            f"the column of the paper's table {self.id!r}", name, [column.name for column in self.columns]
        )

    def settings_of(self, column: str) -> dict[str, Any]:
        """Return what the paper says of the cells of a column: what holds for the table, and what for it alone."""
        return {**self.settings, **self.column(column).settings}


def tables() -> dict[str, PaperTable]:
    """Return the printed tables by their ids, in the order of the paper."""
    return {name: _printed(name) for name in PRINTED}


def aliases() -> dict[str, str]:
    """Return the ids of the printed tables by their numbers in the paper: ``"table1"`` and so on."""
    return {f"table{number}": name for number, name in enumerate(PRINTED, start=1)}


def table(id: str) -> PaperTable:
    """Return a table by its id, by its number (``"table1"``), or ``"wild"`` or ``"lifelong"``.

    >>> table("table8").title
    'Accuracy when each batch holds a single domain'
    """
    name = aliases().get(id, id)
    if name in PRINTED:
        return _printed(name)
    if name in SIDE_BY_SIDE:
        return _side_by_side(name)
    raise unknown("the paper's table", id, [*PRINTED, *SIDE_BY_SIDE, *aliases()])


def value(table_id: str, method: str, column: str) -> float | None:
    """Return a printed number.

    >>> value("static", "find", "static/imagenet-c")
    31.78

    Args:
        table_id: A table, as for :func:`table`.
        method: The name of a row, or of a method the paper compares.
        column: The name of a column.

    Returns:
        The number, or None if the paper compares the method, but not in this table.
    """
    found = table(table_id)
    name = found.column(column).name
    return None if method in found.absent else found.row(method).values[name]


@functools.cache
def _printed(name: str) -> PaperTable:
    content = read(name)
    columns = tuple(_column(key, content["unit"], fields) for key, fields in content["columns"].items())
    return PaperTable(
        id=name,
        numbers=(PRINTED.index(name) + 1,),
        title=content["title"],
        label=content["label"],
        columns=columns,
        rows=tuple(_row(key, columns, fields) for key, fields in content["rows"].items()),
        settings=MappingProxyType({**read("settings"), **content["settings"]}),
        notes=tuple(content["notes"]),
        errata=tuple(Erratum(**erratum) for erratum in content.get("errata", [])),
    )


def _column(name: str, unit: str, fields: Mapping[str, Any]) -> Column:
    own = ("printed", "unit", "average_of")
    return Column(
        name=name,
        printed=fields["printed"],
        unit=fields.get("unit", unit),
        settings=MappingProxyType({key: setting for key, setting in fields.items() if key not in own}),
        average_of=tuple(fields.get("average_of", ())),
    )


def _row(name: str, columns: Sequence[Column], fields: Mapping[str, Any]) -> Row:
    measured = [column.name for column in columns if not column.average_of]
    spreads = fields.get("spreads", ())
    return Row(
        name=name,
        printed=fields["printed"],
        method=fields.get("method", name),
        options=MappingProxyType(fields.get("options", {})),
        values=_by_name([column.name for column in columns], fields["values"]),
        spreads=_by_name(measured if spreads else (), spreads),
        venue=fields.get("venue", ""),
    )


def _by_name(names: Sequence[str], numbers: Sequence[float]) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(names, numbers, strict=True)))


@functools.cache
def _side_by_side(name: str) -> PaperTable:
    parts = [_printed(part) for part in SIDE_BY_SIDE[name]]
    return PaperTable(
        id=name,
        numbers=tuple(number for part in parts for number in part.numbers),
        title=" | ".join(part.title for part in parts),
        label=" | ".join(part.label for part in parts),
        columns=tuple(column for part in parts for column in part.columns),
        rows=tuple(_joined([part.row(row.name) for part in parts]) for row in parts[0].rows),
        settings=parts[0].settings,  # what differs between them is said by their columns
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        errata=tuple(erratum for part in parts for erratum in part.errata),
    )


def _joined(rows: Sequence[Row]) -> Row:
    first = rows[0]
    values = {column: number for row in rows for column, number in row.values.items()}
    return Row(
        name=first.name,
        printed=first.printed,
        method=first.method,
        options=first.options,
        values=MappingProxyType(values),
        spreads=MappingProxyType({}),
    )
