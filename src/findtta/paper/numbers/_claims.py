"""Numbers that the paper gives in its text, and what its own tables say to them."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from findtta.paper.numbers._files import read, unknown
from findtta.paper.numbers._tables import table

#: What a claim can be about two numbers of the tables.
COMPARISONS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "difference": lambda left, right: left - right,
        "ratio": lambda left, right: left / right,
        "gain": lambda left, right: 100 * (left / right - 1),  # in percent of the right one
        "saving": lambda left, right: 100 * (1 - left / right),  # in percent of the right one
    }
)


@dataclass(frozen=True)
class Cells:
    """Some cells of a row.

    Attributes:
        table: The id of the table.
        method: The name of the row.
        columns: The names of the columns.
    """

    table: str
    method: str
    columns: tuple[str, ...]

    def mean(self) -> float:
        """Return the mean of the cells."""
        row = table(self.table).row(self.method)
        return statistics.fmean(row.values[column] for column in self.columns)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A number the paper states.

    Attributes:
        id: What it is called here.
        where: The part of the paper that states it.
        says: What is claimed, in our words.
        unit: ``"points"`` (of accuracy), ``"%"`` (relative) or ``"times"``.
        low: The lowest value of the statement.
        high: The highest value of the statement.
        tolerance: How far off the tables may be: half of the last digit stated.
        compare: How ``left`` and ``right`` are compared, a name in ``COMPARISONS``.
        left: What is compared; None if the tables do not have it.
        right: What it is compared with.
        figure: The figure it is read off; empty if it is about a table.
        note: What else the tables say.
    """

    id: str
    where: str
    says: str
    unit: str
    low: float
    high: float
    tolerance: float = 0.5
    compare: str = "difference"
    left: Cells | None = None
    right: Cells | None = None
    figure: str = ""
    note: str = ""

    def recompute(self) -> float | None:
        """Return what the paper's tables give, or None if they do not have it."""
        if self.left is None or self.right is None:
            return None
        return COMPARISONS[self.compare](self.left.mean(), self.right.mean())

    @property
    def holds(self) -> bool | None:
        """Whether the paper's tables agree, or None if they do not have it."""
        number = self.recompute()
        if number is None:
            return None
        return self.low - self.tolerance <= number <= self.high + self.tolerance


def claims() -> dict[str, Claim]:
    """Return the claims by their ids, in the order of the paper."""
    return {claim.id: claim for claim in _all()}


def claim(id: str) -> Claim:
    """Return a claim by its id.

    >>> claim("shuffle-over-alpha-bn").high, claim("shuffle-over-alpha-bn").holds
    (13, False)
    """
    found = claims()
    if id not in found:
        raise unknown("the paper's claim", id, found)
    return found[id]


@functools.cache
def _all() -> tuple[Claim, ...]:
    return tuple(_claim(name, fields) for name, fields in read("claims").items())


def _claim(name: str, fields: Mapping[str, Any]) -> Claim:
    special = ("stated", "recomputed", "left", "right")
    low, high = fields["stated"]
    return Claim(
        id=name,
        low=low,
        high=high,
        left=_cells(fields.get("left")),
        right=_cells(fields.get("right")),
        **{key: content for key, content in fields.items() if key not in special},
    )


def _cells(fields: Mapping[str, Any] | None) -> Cells | None:
    if fields is None:
        return None
    return Cells(fields["table"], fields["method"], tuple(fields["columns"]))
