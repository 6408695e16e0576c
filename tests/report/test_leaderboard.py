"""Boards of all methods on all streams, and the pages made from them."""

import argparse
import json
import runpy
from pathlib import Path

import pytest
from strict_html import parse

from findtta.bench.grid import expand, find
from findtta.bench.store import Store, archive
from findtta.cli import leaderboard as command
from findtta.errors import InputError, OptionError
from findtta.registry import BUILT_IN
from findtta.report import boards, standing
from findtta.report.leaderboard import Costs, accuracies, html, markdown, overview
from findtta.streams import SCENARIOS
from made_results import ATTACK, made, unplanned

ACCURACY = {
    "static": {"source": 50, "tbn": 70, "find": 60},
    "crossmix": {"source": 50, "tbn": 51, "find": 65},
    "label-sorted": {"source": 50, "tbn": 20, "find": 50},
    "clean": {"source": 90, "tbn": 85, "find": 88},
}


def runs(model="net", **changes):
    made_of = {"clean": ("clean",), "static": ("fog@5", "snow@5", "frost@5")}
    return [
        made(
            method,
            accuracy,
            stream=stream,
            model=model,
            images=600,
            **{"domains": made_of.get(stream, ("fog@5", "snow@5"))} | changes,
        )
        for stream, by_method in ACCURACY.items()
        for method, accuracy in by_method.items()
    ]


def test_a_board_has_streams_of_different_domains_and_the_clean_one_last():
    (board,) = boards([*runs(), unplanned()])
    assert board.streams == ["static", "crossmix", "label-sorted", "clean"]
    assert (board.clean, board.drifted) == (["clean"], ["static", "crossmix", "label-sorted"])
    assert board.methods == ["source", "tbn", "find"]
    assert board.accuracy("find", "static").mean == pytest.approx(60)
    assert board.accuracy("find", *board.drifted).mean == pytest.approx(175 / 3)
    assert board.gain("tbn", "label-sorted").mean == pytest.approx(-30)
    assert board.accuracy("lame", "static") is None
    assert board.left_out == 0


def test_who_is_first_and_who_fails_follows_from_paired_intervals():
    (board,) = boards(runs())
    assert board.leaders("static") == ["tbn"]
    assert board.leaders("label-sorted") == ["source", "find"]  # equal on every sample
    assert list(board.failures("tbn")) == ["label-sorted", "clean"]  # the worst first
    assert board.failures("source") == {}
    assert board.worst("tbn")[0] == "label-sorted"
    assert board.worst("find")[0] == "clean"
    assert standing(board, "tbn").startswith(
        "first in `static`; below the source model in `label-sorted` (-30.0 ["
    )
    assert standing(board, "find").startswith("first in `crossmix`; not told from the highest in `label-sorted`;")
    assert "below the source model" not in standing(board, "source")
    assert standing(board, "source").startswith(
        "first in `clean`; highest, but not told from others, in `label-sorted`"
    )


def test_a_method_that_lacks_a_stream_has_no_total_and_says_so():
    lacking = [run for run in runs() if (run.spec["method"], run.spec["stream"]) != ("find", "static")]
    (board,) = boards(lacking)
    assert board.accuracy("find", *board.drifted) is None
    assert board.worst("find") is None
    assert standing(board, "find").endswith("; not run in `static`")
    row = overview([board], Costs()).rows[2]
    drifted, clean, least_gain = row.cells[:3]
    assert drifted is None
    assert clean.mean == pytest.approx(88)
    assert least_gain.text == ""


def test_runs_on_other_samples_failed_and_older_ones_are_left_out():
    other = made("tbn", 99, stream="crossmix", images=80)
    older = made("find", 10, stream="crossmix", images=600, version="0.0.1", started=1e9)
    failed = made("lame", stream="static", images=600, error={"type": "OSError", "message": "gone"})
    (board,) = boards([*runs(), other, older, failed])
    assert board.accuracy("tbn", "crossmix").mean == pytest.approx(51)
    assert board.accuracy("find", "crossmix").mean == pytest.approx(65)
    assert "lame" not in board.methods
    assert board.left_out == 3
    assert any(note.startswith("3 runs are left out") for note in accuracies(board).notes)


def test_seeds_are_taken_together_and_only_if_both_have_them():
    second = made("find", 50, stream="crossmix", images=600, seed=1)
    (board,) = boards([*runs(), second])
    assert board.accuracy("find", "crossmix").mean == pytest.approx(57.5)
    assert board.gain("find", "crossmix") is None  # the source model has one seed


def test_networks_have_boards_of_their_own():
    found = boards([*runs(), *runs("other"), *runs(batch_size=32)])
    assert len(found) == 3
    assert len({board.title for board in found}) == 3
    table = overview(found, Costs())
    assert len(table.columns) == 3 * 2 + 5


def test_the_least_gain_is_that_of_all_networks():
    weaker = [run for run in runs("weaker") if run.spec["method"] != "find" or run.spec["stream"] != "crossmix"]
    weaker += [made("find", 25, stream="crossmix", model="weaker", images=600, domains=("fog@5", "snow@5"))]
    table = overview(boards([*runs(), *weaker]), Costs())
    titles = [column.title for column in table.columns]
    gains = {row.titles[0]: row.cells[titles.index("least gain")].text for row in table.rows}
    assert gains["source"] == ""
    assert gains["tbn"].startswith("-30.0 [")
    assert gains["find"].startswith("-25.0 [")
    assert gains["find"].endswith("] in crossmix, shapes-c, weaker")


