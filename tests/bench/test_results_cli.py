import csv
import importlib.util
import io
import json
import os
import re
import sys

import pytest
from small import spec

from findtta.bench import run
from findtta.bench.store import Store
from findtta.cli.main import main
from made_results import made, unplanned


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "runs")
    for method, accuracy in (("source", 40.0), ("find", 60.0)):
        for seed in range(2):
            store.put(made(method, accuracy + seed, seed=seed, started=1.7e9 + seed))
    store.put(made("tbn", 30.0, stream="wild", stream_settings={"delta": 0.01}, batch_size=16))
    store.put(made("tbn", status="failed"))
    store.put(unplanned())
    return store


@pytest.fixture
def results(store, capsys):
    """Runs the command on the store; gives the exit code, output and errors."""

    def call(*arguments, runs=store.folder):
        code = main(["results", "--runs", str(runs), *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def listed(output: str) -> list[str]:
    return output.split("\n\n")[0].splitlines()[2:]


def test_the_list_has_a_line_per_run(results, store):
    code, output, errors = results()
    assert (code, errors) == (0, "")
    assert len(listed(output)) == 7
    for result in store.all():
        assert result.digest[:8] in output
    line = next(line for line in listed(output) if "wild" in line)
    words = [word.strip() for word in line.split("  ") if word]
    assert words[1:3] == ["tbn", "wild:delta=0.01"]
    assert words[3:] == ["shapes-c (generated)", "net", "0", "16", "80", "30.00", "5.0", "done"]
    assert "7 runs, 2 of them failed (--failed shows why)" in output


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ("--method find", 3),
        ("--method find --method source", 5),
        ("--method find --seed 1", 1),
        ("--stream crossmix", 5),
        ("--stream wild", 1),
        ("--stream wild:delta=0.01", 1),
        ("--data shapes", 6),
        ("--data shapes-c", 6),
        ("--data nowhere", 1),
        ("--model net", 7),
        ("--batch-size 16", 1),
        ("--batch-size 16 --batch-size 64", 6),
        ("--status done", 5),
        ("--status failed", 2),
    ],
)
def test_filters(results, filters, count):
    code, output, _ = results(*filters.split())
    assert code == 0
    assert len(listed(output)) == count


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("--method fnd", "--method: no run has 'fnd'. Did you mean 'find'? There are find, source, tbn."),
        ("--stream gradual", "--stream: no run has 'gradual'."),
        ("--seed 9", "--seed: no run has 9. There are 0, 1."),
        ("--batch-size 1", "--batch-size: no run has 1."),
        ("--model resnet", "--model: no run has 'resnet'."),
        ("--data cifar", "--data: no run has 'cifar'."),
    ],
)
def test_filters_that_name_nothing_are_errors(results, filters, message):
    code, output, errors = results(*filters.split())
    assert (code, output) == (2, "")
    assert errors.startswith("findtta: ")
    assert message in errors


def test_filters_that_exclude_each_other_give_an_empty_list(results):
    assert results("--method", "find", "--stream", "wild") == (
        0,
        "None of the 7 runs matches all filters.\n",
        "",
    )


def test_comparison_tables(results):
    code, output, errors = results("--compare")
    assert (code, errors) == (0, "")
    for row in (r"source +40.50 ± \d", r"find +60.50 ± [\d.]+\*", r"tbn +failed", r"find +\+20.0 \["):
        assert re.search(row, output)
    captions = output.replace("\n", " ")
    assert captions.count("batch size 64;") == captions.count("batch size 16;") == 1
    assert "1 run failed before the run was planned" in output
    _, mixed, _ = results("--compare", "--mix", "--value", "error", "--method", "find", "--method", "tbn")
    assert re.search(r"method +batch size +crossmix", mixed)
    assert mixed.startswith("error in %")
    _, turned, _ = results("--compare", "--rows", "stream", "--columns", "method")
    assert re.search(r"stream +source", turned)


def test_one_run_in_full(results, store):
    digest = made("find", seed=1).digest
    code, output, _ = results("--show", digest[:6])
    assert code == 0
    assert output.startswith(f"{digest}: done\n")
    assert re.search(r"generated +yes\n", output)
    for text in ("options", '{"alpha": 0.8}', "calibration error", "fog@5", "disc", "BatchNorm2d", "groups mean"):
        assert text in output
    code, output, _ = results("--show", made("tbn").digest)
    assert code == 0
    assert "RuntimeError: two\nlines" in output


