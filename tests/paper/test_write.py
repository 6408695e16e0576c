# ruff: noqa: RUF001 (the paper writes a Greek alpha)
"""Documents as text: the same small one in every format, escapes, and files that are whole or not there."""

import json
import math
import sys

import pytest

from findtta.errors import MissingExtraError, OptionError
from findtta.paper import registry
from findtta.paper.document import Cell, Column, Document, Picture, Row, Table
from findtta.paper.items import Context, Results
from findtta.paper.write import draw, latex, markdown, save, shown_columns, terminal, to_json

TABLE = Table(
    title="CrossMix, accuracy in %",
    row_title="method",
    columns=(
        Column(title="CIFAR10-C (shapes)"),
        Column(title="s", kind="ours", unit="s", decimals=3),
        Column(title="passes", kind="text", unit=""),
    ),
    rows=(
        Row("α-BN", (Cell(paper=62.41, values={0: 60.0, 1: 62.0}), Cell(values={0: 0.25}), Cell(text="1 + 0"))),
        Row("FIND*", (Cell(paper=70.75, spread=0.2, values={0: 72.0}), Cell(text="failed"), Cell())),
        Row("new_one", (Cell(values={0: 1.0}, text="failed"), Cell(), Cell(text="a|b"))),
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
        "streams": [{}, {}],
        "runs": ["a"],
        "readings": [],
    },
)

TERMINAL = """\
Table 1: 50% & more
===================

CrossMix, accuracy in %

                       CIFAR10-C (shapes)
method         paper                   ours  difference       s  passes
-------  -----------  ---------------------  ----------  ------  ------
α-BN           62.41           61.00 ± 1.41       -1.41   0.250  1 + 0
FIND*    70.75 ± 0.2                  72.00       +1.25  failed  -
new_one            -  1.00 (in part failed)           -       -  a|b

notes:
- One seed; the paper has 3.

made from:
- findtta 1.2.3; seeds 0, 1; batches of 64; cpu
- shapes-c (generated) (identity feed) for cifar10-c: 1,000 images in each of 15 domains; net,
  weights 0123456789ab
- runs: 1, streams: 2, readings: 0
- command: findtta paper table1"""

MARKDOWN = r"""# Table 1: 50% & more

**CrossMix, accuracy in %**

| method | CIFAR10-C (shapes): paper | CIFAR10-C (shapes): ours | CIFAR10-C (shapes): difference | s | passes |
| --- | ---: | ---: | ---: | ---: | --- |
| α-BN | 62.41 | 61.00 ± 1.41 | -1.41 | 0.250 | 1 + 0 |
| FIND\* | 70.75 ± 0.2 | 72.00 | +1.25 | failed | - |
| new\_one | - | 1.00 (in part failed) | - | - | a\|b |

Notes:

- One seed; the paper has 3.

Made from:

- findtta 1.2.3; seeds 0, 1; batches of 64; cpu
- shapes-c (generated) (identity feed) for cifar10-c: 1,000 images in each of 15 domains; net, weights 0123456789ab
- runs: 1, streams: 2, readings: 0
- command: findtta paper table1
"""

LATEX = r"""% Table 1: 50% & more
% Needs \usepackage{booktabs}.
% One seed; the paper has 3.
% findtta 1.2.3; seeds 0, 1; batches of 64; cpu
% shapes-c (generated) (identity feed) for cifar10-c: 1,000 images in each of 15 domains; net, weights 0123456789ab
% runs: 1, streams: 2, readings: 0
% command: findtta paper table1

\begin{table}
\centering
\caption{Table 1: 50\% \& more. CrossMix, accuracy in \%}
\label{tab:small-1}
\begin{tabular}{lrrrrl}
\toprule
 & \multicolumn{3}{c}{CIFAR10-C (shapes)} & \multicolumn{1}{c}{} & \multicolumn{1}{c}{} \\
\cmidrule(lr){2-4}
method & paper & ours & difference & s & passes \\
\midrule
$\alpha$-BN & 62.41 & 61.00 $\pm$ 1.41 & $-$1.41 & 0.250 & 1 + 0 \\
FIND* & 70.75 $\pm$ 0.2 & 72.00 & $+$1.25 & failed & - \\
new\_one & - & 1.00 (in part failed) & - & - & a|b \\
\bottomrule
\end{tabular}
\end{table}
"""


