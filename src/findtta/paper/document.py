"""What an item of the paper comes to: tables with the paper's numbers beside ours, pictures, notes, provenance."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from findtta._io import finite
from findtta.plots import Panel, draw_panels, panel_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ColumnKind = Literal["compared", "ours", "paper", "text"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place of a table.

    Attributes:
        paper: The paper's number, if it has one here.
        spread: What the paper prints after a plus-minus sign.
        values: Our number for each seed.
        text: What is shown in the place of our number, such as ``"failed"``, or in a column of texts.
    """

    paper: float | None = None
    spread: float | None = None
    values: Mapping[int, float] = field(default_factory=dict)
    text: str = ""

    @property
    def ours(self) -> float | None:
        """Our number: the mean over seeds."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds (with n - 1), or None for fewer than two."""
        values = list(self.values.values())
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return None
        return statistics.stdev(values)

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as plain values that JSON can write."""
        return {
            "paper": self.paper,
            "spread": self.spread,
            "ours": self.ours,
            "deviation": self.deviation,
            "difference": self.difference,
            "values": {str(seed): value for seed, value in self.values.items()},
            "text": self.text,
        }


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; one that is ``"compared"`` is shown as three: paper, ours, difference.

    Attributes:
        title: Its heading.
        kind: Which of a cell's numbers it shows.
        unit: The unit of its numbers.
        decimals: How many are shown.
    """

    title: str
    kind: ColumnKind = "compared"
    unit: str = "%"
    decimals: int = 2


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        title: What it is called.
        cells: One for each column.
    """

    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows and columns.

    Attributes:
        title: What it shows.
        row_title: What the rows are.
        columns: The columns.
        rows: The rows.
    """

    title: str
    row_title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row.cells) == len(self.columns), f"{row.title}: {len(row.cells)} cells"

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values that JSON can write."""
        return {
            "title": self.title,
            "row_title": self.row_title,
            "columns": [
                {"title": column.title, "kind": column.kind, "unit": column.unit, "decimals": column.decimals}
                for column in self.columns
            ],
            "rows": [{"title": row.title, "cells": [cell.to_dict() for cell in row.cells]} for row in self.rows],
        }


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure that can be drawn.

    Attributes:
        name: The end of its file name, such as ``"a"``.
        title: What it shows.
        draw: Draws it on an empty figure.
        size: Width and height in inches.
        data: The numbers behind it, as plain values.
    """

    name: str
    title: str
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (7.0, 4.0)
    data: Mapping[str, Any] = field(default_factory=dict)


def picture(title: str, panels: Sequence[Panel], name: str = "", columns: int | None = None) -> Picture:
    """Return panels side by side, or below each other if they are wide, as one picture."""
    columns, size = panel_grid(panels, columns)
    return Picture(
        name=name,
        title=title,
        draw=lambda figure: draw_panels(figure, panels, columns),
        size=size,
        data={"panels": [finite(dataclasses.asdict(panel)) for panel in panels]},
    )


@dataclass(frozen=True, kw_only=True)
class Document:
    """What an item of the paper comes to.

    Attributes:
        id: The item.
        title: What it shows.
        tables: Its tables.
        pictures: Its figures.
        notes: Where the setting differs from the paper's, what failed, and what else a reader must know.
        provenance: What our numbers come from: seeds, images, models with weights, data, streams, command line.
    """

    id: str
    title: str
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain values that JSON can write."""
        return {
            "id": self.id,
            "title": self.title,
            "tables": [table.to_dict() for table in self.tables],
            "pictures": [
                {"name": picture.name, "title": picture.title, "data": dict(picture.data)}
                for picture in self.pictures
            ],
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
        }
