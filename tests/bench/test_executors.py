import gc
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest
import torch
from small import HERE, MARKER, PARENT, measured, spec

from findtta._processes import threads_each
from findtta.bench import Planner
from findtta.bench.executors import Execution, Processes, Ray, Serial, Task, compute
from findtta.errors import MissingExtraError, OptionError


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file that networks leave when they kill their process, which must not be this one."""
    path = tmp_path / "marker"
    monkeypatch.setenv(MARKER, str(path))
    monkeypatch.setenv(PARENT, str(os.getpid()))
    return path


def tasks(*settings: dict) -> list[Task]:
    planner = Planner()
    return [Task.of(planner.plan(spec(**each))) for each in settings]


def by_digest(results) -> dict:
    return {result.digest: result for result in results}


def test_serial_gives_results_one_after_the_other_and_tells_of_each():
    wanted = tasks({"method": "find"}, {"model": f"{HERE}:broken"}, {"method": "tbn"})
    told = []
    results = list(Serial().execute(wanted, lambda task, done, accuracy: told.append((task, done))))
    assert [result.digest for result in results] == [task.digest for task in wanted]
    assert [result.status for result in results] == ["done", "failed", "done"]
    assert results[1].error == {"type": "ZeroDivisionError", "message": "no luck"}
    assert results[1].config == wanted[1].config
    assert [task for task, done in told if done == 0] == wanted


def test_a_run_that_is_another_one_where_it_is_computed_is_refused():
    (task,) = tasks({"method": "find"})
    planned = Task(task.spec, "elsewhere", {**task.config, "model": {"weights": "others"}})
    result = compute(planned, Planner(), lambda done, accuracy: None)
    assert result.status == "failed"
    assert result.digest == "elsewhere"
    assert "since model differ" in result.error["message"]


@pytest.mark.slow
def test_processes_give_what_serial_gives_and_survive_the_death_of_workers(marker, monkeypatch):
    monkeypatch.setattr("findtta.bench.executors.RETRIES", 1)
    wanted = tasks(
        {"method": "find"},
        {"model": f"{HERE}:killed_once", "method": "tent"},
        {"model": f"{HERE}:killed_always"},
        {"method": "rotta", "stream": "static"},
    )
    results = by_digest(Processes(2, threads=1).execute(wanted))
    assert results.keys() == {task.digest for task in wanted}
    always = results[wanted[2].digest]
    assert always.status == "failed"
    assert "killed by SIGKILL in each of 2 attempts" in always.error["message"]
    assert marker.exists()  # so that here nothing is killed any more
    for task in (wanted[0], wanted[1], wanted[3]):
        (here,) = Serial().execute([task])
        assert measured(results[task.digest]) == measured(here)
        assert results[task.digest].environment["threads"] == 1
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_closing_stops_the_processes_and_leaves_the_environment_alone(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    running = Processes(1).execute(
        tasks({"method": "find"}, {"model": f"{HERE}:slow", "stream": "lifelong:rounds=99"})
    )
    first = next(running)
    assert first.status == "done"
    assert first.environment["threads"] == threads_each(1)
    assert len(multiprocessing.active_children()) == 1
    running.close()
    assert multiprocessing.active_children() == []
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(("workers", "threads"), [(0, None), (1, 0)])
def test_counts_must_be_positive(workers, threads):
    with pytest.raises(OptionError, match="must be a whole number of at least 1, got 0"):
        Execution("processes", workers, threads)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, Serial),
        ({"workers": 1}, Serial),
        ({"workers": 2}, Processes),
        ({"executor": "processes"}, Processes),
        ({"ray_address": "auto"}, Ray),
    ],
    ids=str,
)
def test_the_executor_follows_from_what_is_said(settings, kind):
    if kind is Ray:
        pytest.importorskip("ray")
    assert isinstance(Execution(**settings).make(Planner()), kind)


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr("findtta._processes.usable_cores", lambda: 8)
    assert [threads_each(workers) for workers in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


def test_ray_says_which_extra_it_needs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install .*\[ray\]"'):
        Ray()


@pytest.mark.filterwarnings("default")  # Ray has warnings of its own
@pytest.mark.slow
def test_ray_gives_what_serial_gives_and_computes_again_what_a_killed_worker_lost(marker, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr("findtta.bench.executors.RETRIES", 1)
    monkeypatch.chdir(Path(HERE).parent)
    wanted = tasks(
        {"method": "find"},
        {"model": "small.py:killed_once", "method": "tent"},
        {"model": f"{HERE}:broken"},
        {"model": f"{HERE}:killed_always"},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = by_digest(Ray(workers=2, threads=1).execute(wanted))
        gc.collect()  # Ray leaves files open: it is told here, not in some later test
    assert marker.exists()
    assert not ray.is_initialized()
    for task in wanted[:2]:
        (here,) = Serial().execute([task])
        assert measured(results[task.digest]) == measured(here)
        assert results[task.digest].environment["threads"] == 1
    assert results[wanted[2].digest].error == {"type": "ZeroDivisionError", "message": "no luck"}
    assert results[wanted[3].digest].error["type"] == "WorkerError"


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_an_error_that_says_so():
    pytest.importorskip("ray")
    with pytest.raises(OptionError, match="ray_address: Ray at 'nonsense' cannot be used"):
        list(Ray("nonsense").execute(tasks({"method": "find"})))


def test_tests_compute_with_one_thread():
    assert torch.get_num_threads() == 1  # or results could differ in the last bit
