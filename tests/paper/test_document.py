# ruff: noqa: RUF001 (the paper writes a Greek alpha)
"""Documents: one small document in every format, and files that are complete or not there."""

import json
import math
import sys

import pytest
from made_paper import load

from findtta.errors import MissingExtraError, OptionError
from findtta.paper import items
from findtta.paper.context import Context
from findtta.paper.document import Document, Picture
from findtta.paper.study import Results
from findtta.tables import Cell, Column, Row, Table

TABLE = Table(
    title="CrossMix, accuracy in %",
    row_titles=("method",),
    columns=(
        Column(title="CIFAR10-C (shapes)", kind="compared"),
        Column(title="s", unit="s", decimals=3),
        Column(title="passes", kind="text", unit=""),
    ),
    rows=(
        Row(("α-BN",), (Cell(paper=62.41, values={0: 60.0, 1: 62.0}), Cell(values={0: 0.25}), Cell(text="1 + 0"))),
        Row(("FIND*",), (Cell(paper=70.75, spread=0.2, values={0: 72.0}), Cell(text="failed"), Cell())),
        Row(("new_one",), (Cell(values={0: 1.0}, text="failed"), Cell(), Cell(text="a|b"))),
    ),
)
DOCUMENT = Document(
    id="small",
    title="Table 1: 50% & more",
    tables=(TABLE,),
    notes=("One seed; the paper has 3.",),
    provenance={
        "command": "findtta paper table1",
        "findtta": "1.2.3",
        "seeds": [0, 1],
        "batch_size": 64,
        "device": "cpu",
        "setups": [
            {
                "data": "shapes-c (generated)",
                "identities": ["feed"],
                "stands_for": "cifar10-c",
                "images_per_domain": [1000],
                "domains": [15],
                "model": "net",
                "weights": "0123456789abcdef",
            }
        ],
        "compositions": {"crossmix": "10 samples"},
        "streams": [{}, {}],
        "runs": ["a"],
        "readings": [],
    },
)

TERMINAL = f"""\
Table 1: 50% & more
===================

CrossMix, accuracy in %

{TABLE.text()}

notes:
- One seed; the paper has 3.

made from:
- findtta 1.2.3; seeds 0, 1; batches of 64; cpu
- shapes-c (generated) (identity feed) for cifar10-c: 1,000 images in each of 15 domains; net,
  weights 0123456789ab
- crossmix: 10 samples
- runs: 1, streams: 2, readings: 0
- command: findtta paper table1"""

MARKDOWN = f"""# Table 1: 50% & more

**CrossMix, accuracy in %**

{TABLE.markdown()}

Notes:

- One seed; the paper has 3.

Made from:

- findtta 1.2.3; seeds 0, 1; batches of 64; cpu
- shapes-c (generated) (identity feed) for cifar10-c: 1,000 images in each of 15 domains; net, weights 0123456789ab
- crossmix: 10 samples
- runs: 1, streams: 2, readings: 0
- command: findtta paper table1
"""

COMMENTS = r"""% Table 1: 50% & more
% Needs \usepackage{booktabs}.
% One seed; the paper has 3.
% findtta 1.2.3; seeds 0, 1; batches of 64; cpu
% shapes-c (generated) (identity feed) for cifar10-c: 1,000 images in each of 15 domains; net, weights 0123456789ab
% crossmix: 10 samples
% runs: 1, streams: 2, readings: 0
% command: findtta paper table1

"""


def test_text_formats():
    assert DOCUMENT.text() == TERMINAL
    assert DOCUMENT.markdown() == MARKDOWN
    assert DOCUMENT.latex() == COMMENTS + TABLE.latex("Table 1: 50% & more. CrossMix, accuracy in %", "small-1")


def test_json():
    written = json.loads(DOCUMENT.json())
    assert written == json.loads(json.dumps(DOCUMENT.to_dict()))
    cell = written["tables"][0]["rows"][0]["cells"][0]
    assert (cell["paper"], cell["mean"], cell["values"]) == (62.41, 61.0, {"0": 60.0, "1": 62.0})
    assert (cell["std"], cell["difference"]) == (pytest.approx(math.sqrt(2)), pytest.approx(-1.41))


def test_json_has_null_for_nan():
    row = Row(("x",), (Cell(values={0: math.nan}),))
    table = Table(title="t", row_titles=("r",), columns=(Column(title="c"),), rows=(row,))
    (row,) = json.loads(Document(id="a", title="a", tables=(table,)).json())["tables"][0]["rows"]
    assert row["cells"][0]["mean"] is None


@pytest.mark.parametrize("id", [*items.groups()["tables"], *items.groups()["controls"]])
def test_every_item_can_be_written_in_every_format(id, tmp_path):
    document = load(id).document(Context(), Results())
    files = document.save(tmp_path)
    assert sorted(file.name for file in files) == [f"{id}.{ending}" for ending in ("json", "md", "tex", "txt")]
    lines = (tmp_path / f"{id}.tex").read_text(encoding="utf-8").splitlines()
    # As many cells in every row as the layout has columns.
    widths = [len(line.split("{")[2].rstrip("}")) for line in lines if line.startswith("\\begin{tabular}")]
    tables = "\n".join(lines).split("\\midrule")[1:]
    assert len(widths) == len(tables) == len(document.tables)
    for width, part in zip(widths, tables, strict=True):
        rows = [line.replace("\\&", "") for line in part.split("\\bottomrule")[0].splitlines() if line]
        assert rows
        assert {row.count("&") + 1 for row in rows} == {width}


def test_files_are_replaced_whole(tmp_path):
    folder = tmp_path / "new" / "folder"
    first = {file.name: file.read_bytes() for file in DOCUMENT.save(folder)}
    (folder / "small.md").write_text("something else")
    assert {file.name: file.read_bytes() for file in DOCUMENT.save(folder)} == first
    assert sorted(file.name for file in folder.iterdir()) == sorted(first)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        DOCUMENT.save(tmp_path / "file")


def picture(name="a"):
    def plot(figure):
        figure.subplots().plot([0, 1], [1, 0], label="line")

    return Picture(name=name, title="a_line", draw=plot, data={"y": [1, 0]})


def test_pictures_are_svg_and_png_and_always_the_same(tmp_path):
    pytest.importorskip("matplotlib")
    document = Document(id="fig", title="Figure 1", pictures=(picture(), picture("")))
    files = {file.name for file in document.save(tmp_path)}
    assert {"fig-a.svg", "fig-a.png", "fig.svg", "fig.png", "fig.json"} <= files
    assert (tmp_path / "fig-a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "fig-a.svg").read_bytes()
    assert picture().render() == picture().render()
    assert r"![a\_line](fig-a.svg)" in (tmp_path / "fig.md").read_text()
    assert json.loads((tmp_path / "fig.json").read_text())["pictures"][0]["data"] == {"y": [1, 0]}


def test_without_matplotlib_tables_can_be_written_and_pictures_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert len(DOCUMENT.save(tmp_path)) == 4
    with pytest.raises(MissingExtraError, match=r"\[report\]"):
        picture().render()
