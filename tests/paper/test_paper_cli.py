"""The command: what it accepts, what it runs, what it writes, and what it says when something is wrong."""

import argparse
import json
import shlex
import shutil
from pathlib import Path

import pytest
from made_paper import HERE, NET

from findtta.bench.store import Store
from findtta.cli import paper
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError
from findtta.paper import items

SMALL = ["--model", NET, "--data-option", "count=24", "--batch-size", "16", "--seeds", "0"]


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    folder = tmp_path / "runs"
    monkeypatch.setenv("FINDTTA_RUNS", str(folder))
    return folder


def command(*words):
    parser = argparse.ArgumentParser()
    paper.add_arguments(parser)
    return paper.run(parser.parse_args([str(word) for word in words]))


def test_the_list_has_every_item(capsys):
    assert command("--list") == 0
    words = capsys.readouterr().out.split()
    assert set(items.all_items()) <= set(words)
    assert {"table1", "table13"} <= {word.rstrip(",") for word in words}


def test_an_item_is_run_written_and_not_run_again(capsys, runs):
    words = ["table7", *SMALL, "--methods", "source,find"]
    assert command(*words) == 0
    printed = capsys.readouterr().out
    assert "ANOTHER DATASET: shapes-c (generated) stands in for CIFAR10-C." in printed
    assert "One seed; the paper has 3." in printed
    assert "command: findtta paper table7 --model made_paper.py:net --data-option" in printed
    stamps = {file.name: file.stat().st_mtime_ns for file in runs.glob("*.json")}
    assert len(stamps) == 2
    document = json.loads((runs / "paper" / "resnet26.json").read_text(encoding="utf-8"))
    rows = {row["titles"][0]: row["cells"][0] for row in document["tables"][0]["rows"]}
    accuracies = {result.spec["method"]: result.accuracy for result in Store(runs).all() if result.is_done}
    assert rows["Source"]["mean"] == accuracies["source"]
    assert rows["FIND"]["difference"] == pytest.approx(accuracies["find"] - 68.21)
    assert command(*words, "-o", runs / "elsewhere") == 0
    assert {file.name: file.stat().st_mtime_ns for file in runs.glob("*.json")} == stamps
    assert (runs / "elsewhere" / "resnet26.tex").exists()


def test_a_model_that_fails_gives_a_note_and_no_crash(capsys, runs):
    words = [
        "table7",
        *SMALL,
        "--methods",
        "source",
        "--model",
        f"{HERE}:broken",
        "--as",
        "cifar100-c",
        "--as",
        "cifar10-c",
    ]
    assert command(*words) == 1
    captured = capsys.readouterr()
    assert "failed" in captured.out
    assert "ZeroDivisionError: no luck" in captured.out
    assert "1 of 2 runs and measurements failed" in captured.err
    rows = json.loads((runs / "paper" / "resnet26.json").read_text(encoding="utf-8"))["tables"][0]["rows"]
    cells = dict(zip(("cifar10-c", "cifar100-c"), rows[0]["cells"], strict=False))
    assert cells["cifar10-c"]["text"] == "failed"
    assert cells["cifar100-c"]["mean"] is not None


def test_a_quick_look_says_so(capsys):
    assert command("ablation", "--quick", "--images", "5", "--model", NET, "--data-option", "count=8") == 0
    printed = capsys.readouterr().out
    assert "Rough numbers (--quick)" in printed
    assert "5 images per domain" in printed


def test_a_file_of_setups(tmp_path, capsys):
    (tmp_path / "net.py").write_text("from made_paper import net\n")
    path = tmp_path / "setups.toml"
    path.write_text(
        """
        [[setup]]
        as = "cifar10-c"
        data = "shapes"
        data_options = { count = 24 }
        model = "net.py:net"
        images = 20

        [[setup]]
        as = "imagenet-c"
        data_options = { count = 20 }
        model = "net.py:net"
        network = "ResNet-50"
        """
    )
    assert command("ablation", "--setup", path, "--batch-size", "16", "--seeds", "3", "--methods", "source") == 0
    printed = capsys.readouterr().out
    assert "CIFAR10-C (shapes)" in printed
    assert "ImageNet-C (shapes)" in printed
    assert "No setup stands for CIFAR100-C with ResNet-50" in printed


def test_an_interrupt_is_a_pause(capsys, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "gather", interrupt)
    assert command("table7", *SMALL) == 130
    assert "run the same command to continue" in capsys.readouterr().err