def test_terminal():
    assert terminal(DOCUMENT) == TERMINAL


def test_markdown():
    assert markdown(DOCUMENT) == MARKDOWN


def test_latex():
    assert latex(DOCUMENT) == LATEX


def test_json():
    written = json.loads(to_json(DOCUMENT))
    assert written == DOCUMENT.to_dict()
    assert written["tables"][0]["rows"][0]["cells"][0] == {
        "paper": 62.41,
        "spread": None,
        "ours": 61.0,
        "deviation": pytest.approx(math.sqrt(2)),
        "difference": pytest.approx(-1.41),
        "values": {"0": 60.0, "1": 62.0},
        "text": "",
    }


def test_json_has_no_word_for_nan():
    table = Table(
        title="t", row_title="r", columns=(Column(title="c"),), rows=(Row("x", (Cell(values={0: math.nan}),)),)
    )
    (row,) = json.loads(to_json(Document(id="a", title="a", tables=(table,))))["tables"][0]["rows"]
    assert row["cells"][0]["ours"] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 5% of $3 #1 {x}", r"a\_b \& 5\% of \$3 \#1 \{x\}"),
        ("~/x^2\\n <b>", r"\textasciitilde{}/x\textasciicircum{}2\textbackslash{}n \textless{}b\textgreater{}"),
        ("-1.5", "$-$1.5"),
        ("+1.5", "$+$1.5"),
        ("- none", "- none"),
    ],
)
def test_latex_escapes(text, expected):
    table = Table(title="t", row_title=text, columns=(), rows=())
    assert f"\n{expected} \\\\\n\\midrule" in latex(Document(id="a", title="a", tables=(table,)))


def test_the_roles_of_columns_are_known():
    assert [(column.over, column.title, column.role) for column in shown_columns(TABLE)] == [
        ("CIFAR10-C (shapes)", "paper", "paper"),
        ("CIFAR10-C (shapes)", "ours", "ours"),
        ("CIFAR10-C (shapes)", "difference", "difference"),
        ("", "s", "ours"),
        ("", "passes", "text"),
    ]


@pytest.mark.parametrize("id", [*registry.TABLES, *registry.CONTROLS])
def test_every_item_can_be_written_in_every_format(id, tmp_path):
    document = registry.load(id).document(Context(), Results())
    files = save(document, tmp_path)
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
    first = {file.name: file.read_bytes() for file in save(DOCUMENT, folder)}
    (folder / "small.md").write_text("something else")
    assert {file.name: file.read_bytes() for file in save(DOCUMENT, folder)} == first
    assert sorted(file.name for file in folder.iterdir()) == sorted(first)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        save(DOCUMENT, tmp_path / "file")


def picture(name="a"):
    def plot(figure):
        figure.subplots().plot([0, 1], [1, 0], label="line")

    return Picture(name=name, title="a_line", draw=plot, data={"y": [1, 0]})


def test_pictures_are_svg_and_png_and_always_the_same(tmp_path):
    pytest.importorskip("matplotlib")
    document = Document(id="fig", title="Figure 1", pictures=(picture(), picture("")))
    files = {file.name for file in save(document, tmp_path)}
    assert {"fig-a.svg", "fig-a.png", "fig.svg", "fig.png", "fig.json"} <= files
    assert (tmp_path / "fig-a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "fig-a.svg").read_bytes()
    assert draw(picture()) == draw(picture())
    assert r"![a\_line](fig-a.svg)" in (tmp_path / "fig.md").read_text()
    assert json.loads((tmp_path / "fig.json").read_text())["pictures"][0]["data"] == {"y": [1, 0]}


def test_without_matplotlib_tables_can_be_written_and_pictures_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert len(save(DOCUMENT, tmp_path)) == 4
    with pytest.raises(MissingExtraError, match=r"findtta\[report\]"):
        draw(picture())