def test_digests_must_name_one_run(results, store):
    for prefix, message in (("zzzz", "got 'zzzz'"), ("", "got ''")):
        code, output, errors = results("--show", prefix)
        assert (code, output) == (2, "")
        assert message in errors
    store.put(unplanned(digest="unplanned-1"))
    code, _, errors = results("--show", "unplanned")
    assert code == 2
    assert "2 results start with 'unplanned' (unplanned-0, unplanned-1)" in errors


def test_errors_of_failed_runs(results):
    code, output, _ = results("--failed")
    assert code == 0
    assert "  RuntimeError: two\n  lines\n" in output
    assert "unplanned-0: method find, stream static, data nowhere" in output
    assert output.endswith("2 runs failed.\n")
    assert results("--failed", "--method", "source")[1] == "None of the 2 runs failed.\n"


def test_json_is_json_and_nothing_else(results, store):
    listed_runs = json.loads(results("--json")[1])
    assert {row["digest"] for row in listed_runs} == {result.digest for result in store.all()}
    assert len(json.loads(results("--json", "--compare")[1])) == 2
    assert len(json.loads(results("--json", "--failed")[1])) == 2
    shown = json.loads(results("--json", "--show", made("find").digest)[1])
    assert shown == json.loads(store.get(made("find").digest).to_json())
    assert json.loads(results("--json", "--method", "find", "--stream", "wild")[1]) == []


def test_json_has_no_nan(results, store):
    odd = made("find", seed=5, metrics={"nll": float("nan")})
    odd.cost["peak_memory_mb"] = float("nan")
    store.put(odd)
    for arguments in (("--seed", "5"), ("--compare", "--value", "nll"), ("--show", odd.digest)):
        code, output, _ = results("--json", *arguments)
        assert code == 0
        assert json.loads(output, parse_constant=pytest.fail)


def test_csv_export(results, store, tmp_path):
    path = tmp_path / "all, of 'them'.csv"
    code, output, _ = results("--export", path)
    assert (code, output) == (0, f"7 runs written to {path}\n")
    with path.open(newline="") as file:
        rows = {row["digest"]: row for row in csv.DictReader(file)}
    assert len(rows) == 7
    for result in (result for result in store.all() if result.is_done):
        assert float(rows[result.digest]["accuracy"]) == result.accuracy
        assert json.loads(rows[result.digest]["options"]) == result.config["options"]
    assert rows[made("tbn").digest]["failure_message"] == "two\nlines"
    assert rows[made("tbn").digest]["accuracy"] == ""
    assert results("--export", path, "--method", "find")[1].startswith("3 runs")
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".csv"] == [path.name]


def test_an_exported_archive_is_read_like_the_folder(results, store, tmp_path):
    path = tmp_path / "all.jsonl.xz"
    code, output, _ = results("--export", str(path))
    assert (code, output) == (0, f"{len(store.digests())} runs written to {path}\n")
    assert Store(path).digests() == store.digests()