def test_a_dry_run_counts(capsys, runs):
    assert command("table1", "efficiency", "--dry-run") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["main-resnet50", "102", "0"] in lines
    assert ["efficiency", "0", "14"] in lines
    assert not runs.exists()


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ([], OptionError, "item must be given"),
        (["tabel1"], UnknownNameError, "Did you mean 'table1'"),
        (["table1", "--methods", "fnd"], UnknownNameError, "Did you mean 'find'"),
        (["table1", "--seeds", "a"], OptionError, "--seeds must be whole numbers"),
        (["table1", "--seeds", ","], OptionError, "seeds must be at least one"),
        (["table1", "--as", "cifar"], UnknownNameError, "as must be one of"),
        (["table1", "--data", "folder", "--model", "resnet20"], OptionError, "--as must say"),
        (["table1", "--data", "cifar10-c"], OptionError, "--model must be given with --data cifar10-c"),
        (["table1", "--data", "cifar10-c", "--model", "resnet20"], FindTTAError, "cifar10-c"),
        (["table1", "--model", "resent26"], UnknownNameError, "Did you mean 'resnet26'"),
        (
            ["table1", *["--data", "a"] * 3, *["--model", "b"] * 2],
            OptionError,
            "--model must be given once or 3 times",
        ),
        (["table1", "--setup", "nowhere.toml"], InputError, "cannot be read"),
        (["table1", "--setup", "x.toml", "--as", "cifar10-c"], OptionError, "--as must not be given"),
        (["table1", "--workers", "2", "--executor", "serial"], OptionError, "workers"),
    ],
)
def test_mistakes_are_told_before_anything_is_run(words, error, message, runs):
    with pytest.raises(error, match=message):
        command(*words)
    assert not list(runs.glob("*.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[setup]", "must be TOML"),
        ("[setup]\ndata = 'x'", r"tables \[\[setup\]\]"),
        ("[[setup]]\ndata = 'cifar10-c'\nmodle = 'x'", "Did you mean 'model'"),
        ("[[setup]]\nas = 'imagenet'", "Did you mean 'imagenet-c'"),
        ("[[setup]]\nimages_of = { vdia = 9 }", "images_of must be one of .*'vdia'"),
        ("[[setup]]\nimages_of = { vida = 0 }", "images_of.vida must be"),
        ('[[setup]]\nprecision = "bf16"', "precision must be 'float32' or 'bfloat16', got 'bf16'"),
        ("[[setup]]\ncompile = 1", "compile must be"),
    ],
)
def test_mistakes_in_a_file_of_setups_name_the_file(tmp_path, content, message):
    path = tmp_path / "setups.toml"
    path.write_text(content)
    with pytest.raises(FindTTAError, match=rf"setups\.toml.*{message}"):
        command("table1", "--setup", path)


def test_a_page_of_stored_runs_says_what_holds(capsys, runs, tmp_path, monkeypatch):
    words = ["table7", "efficiency", *SMALL, "--methods", "source,tbn,find"]
    assert command("table7", *words[2:]) == 0
    capsys.readouterr()
    monkeypatch.setattr(paper, "gather", lambda *arguments, **settings: pytest.fail("something is computed"))
    page = tmp_path / "RESULTS.md"
    assert command(*words, "--stored", "--write", page, "-o", tmp_path / "figures") == 0
    text = page.read_text(encoding="utf-8")
    accuracy = {result.spec["method"]: result.accuracy for result in Store(runs).all()}
    other = max(("source", "tbn"), key=lambda name: accuracy[name])
    assert f"{accuracy['find'] - accuracy[other]:+.1f} \\[" in text
    assert text.count("findtta paper") == 1
    assert f"--stored -o {tmp_path / 'figures'} --write {page}" in text
    assert "in the place of every ResNet of the paper; all images per domain; batches of 16; seed 0." in text
    assert "## Table 7" in text
    assert "Efficiency" not in text  # nothing of it is stored
    assert f"{accuracy['find']:.2f}" in text
    assert "- *Not run*: 1 of 2. CIFAR100-C, ResNet-26, CrossMix." in text
    assert command(*words, "--stored", "--write", page, "--title", "A page", "--note", "See [more](more.md).") == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# A page\n")
    assert "\n\nSee [more](more.md).\n\n" in text
    assert f"--title 'A page' --note 'See [more](more.md).' --write {page}" in text


def test_a_page_of_nothing_is_refused(runs, tmp_path):
    with pytest.raises(OptionError, match="no results of these items"):
        command("table7", *SMALL, "--stored", "--write", tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize("name", ["RESULTS.md", *(f"docs/results-{name}.md" for name in ("more", "published"))])
def test_a_page_of_results_is_what_its_command_writes(name, tmp_path, monkeypatch):
    root = Path(__file__).parents[2]
    shutil.copytree(root / "docs" / "results", tmp_path / "docs" / "results")
    monkeypatch.chdir(tmp_path)
    text = (root / name).read_text(encoding="utf-8")
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("findtta paper ")))[2:]
    assert words[-2:] == ["--write", name]
    assert command(*words) == 0
    assert (tmp_path / name).read_text(encoding="utf-8") == text
