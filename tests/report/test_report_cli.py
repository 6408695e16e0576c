import argparse

import pytest
from strict_html import parse

from findtta.bench.store import Store
from findtta.cli import report
from findtta.errors import OptionError, UnknownNameError
from made_results import cifar as run


def call(*words):
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def runs(tmp_path):
    store = Store(tmp_path / "runs")
    for method in ("source", "find"):
        for stream in ("crossmix", "random"):
            store.put(run(method, stream=stream, points=3, layers=2))
    store.put(run("tbn", error={"type": "OSError", "message": "gone"}))
    return store.folder


def test_writes_a_page_of_all_runs(runs, tmp_path, capsys):
    target = tmp_path / "page.html"
    assert call(runs, "-o", target, "--title", "Tuesday") == 0
    assert capsys.readouterr().out == f"5 runs written to {target}\n"
    page = parse(target.read_text(encoding="utf-8"))
    assert page.one("h1").text == "Tuesday"
    assert len(page.all("details", class_="run")) == 5


def test_the_folder_and_the_file_have_defaults(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("FINDTTA_RUNS", str(runs))
    monkeypatch.chdir(tmp_path)
    assert call() == 0
    assert "crossmix" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_filters_choose_runs(runs, tmp_path, capsys):
    target = tmp_path / "page.html"
    call(runs, "-o", target, "--method", "find", "--stream", "random", "--status", "done")
    assert capsys.readouterr().out.startswith("1 run written")
    (entry,) = parse(target.read_text(encoding="utf-8")).all("details", class_="run")
    assert (entry.attributes["data-method"], entry.attributes["data-stream"]) == ("find", "random")


def test_the_paper_can_be_asked_for(tmp_path):
    Store(tmp_path).put(run(data="shapes-c (generated)", points=3, layers=2))
    call(tmp_path, "-o", tmp_path / "plain.html")
    call(tmp_path, "-o", tmp_path / "paper.html", "--paper", "cifar100-c")
    assert "paper (CIFAR100-C)" not in (tmp_path / "plain.html").read_text(encoding="utf-8")
    assert "paper (CIFAR100-C)" in (tmp_path / "paper.html").read_text(encoding="utf-8")


def test_an_empty_folder_is_an_error_and_no_page(tmp_path):
    with pytest.raises(OptionError, match="there are no results in"):
        call(tmp_path, "-o", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="RUNS must be a folder"):
        call(tmp_path / "nowhere")


def test_filters_that_nothing_passes_are_errors(runs, tmp_path):
    with pytest.raises(UnknownNameError, match="--method: no run has 'fnd'"):
        call(runs, "-o", tmp_path / "page.html", "--method", "fnd")
    with pytest.raises(OptionError, match="none of the 5 runs matches all filters"):
        call(runs, "-o", tmp_path / "page.html", "--method", "tbn", "--status", "done")
    assert not (tmp_path / "page.html").exists()


def test_files_of_no_use_are_named_but_do_not_stop_the_page(runs, tmp_path, capsys):
    (runs / "broken.json").write_text("{", encoding="utf-8")
    assert call(runs, "-o", tmp_path / "page.html") == 0
    printed = capsys.readouterr()
    assert "broken.json" in printed.err
    assert printed.out.startswith("5 runs written")