def test_parquet_export(results, store, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "all of 'them'.parquet"
    code, output, _ = results("--export", path)
    assert (code, output) == (0, f"7 runs written to {path}\n")
    table = parquet.read_table(path)
    types = {name: str(table.schema.field(name).type) for name in ("accuracy", "seed", "generated")}
    assert types == {"accuracy": "double", "seed": "int64", "generated": "bool"}
    rows = {row["digest"]: row for row in table.to_pylist()}
    exported = {row["digest"]: row for row in json.loads(results("--json")[1])}
    assert rows == exported
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_parquet_without_the_extra_names_it(results, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "pyarrow" else found(name, *a)
    )
    code, output, errors = results("--export", tmp_path / "all.parquet")
    assert (code, output) == (2, "")
    assert "pip install" in errors
    assert '[results]"' in errors


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_places_that_cannot_be_written_are_clear_errors(results, tmp_path, suffix):
    path = tmp_path / "no" / f"such{suffix}"
    code, output, errors = results("--export", path)
    assert (code, output) == (2, "")
    assert f"--export: {str(path)!r} cannot be written (No such file or directory)" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--export all.xlsx", "--export must be a file ending in .csv, .parquet or .jsonl.xz, got 'all.xlsx'"),
        ("--mix", "--mix belongs to --compare"),
        ("--value nll", "--value belongs to --compare"),
        ("--compare --rows stream --columns stream", "rows and columns must differ"),
        ("--method find --stream wild --export all.csv", "there is no run to export"),
    ],
)
def test_arguments_that_make_no_sense(results, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, errors = results(*arguments.split())
    assert (code, output) == (2, "")
    assert message in errors
    assert not list(tmp_path.glob("*all*"))


@pytest.mark.parametrize(
    "arguments", ["--status gone", "--value speed --compare", "--compare --failed", "--seed x"]
)
def test_usage_errors(results, arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        results(*arguments.split())
    assert "usage: findtta results" in capsys.readouterr().err


def test_damaged_and_foreign_files_are_told_and_hide_nothing(results, store):
    (store.folder / "0123.json").write_text("{")
    old = json.loads(made("find", seed=7).to_json())
    del old["config"]["reset"]
    (store.folder / f"{old['digest']}.json").write_text(json.dumps(old))
    for arguments in ((), ("--compare",), ("--failed",), ("--json",)):
        code, output, errors = results(*arguments)
        assert code == 0
        assert output
        assert "2 of the files hold no result that can be used" in errors
        assert "0123.json: not the result of a run" in errors
        assert f"{old['digest']}.json: not the result of a run: config.reset is missing." in errors
    assert len(listed(results()[1])) == 7
    for digest in (old["digest"], "0123"):
        code, _, errors = results("--show", digest)
        assert code == 2
        assert f"{digest}.json" in errors


def test_an_empty_folder_says_how_to_fill_it(results, tmp_path, capsys, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in ((), ("--compare",), ("--failed",), ("--method", "find")):
        code, output, errors = results(*arguments, runs=empty)
        assert (code, errors) == (0, "")
        assert output.startswith(f"There are no results in {str(empty)!r}: 'findtta run' and 'findtta bench'")
    assert results("--json", runs=empty)[1] == "[]\n"
    assert results("--json", "--compare", runs=empty)[1] == "[]\n"
    assert "no run to export" in results("--export", tmp_path / "all.csv", runs=empty)[2]
    monkeypatch.chdir(empty)
    monkeypatch.delenv("FINDTTA_RUNS", raising=False)
    assert main(["results"]) == 0
    assert "'findtta-runs'" in capsys.readouterr().out
    assert not list(empty.iterdir())


def test_a_folder_that_is_none_is_a_clear_error(results, tmp_path):
    (tmp_path / "file").write_text("")
    for runs, message in ((tmp_path / "nowhere", "does not exist"), (tmp_path / "file", "Not a directory")):
        code, output, errors = results(runs=runs)
        assert (code, output) == (2, "")
        assert message in errors


def test_the_environment_names_the_folder(store, capsys, monkeypatch):
    monkeypatch.setenv("FINDTTA_RUNS", str(store.folder))
    assert main(["results"]) == 0
    assert "7 runs" in capsys.readouterr().out


def test_terminals_without_the_characters_get_others(store, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["results", "--runs", str(store.folder), "--compare"]) == 0
    terminal.seek(0)
    assert "60.50 +- " in terminal.read()


def test_a_reader_that_has_seen_enough_is_no_error(store, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)  # gone before the first line
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["results", "--runs", str(store.folder)]) == 0


def test_digests_are_shown_as_far_as_they_differ(results, store):
    assert listed(results()[1])[0].split()[0] == "unplanne"
    store.put(unplanned(digest="unplanned-ab"))
    store.put(unplanned(digest="unplanned-ac"))
    shown = [line.split()[0] for line in listed(results()[1])]
    assert len(set(shown)) == 9
    assert all(results("--show", digest)[0] == 0 for digest in shown)


def test_real_runs_can_be_listed_compared_shown_and_exported(tmp_path, capsys):
    store = Store(tmp_path / "runs")
    made_runs = [run(spec(method=method)) for method in ("source", "find")]
    for result in made_runs:
        store.put(result)
    arguments = ["results", "--runs", str(store.folder)]
    for more in ([], ["--compare"], ["--show", made_runs[1].digest], ["--export", str(tmp_path / "all.csv")]):
        assert main([*arguments, *more]) == 0
    output = capsys.readouterr().out
    assert f"{made_runs[1].accuracy:.2f}" in output
    assert "groups mean" in output
    assert "2 runs written" in output
