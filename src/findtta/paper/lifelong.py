"""The stream that goes over the data several times; the paper does not say which accuracy its tables show."""

from __future__ import annotations

import functools
from collections.abc import Callable

from findtta.bench.result import Result
from findtta.paper import numbers
from findtta.paper.document import Cell, Column, Row, Table
from findtta.paper.items import Context, Results
from findtta.paper.notes import dataset_title
from findtta.paper.printed import AccuracyTable


class LifelongTable(AccuracyTable):
    """Accuracy of the whole stream beside the printed one, then of every round, the last beside it as well."""

    def more_tables(self, context: Context, results: Results) -> list[Table]:
        return [self._rounds(context, results, column) for column in self._at_hand(context)]

    def _rounds(self, context: Context, results: Results, column: numbers.PaperColumn) -> Table:
        rounds = int(column.settings["rounds"])
        setup = self.setup(context, column)
        assert setup is not None
        headings = [Column(title=f"round {number}", kind="ours") for number in range(1, rounds)]
        return Table(
            title=f"{dataset_title(setup)}, accuracy of every round in %, the last one beside the paper's",
            row_title="method",
            columns=(*headings, Column(title=f"round {rounds}")),
            rows=tuple(
                Row(self.row_title(row), tuple(self._round_cells(context, results, row, column, rounds)))
                for row in self.rows(context)
            ),
        )

    def _round_cells(
        self, context: Context, results: Results, row: numbers.PaperRow, column: numbers.PaperColumn, rounds: int
    ) -> list[Cell]:
        specs = self.cell_specs(context, row, column)
        text = self.cell(context, results, row, column).text
        values = [results.values(specs, _of_round(number)) for number in range(rounds)]
        last = Cell(paper=row.values.get(column.name), values=values[-1], text=text)
        return [*(Cell(values=of_round, text=text) for of_round in values[:-1]), last]

    def notes(self, context: Context) -> list[str]:
        return [
            "The first table has the accuracy of the whole stream, the next ones that of every round.",
            *super().notes(context),
        ]


def _of_round(number: int) -> Callable[[Result], float]:
    return functools.partial(_accuracy_of_round, number=number)


def _accuracy_of_round(result: Result, number: int) -> float:
    return result.per_round[number]
