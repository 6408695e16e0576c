"""The first thing a visitor runs: its numbers are those of the runs, and its words follow the numbers."""

import importlib.util
import re

import pytest
import torch

from findtta import demo
from findtta.bench.evaluate import interleaved_ratios
from findtta.bench.store import Store
from findtta.cli.main import main
from made_results import made


def outcome(**accuracies):
    """An outcome in which all methods have 50% everywhere, but for ``method_stream=value``."""
    results = {}
    for method in demo.METHODS:
        for stream in demo.STREAMS:
            value = accuracies.get(f"{method.replace('-', '_')}_{stream}", 50.0)
            results[method, stream] = made(method, value, stream=stream)
    return demo.Outcome(results, dict.fromkeys(demo.METHODS, 1.0), 99.0)


@pytest.mark.slow
def test_the_command_runs_stores_and_does_not_repeat(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "METHODS", ("source", "tbn", "find"))
    monkeypatch.setattr(demo, "_TIMED_BATCHES", 1)
    command = ["demo", "--images", "10", "--runs", str(tmp_path)]
    assert main(command) == 0
    text = capsys.readouterr().out
    results = {(r.spec["method"], r.spec["stream"]): r for r in Store(tmp_path).all()}
    assert len(results) == 9
    for (method, stream), result in results.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{method} "))
        assert f" {result.accuracy:.1f} ± " in line, stream
    assert (tmp_path / "report.html").is_file()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert main(command) == 0
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == before


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_page_needs_an_extra_and_the_table_does_not(tmp_path, capsys, monkeypatch, is_installed):
    found = importlib.util.find_spec
    if not is_installed:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else found(name, *a)
        )
    monkeypatch.setattr(demo, "run", lambda store, **options: outcome(find_crossmix=77.7))
    assert main(["demo", "--runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"77\.7 ± [\d.]+\*", text)
    assert (tmp_path / "report.html").exists() == is_installed
    assert ('[report]"' in text) != is_installed


def test_words_follow_the_numbers():
    good = outcome(find_crossmix=60.0, source_crossmix=51.0, tbn_crossmix=52.5, tbn_static=70.0, find_static=65.0)
    words = good.sentences().replace("\n", " ")
    pattern = r"differs by \+8\.8 \[.*?\] points from the source model, and by \+7\.5 \[.*?\] from statistics"
    assert re.search(pattern, words)
    assert re.search(r"\(static\), it differs by -5\.0 \[-.*?\] from tbn", words)
    bad = outcome(find_crossmix=40.0, find_static=60.0).sentences().replace("\n", " ")
    assert "differs by -10.0 [" in bad
    assert "(static), it differs by +10.0 [" in bad


def test_a_star_marks_a_method_that_is_ahead_of_all_others():
    table = outcome(iabn_static=75.0, find_wild=51.0).table()
    best = [(row.titles[0], cell.mean) for row in table.rows for cell in row.cells if cell.best]
    assert best == [("iabn", 75.0)], "one point of eighty images is no evidence"
    assert table.columns[-1].title == "time per batch"
    assert [row.cells[-1].text for row in table.rows] == ["1.00x"] * len(demo.METHODS)


def test_ratios_compare_on_the_same_batches_in_turn(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr("findtta.bench.evaluate.time.perf_counter", lambda: clock[0])

    def model(name, seconds):
        def call(batch):
            calls.append((name, int(batch[0])))
            # The machine slows down as it goes, and stumbles once; both fall on all alike or do not count.
            clock[0] += seconds * (1 + len(calls)) * (50 if len(calls) == 6 else 1)

        return call

    batches = [torch.tensor([number]) for number in range(9)]
    ratios = interleaved_ratios(
        {"light": model("light", 1.0), "heavy": model("heavy", 3.0)}, batches, baseline="light"
    )
    assert ratios["light"] == 1.0
    assert ratios["heavy"] == pytest.approx(3.0, rel=0.15)
    assert [number for _, number in calls] == [0, 0, *sorted([*range(9), *range(9)])], (
        "one to warm up, then each for all"
    )
    assert calls[2][0] != calls[4][0], "another one begins each time"


def test_an_unwritable_folder_is_told_before_anything_runs(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["demo", "--runs", str(blocked)]) == 2
    assert str(blocked) in capsys.readouterr().err


@pytest.mark.parametrize("seed", [-1])
def test_a_wrong_seed_is_one_clear_message(tmp_path, capsys, seed):
    assert main(["demo", "--seed", str(seed), "--images", "10", "--runs", str(tmp_path)]) == 2
    assert "seed must be" in capsys.readouterr().err