def test_the_markdown_page_has_a_row_per_method_and_a_table_per_network():
    costs = Costs("Time: a ratio.", {"find": (1.0, 1.25, 1.5)}, {"find": 1.1})
    text = markdown([*runs(), *runs("other")], costs, command="findtta leaderboard runs")
    assert "3 methods on 4 streams with 2 networks: 24 runs, computed with findtta 0.1.0, torch 2.13.0" in text
    assert "```\nfindtta leaderboard runs\n```" in text
    rows = [line for line in text.splitlines() if line.startswith("| find ")]
    assert len(rows) == 3
    for part in ("58.3 ±", "in clean", "1 + 0", "1.25 \\[1.00, 1.50\\]", "1.10", "no", "yes"):
        assert part in rows[0]
    assert "70.0 ± " in text
    assert "\\*" in next(line for line in text.splitlines() if line.startswith("| tbn") and "70.0" in line)
    assert "crossmix (600 samples of 300 images, 2.0 domains and 10.0 classes per batch)" in text


def test_names_mean_nothing_in_markdown():
    text = markdown([made(name, 10, stream="crossmix", images=600, data="<b>") for name in ("find", "source")])
    assert "<b>" not in text


def test_the_html_page_is_whole_can_be_sorted_and_escapes_names():
    page = parse(html([*runs(), made(f"find{ATTACK}", 10, stream="crossmix", images=600)], title="Friday"))
    assert page.one("h1").text == "Friday"
    first, second = page.all("table")
    assert len(first.all("tr")) == 1 + 4
    values = [cell.attributes.get("data-value") for cell in second.all("td")]
    assert "70" in values
    assert any("best" in (cell.attributes.get("class") or "") for cell in second.all("td"))
    assert not page.all("img")


def test_nothing_to_show_is_an_error():
    with pytest.raises(InputError, match="no run that is done"):
        markdown([unplanned()])


def call(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


def test_the_command_writes_both_pages_from_a_folder_or_an_archive(tmp_path, monkeypatch, capsys):
    store = Store(tmp_path / "runs")
    for run in runs():
        store.put(run)
    archive(store.all(), tmp_path / "runs.jsonl.xz")
    (tmp_path / "costs.json").write_text(json.dumps({"about": "Time.", "time": {"find": [1, 2, 3]}, "memory": {}}))
    monkeypatch.chdir(tmp_path)
    assert call("runs.jsonl.xz", "--costs", "costs.json", "--note", "Commit 1a2b3c.") == 0
    assert capsys.readouterr().out == "12 runs written to leaderboard.md\n12 runs written to leaderboard.html\n"
    page = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    assert "leaderboard runs.jsonl.xz --costs costs.json --note 'Commit 1a2b3c.' -o leaderboard.md lead" in page
    assert "\n\nCommit 1a2b3c.\n\n" in page
    assert '<p class="note">Commit 1a2b3c.</p>' in (tmp_path / "leaderboard.html").read_text(encoding="utf-8")
    assert "2.00 \\[1.00, 3.00\\]" in page
    assert call(tmp_path / "runs", "-o", tmp_path / "here.md", "--method", "find") == 0
    assert str(tmp_path) not in (tmp_path / "here.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "RUNS must be a folder of results or an archive"),
        (["-o", "page.pdf"], r"--output must be files ending in .md or .html, got 'page.pdf'"),
        ([], "there are no results; 'findtta bench leaderboard' makes some"),
        (["--costs", "none.json"], "costs must be a file that benchmarks/method_costs.py wrote"),
    ],
)
def test_what_the_command_refuses(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((OptionError, InputError), match=message):
        call(*words)


def test_the_preset_has_all_methods_and_all_streams():
    specs = expand(find("leaderboard"))
    assert {spec.method for spec in specs} >= set(BUILT_IN)
    assert {spec.stream.partition(":")[0] for spec in specs} == set(SCENARIOS) - {"lifelong"}  # crossmix, twice


def test_the_numbers_of_the_guide_are_ranges_over_networks_and_cope_with_missing_runs():
    guide = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_method_pages.py"))
    second = [
        made("source", 40, stream="crossmix", model="other", images=600),
        made("find", 43, stream="crossmix", model="other", images=600),
        made("tbn", 30, stream="wild", model="other", images=600),
    ]
    about, table = guide["numbers"](boards([*runs(), *second]))
    assert "Networks: shapes-c, net; shapes-c, other." in about
    rows = {cells[0].strip("` "): [cell.strip() for cell in cells[2:]] for cells in split_rows(table)}
    header = rows["stream"]
    crossmix = dict(zip(header, rows["crossmix"], strict=True))
    assert (crossmix["`source`"], crossmix["`find`"]) == ("40.0 to 50.0", "+3.0 to +15.0")
    assert (crossmix["`tbn`"], crossmix["`find-soft`"], crossmix["highest"]) == ("+1.0", "-", "`find`")
    wild = dict(zip(header, rows["wild"], strict=True))
    assert (wild["`source`"], wild["`tbn`"], wild["highest"]) == ("-", "-", "`tbn`")  # no source model
    page = guide["guide"](f"a\n\n{guide['MARKS'][0]} old {guide['MARKS'][1]}\n\nb\n", boards(runs()))
    assert page.startswith("a\n")
    assert page.endswith("\nb\n")
    assert " old " not in page


def split_rows(table):
    return [line.strip("|").split("|") for line in table.splitlines()]
