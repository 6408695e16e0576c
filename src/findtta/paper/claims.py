"""The numbers that the paper gives in its text, with what our cells say to them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from findtta.paper.document import Cell, Column, Row, Table
from findtta.paper.numbers import COMPARISONS, SIDE_BY_SIDE, Cells, Claim, claims, table

#: Gives the cell of a table of the paper, by table, row and column.
GetCell = Callable[[str, str, str], Cell]


def claims_about(table_id: str) -> list[Claim]:
    """Return the claims about a table; those about several are with the last of them."""
    places = {table_id, *(name for name, parts in SIDE_BY_SIDE.items() if parts[-1] == table_id)}
    return [claim for claim in claims().values() if claim.left is not None and claim.left.table in places]


def claims_table(about: Iterable[Claim], get: GetCell) -> Table | None:
    """Return what claims state beside what the paper's cells and ours give, or None without claims.

    Where not all cells that a claim is about are at hand, the paper's number is of the same ones as ours.

    Args:
        about: The claims.
        get: Gives our cells.
    """
    rows = tuple(Row(f"{claim.says} ({claim.unit})", (_stated(claim), _compared(claim, get))) for claim in about)
    if not rows:
        return None
    columns = (Column(title="stated", kind="text", unit=""), Column(title="by the tables", unit=""))
    title = "What the paper's text says of it, and what the cells at hand give"
    return Table(title=title, row_title="claim", columns=columns, rows=rows)


def _stated(claim: Claim) -> Cell:
    text = f"{claim.low:g}" if claim.low == claim.high else f"{claim.low:g} to {claim.high:g}"
    return Cell(text=text)


def _compared(claim: Claim, get: GetCell) -> Cell:
    assert claim.left is not None
    assert claim.right is not None
    compare = COMPARISONS[claim.compare]
    pairs = list(zip(_measured(claim.left), _measured(claim.right), strict=True))
    cells = [(get(claim.left.table, claim.left.method, one), get(claim.right.table, claim.right.method, other))
             for one, other in pairs]  # fmt: skip
    at_hand = [(left, right) for left, right in cells if left.values and right.values]
    if not at_hand:
        return Cell(paper=claim.recompute())
    seeds = set.intersection(*({*left.values} & {*right.values} for left, right in at_hand))
    values = {
        seed: compare(
            statistics.fmean(left.values[seed] for left, _ in at_hand),
            statistics.fmean(right.values[seed] for _, right in at_hand),
        )
        for seed in sorted(seeds)
    }
    if len(at_hand) == len(cells):
        return Cell(paper=claim.recompute(), values=values)
    paper = [
        (left.paper, right.paper) for left, right in at_hand if left.paper is not None and right.paper is not None
    ]
    return Cell(
        paper=compare(*(statistics.fmean(side) for side in zip(*paper, strict=True))) if paper else None,
        values=values,
    )


def _measured(cells: Cells) -> list[str]:
    """Return the columns that were measured behind some cells: what averages are averages of."""
    columns = table(cells.table).columns
    parts = {column.name: column.average_of or (column.name,) for column in columns}
    return [part for column in cells.columns for part in parts[column]]
