"""What the groups are worth: FIND with random groups of the same sizes, with single images, with no groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from findtta.bench.spec import RunSpec
from findtta.paper import numbers
from findtta.paper.controls.base import NETWORK, Control
from findtta.paper.document import Cell, Column, Row, Table
from findtta.paper.items import Context, Results, Setup
from findtta.paper.notes import dataset_title
from findtta.paper.numbers import claim
from findtta.paper.printed import FAILED, stream_of

_STREAMS = {"crossmix": "CrossMix", "random": "Random", "static": "Static"}
#: The rows: what they are called, the row of the paper's table if it has one, method, and options by seed.
_ROWS: Mapping[str, tuple[str | None, str, Callable[[int], dict[str, Any]]]] = {
    "Source": ("source", "source", lambda seed: {}),
    "TBN": ("tbn", "tbn", lambda seed: {}),
    "whole batch, alpha as FIND": (None, "find", lambda seed: {"partitioner": "none"}),
    "single images, alpha as FIND": (None, "find", lambda seed: {"partitioner": "instance"}),
    "random groups, sizes as FIND": (
        None,
        "find",
        lambda seed: {"partitioner": "random", "partitioner_options": {"seed": seed}},
    ),
    "FIND": ("find", "find", lambda seed: {}),
}
_FIND = "FIND"


class Groupings(Control):
    """FIND with other groups."""

    id = "control-groupings"
    title = "FIND with random groups of the same sizes, with single images and with the whole batch"

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for setup in context.for_network(NETWORK)
            for stream in _STREAMS
            for row in _ROWS
            for spec in self._specs(context, setup, stream, row)
        ]

    def claims(self) -> list[str]:
        over = claim("crossmix-over-deyo")
        return [
            f"FIND is {over.low:g} {over.unit} {over.says} ({over.where}), and owes it to groups of like features."
        ]

    def notes(self, context: Context) -> list[str]:
        return [
            "What FIND has over random groups it owes to which images share a group; what random groups have over "
            "the whole batch they owe to small groups alone; single images are the smallest.",
        ]

    def tables(self, context: Context, results: Results) -> list[Table]:
        tables = []
        for setup in context.for_network(NETWORK):
            cells = {
                row: [self._cell(context, results, setup, stream, row) for stream in _STREAMS] for row in _ROWS
            }
            tables.append(
                Table(
                    title=f"{dataset_title(setup)}, accuracy in %",
                    row_title="groups",
                    columns=tuple(
                        Column(title=title, kind="compared" if stream != "static" else "ours")
                        for stream, title in _STREAMS.items()
                    ),
                    rows=tuple(Row(name, tuple(of_row)) for name, of_row in cells.items()),
                )
            )
            tables.append(
                Table(
                    title=f"{dataset_title(setup)}, what FIND has over each, in points",
                    row_title="FIND over",
                    columns=tuple(Column(title=title, kind="ours", unit="points") for title in _STREAMS.values()),
                    rows=tuple(
                        Row(name, tuple(minus(*pair) for pair in zip(cells[_FIND], of_row, strict=True)))
                        for name, of_row in cells.items()
                        if name != _FIND
                    ),
                )
            )
        return tables

    def _specs(self, context: Context, setup: Setup, stream: str, row: str) -> list[RunSpec]:
        _, method, options = _ROWS[row]
        return [
            context.spec(
                setup, method=method, options=options(seed), stream=stream_of({"scenario": stream}), seed=seed
            )
            for seed in context.seeds
        ]

    def _cell(self, context: Context, results: Results, setup: Setup, stream: str, row: str) -> Cell:
        specs = self._specs(context, setup, stream, row)
        printed = _ROWS[row][0]
        paper = None
        if printed is not None and stream != "static":
            paper = numbers.value("main-resnet50", printed, f"{stream}/{setup.stands_for}")
        return Cell(paper=paper, values=results.values(specs), text=FAILED if results.failed(specs) else "")


def minus(left: Cell, right: Cell) -> Cell:
    """Return the difference of two cells, seed by seed."""
    seeds = [seed for seed in left.values if seed in right.values]
    return Cell(
        values={seed: left.values[seed] - right.values[seed] for seed in seeds}, text=left.text or right.text
    )


ITEM = Groupings()
