import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import HERE, MARKER, flags, measured, save_weights

from findtta.bench.store import Store
from findtta.cli.main import main

MODEL = ["--models", f"{HERE}:net"]
SMALL = flags()


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    folder = tmp_path / "runs"
    monkeypatch.setenv("FINDTTA_RUNS", str(folder))
    return folder


@pytest.fixture
def grid_file(tmp_path):
    def write(lists: str, settings: str = "") -> str:
        path = tmp_path / "grid.toml"
        path.write_text(
            f"""
            domains = ["brightness", "contrast"]
            data_options = {{ count = 24 }}
            batch_size = 16
            {settings}
            [grid]
            {lists}
            """
        )
        return str(path)

    return write


def times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("*.json")}


def test_a_grid_of_flags_runs_once_and_is_compared(capsys, runs):
    command = ["bench", *MODEL, *SMALL, "--methods", "source,find:alpha=0.5", "--streams", "static,crossmix"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith("4 done, 0 skipped, 0 failed; results in ")
    assert "find" in captured.out
    assert "crossmix" in captured.out
    assert "[4/4] find:alpha=0.5 on crossmix of shapes" in captured.err
    assert {(result.spec["method"], result.spec["stream"]) for result in Store(runs).all() if result.is_done} == {
        (method, stream) for method in ("source", "find") for stream in ("static", "crossmix")
    }
    before = times(runs)
    assert main([*command, "--seeds", "0,1"]) == 0
    assert "4 done, 4 skipped, 0 failed" in capsys.readouterr().out
    assert {name: stamp for name, stamp in times(runs).items() if name in before} == before


def test_a_grid_gives_what_single_runs_give(runs, tmp_path):
    assert main(["bench", *MODEL, *SMALL, "--methods", "tent", "--seed", "3"]) == 0
    assert (
        main(["run", "--model", f"{HERE}:net", *flags(method="tent", seed="3", runs=str(tmp_path / "one"))]) == 0
    )
    (of_grid,), (of_run,) = Store(runs).all(), Store(tmp_path / "one").all()
    assert measured(of_grid) == measured(of_run)


def test_flags_win_over_the_file(grid_file, capsys, runs):
    path = grid_file(f'methods = ["find", "tbn"]\nmodels = ["{HERE}:net"]', "images = 20")
    assert main(["bench", path, "--methods", "source", "--images", "18"]) == 0
    (result,) = Store(runs).all()
    assert (result.spec["method"], result.spec["images"], result.spec["batch_size"]) == ("source", 18, 16)


def test_presets_are_listed(capsys):
    assert main(["bench", "--list"]) == 0
    output = capsys.readouterr().out
    assert "quick" in output
    assert "88" in output  # runs of the preset 'methods'


def test_a_dry_run_computes_nothing(capsys, runs):
    assert main(["bench", *MODEL, *SMALL, "--methods", "source"]) == 0
    before = times(runs)
    capsys.readouterr()
    assert main(["bench", *MODEL, *SMALL, "--methods", "source,tbn", "--dry-run"]) == 0
    output = capsys.readouterr().out
    for state, method in (("done", "source"), ("to do", "tbn")):
        run = f"{method} on crossmix of shapes, {HERE}:net, batch 16, seed 0"
        assert re.search(rf"^{state} +{re.escape(run)}", output, re.MULTILINE)
    assert times(runs) == before


def test_a_run_that_fails_is_recorded_and_the_grid_goes_on(capsys, runs):
    command = ["bench", "--models", f"{HERE}:broken,{HERE}:net", *SMALL, "--methods", "find,tbn"]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "2 done, 0 skipped, 2 failed" in captured.out
    assert "ZeroDivisionError: no luck" in captured.err
    assert sorted(result.status for result in Store(runs).all()) == ["done", "done", "failed", "failed"]
    before = times(runs)
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "0 done, 4 skipped (2 of them failed before), 0 failed" in captured.out
    assert "--retry-failed" in captured.err
    assert times(runs) == before
    assert main([*command, "--retry-failed"]) == 1
    assert "0 done, 2 skipped, 2 failed" in capsys.readouterr().out
    assert sum(times(runs)[name] != stamp for name, stamp in before.items()) == 2


def test_runs_that_cannot_be_planned_are_recorded_until_they_can(grid_file, capsys, runs, tmp_path):
    target = f"{HERE}:net"
    path = grid_file(f'models = ["{target}", {{ model = "{target}", weights = "late.pt" }}]')
    assert main(["bench", path]) == 1
    captured = capsys.readouterr()
    assert "1 done, 0 skipped, 1 failed" in captured.out
    assert "late.pt' does not exist" in captured.err
    assert sorted(result.status for result in Store(runs).all()) == ["done", "failed"]
    save_weights(tmp_path / "late.pt", seed=1)
    assert main(["bench", path]) == 0
    assert "1 done, 1 skipped, 0 failed" in capsys.readouterr().out
    assert [result.status for result in Store(runs).all()] == ["done", "done"]


def test_runs_that_come_to_the_same_are_computed_once(capsys, runs, tmp_path):
    # Two ways to write one stream: the digest shows that they are the same.
    command = ["bench", *MODEL, *SMALL, "--methods", "source", "--streams", "wild,wild:delta=0.1"]
    assert main(command) == 0
    assert "1 done, 0 skipped, 0 failed" in capsys.readouterr().out
    assert len(times(runs)) == 1


def test_ctrl_c_keeps_what_is_finished(capsys, monkeypatch, tmp_path, runs):
    marker = tmp_path / "marker"
    marker.touch()
    monkeypatch.setenv(MARKER, str(marker))
    command = ["bench", "--models", f"{HERE}:net,{HERE}:interrupted", *SMALL, "--methods", "find,tbn"]
    assert main(command) == 130
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "stopped after 2 of 4 runs; run the same command to continue"
    before = times(runs)
    assert len(before) == 2
    marker.unlink()
    assert main(command) == 0
    assert "2 done, 2 skipped, 0 failed" in capsys.readouterr().out
    assert {name: times(runs)[name] for name in before} == before


def bench_process(*arguments: str) -> subprocess.Popen[str]:
    """Start the command in a process group of its own, as a terminal does."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; from findtta.cli.main import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "bench", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_results(runs: Path, count: int) -> None:
    deadline = time.monotonic() + 200
    while len(times(runs)) < count and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_grid_goes_on_where_it_was(capsys, runs):
    command = ["--models", f"{HERE}:slow", *SMALL, "--methods", "source,tbn,find", "--seeds", "0,1,2,3"]
    with bench_process(*command) as process:
        wait_for_results(runs, 3)
        process.kill()
    before = times(runs)
    assert 3 <= len(before) <= 12  # all of them if the machine is so busy that the kill comes late
    assert main(["bench", *command]) == 0
    assert f"{12 - len(before)} done, {len(before)} skipped, 0 failed" in capsys.readouterr().out
    after = times(runs)
    assert len(after) == 12
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_stops_the_workers_too(runs):
    command = ["--models", f"{HERE}:net,{HERE}:slow", *SMALL, "--streams", "crossmix,lifelong:rounds=99"]
    with bench_process(*command, "--executor", "processes", "--workers", "1") as process:
        wait_for_results(runs, 1)
        os.killpg(process.pid, signal.SIGINT)  # the workers get the signal as well
        errors = process.stderr.read()  # until the last process has closed it
    assert process.returncode == 130
    assert errors.splitlines()[-1].endswith("of 4 runs; run the same command to continue")
    assert "Traceback" not in errors
    assert times(runs)


WRONG = {
    "nothing": ([], "grid must be given"),
    "grid": (["quik"], "Did you mean 'quick'"),
    "grid file": (["nowhere/grid.toml"], "there is no file 'nowhere/grid.toml'"),
    "method": ([*MODEL, "--methods", "find,tennt"], "Did you mean 'tent'"),
    "option": ([*MODEL, "--methods", "find:alpa=1"], "Did you mean 'alpha'"),
    "stream": ([*MODEL, "--streams", "crossmx"], "Did you mean 'crossmix'"),
    "data": ([*MODEL, "--data", "shape"], "Did you mean 'shapes'"),
    "missing data folder": ([*MODEL, "--data", "nowhere/at/all"], "'nowhere/at/all' does not exist"),
    "model": (["--models", "resnet-26"], "Did you mean 'resnet26'"),
    "too few samples": ([*MODEL, "--batch-size", "49"], "take a smaller batch_size or more samples"),
    "more domains than there are": ([*MODEL, "--domains", "fog,fgo"], "has no 'fgo@5'"),
    "weights that do not fit": (
        ["--models", "resnet20", "--weights", "{0}/small.pt", "--normalization", "half"],
        "fit",
    ),
    "seeds": ([*MODEL, "--seeds", "0,one"], "--seeds must be whole numbers such as 0,1,2, got 'one'"),
    "no seeds": ([*MODEL, "--seeds", ","], "seeds must be a list with at least one entry"),
    "unwritable folder": ([*MODEL, "--runs", "{0}/file/runs"], "runs must be a folder that can be written to"),
    "workers": ([*MODEL, "--workers", "0"], "workers must be a whole number of at least 1"),
    "workers in series": (
        [*MODEL, "--executor", "serial", "--workers", "2"],
        "workers must be 1 for the executor 'serial'",
    ),
    "address": ([*MODEL, "--executor", "serial", "--ray-address", "auto"], "ray_address is for"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_ends_with_one_message(tmp_path, capsys, mistake):
    save_weights(tmp_path / "small.pt")
    (tmp_path / "file").write_text("")
    arguments, message = WRONG[mistake]
    lists = SMALL[:4] if mistake == "nothing" else SMALL  # the size of batches is a list
    assert main(["bench", *lists, *(part.format(tmp_path) for part in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("findtta: ")
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ('models = ["{net}", "resnet-26"]', "Did you mean 'resnet26'"),
        ('models = ["{net}"]\nmethods = "find', "line"),
        ('models = [{{ model = "resnet20", weights = "no.pt" }}]', "does not exist"),  # nothing is left to run
    ],
)
def test_a_mistake_in_a_file_is_found_before_anything_is_computed(grid_file, capsys, runs, lists, message):
    assert main(["bench", grid_file(lists.format(net=f"{HERE}:net"))]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert times(runs) == {}


def test_a_damaged_result_is_named(capsys, runs):
    command = ["bench", *MODEL, *SMALL]
    assert main([*command, "--methods", "source"]) == 0
    (file,) = runs.glob("*.json")
    file.write_text("{")
    capsys.readouterr()
    assert main([*command, "--methods", "source,tbn"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(file) in captured.err
    assert "Delete it" in captured.err
    assert file.read_text() == "{"
