"""The one table model, and the formats it is written in."""

import json

import numpy as np
import pytest

from findtta.intervals import Scores
from findtta.tables import Cell, Column, Row, Table, escape_latex, escape_markdown, render


@pytest.fixture
def table():
    """Two methods, compared with the paper in one column."""
    rows = (
        Row(("a_b",), (Cell(values={0: 50.0, 1: 52.0}, paper=49.5, spread=0.2), Cell(values={0: 9.5}, best=True))),
        Row(("c",), (Cell(paper=40.0, failed=(0, 1)), None)),
    )
    columns = (Column(title="stream", kind="compared"), Column(title="ms", unit="ms", decimals=1))
    return Table(title="t", row_titles=("method",), columns=columns, rows=rows, seeds=(0, 1))


def test_rows_are_laid_out_with_numbers_to_the_right():
    assert render(("name", "count"), [("a", 5), ("long", 1234), ("none", None)]).splitlines() == [
        "name      count",
        "------  -------",
        "a             5",
        "long       1234",
        "none          -",
    ]
    assert render(("name", "count"), []).splitlines()[0].split() == ["name", "count"]


def test_cells_have_mean_and_standard_deviation_of_their_seeds():
    cell = Cell(values={0: 50.0, 1: 52.0}, paper=49.5)
    assert (cell.mean, cell.difference) == (51.0, 1.5)
    assert cell.std == pytest.approx(2**0.5)
    assert (Cell().mean, Cell(values={0: 1.0}).std, Cell(values={0: 1.0, 1: float("nan")}).std) == (
        None,
        None,
        None,
    )
    assert cell.ours_text(1, 3) == "51.0 ± 1.4 (2 of 3 seeds)"
    assert Cell(failed=(0,)).ours_text(1) == "failed"


def test_differences_leave_out_seeds_with_other_samples():
    def cell(images, *right):
        scores = {seed: Scores(np.arange(images), np.full(images, value)) for seed, value in enumerate(right)}
        return Cell(values={seed: 100.0 * value for seed, value in enumerate(right)}, scores=scores)

    assert cell(4, 1, 0).minus(cell(4, 0, 0)).values == {0: 100.0, 1: 0.0}
    assert cell(4, 1).minus(cell(3, 0)).values == {}
    assert cell(4, 1).minus(Cell(values={0: 60.0})).values == {0: 40.0}


def test_numbers_are_aligned_whatever_follows_them(table):
    lines = Table(
        title="t",
        row_titles=("m",),
        columns=(Column(title="x"),),
        rows=tuple(
            Row((name,), (cell,))
            for name, cell in (
                ("a", Cell(values={0: 100.0, 1: 100.0}, best=True)),
                ("b", Cell(values={0: 5.0})),
                ("c", Cell(values={0: 5.0, 1: 5.0})),
            )
        ),
        seeds=(0, 1),
    ).text()
    column = {line.index(".") for line in lines.splitlines()[2:] if "(" not in line}
    assert len(column) == 1
    assert "5.00 (1 of 2 seeds)" in lines


def test_the_same_table_in_all_formats(table):
    shown = [(column.over, column.title) for column in table.shown()]
    assert shown == [("", "method"), *(("stream", part) for part in ("paper", "ours", "difference")), ("", "ms")]
    for text in (table.text(), table.markdown(), table.latex("c", "l")):
        assert "49.50" in text
        assert "failed" in text
    assert "| a\\_b" in table.markdown()
    assert "\\multicolumn{3}{c}{stream}" in table.latex("caption & more", "main")
    assert "caption \\& more" in table.latex("caption & more", "main")
    document = json.loads(json.dumps(table.to_dict()))
    assert document["rows"][0]["cells"][0]["difference"] == 1.5
    assert document["rows"][1]["cells"][1] is None


def test_special_characters_lose_their_meaning():
    assert escape_markdown("a|b_c*") == "a\\|b\\_c\\*"
    assert escape_latex("50 % of a_b ± 1") == "50 \\% of a\\_b $\\pm$ 1"
    assert escape_latex("-1.5") == "$-$1.5"


def test_rows_must_fit_the_columns():
    with pytest.raises(AssertionError):
        Table(title="t", row_titles=("m",), columns=(), rows=(Row(("a",), (None,)),))
