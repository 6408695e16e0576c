"""The one way from specs to stored results."""

import pytest
from small import HERE, save_weights, spec

from findtta.bench import Planner
from findtta.bench.execute import schedule
from findtta.bench.executors import Serial
from findtta.bench.store import Store
from findtta.errors import InputError, OptionError, UnknownNameError


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.fixture(scope="module")
def planner():
    return Planner()


def test_runs_are_computed_once_stored_and_given_for_every_spec(store, planner):
    specs = [
        spec(stream="wild"),
        spec(stream="wild:delta=0.1"),
        spec(method="source"),
    ]  # the first two are the same
    planned = schedule(specs, store, planner)
    assert len(planned.todo) == 2
    assert planned.pairs() == []
    assert not store.folder.exists()
    computed = list(planned.run(Serial(planner)))
    assert [asked for asked, _ in planned.pairs()] == specs
    assert planned.pairs()[0][1] is planned.pairs()[1][1] is computed[0]
    assert {result.digest for result in store.all() if result.is_done} == {result.digest for result in computed}
    again = schedule(specs, store, planner)
    assert again.todo == []
    assert [result.digest for _, result in again.pairs()] == [result.digest for _, result in planned.pairs()]
    assert len(schedule(specs, store, planner, again=True).todo) == 2


def test_each_result_is_stored_before_it_is_given_and_the_rest_can_be_left(store, planner):
    running = schedule([spec(method="source"), spec(method="tbn")], store, planner).run(Serial(planner))
    first = next(running)
    assert store.look_up(first.digest) == first
    running.close()
    assert len(store.digests()) == 1


def test_without_a_store_nothing_is_kept(planner):
    planned = schedule([spec(method="source")], None, planner)
    (result,) = planned.run(Serial(planner))
    assert planned.pairs() == [(spec(method="source"), result)]


def test_failed_runs_are_tried_again_only_if_asked_for(store, planner):
    broken = [spec(model=f"{HERE}:broken")]
    list(schedule(broken, store, planner).run(Serial(planner)))
    left = schedule(broken, store, planner)
    assert left.todo == []
    assert left.pairs()[0][1].status == "failed"
    assert len(schedule(broken, store, planner, retry_failed=True).todo) == 1


def test_errors_can_be_raised_instead_of_recorded(store, planner):
    planned = schedule([spec(model=f"{HERE}:broken")], store, planner)
    with pytest.raises(ZeroDivisionError):
        list(planned.run(Serial(planner, raise_errors=True)))
    assert store.digests() == []


def test_what_cannot_be_planned_is_raised_returned_or_stored_until_it_can(store, planner, tmp_path):
    late = spec(weights=str(tmp_path / "late.pt"))
    both = [spec(), late]
    with pytest.raises(OptionError, match=r"late\.pt"):
        schedule(both, store, planner)
    returned = schedule(both, store, planner, unplanned="return")
    list(returned.run(Serial(planner)))
    assert [result.status for _, result in returned.pairs()] == ["done", "failed"]
    assert [result.status for result in store.all()] == ["done"]
    kept = schedule(both, store, planner, unplanned="store")
    assert [result.status for result in store.all()] == ["done"]
    list(kept.run(Serial(planner)))
    assert sorted(result.status for result in store.all()) == ["done", "failed"]
    save_weights(tmp_path / "late.pt", seed=1)
    list(schedule(both, store, planner, unplanned="store").run(Serial(planner)))
    assert [result.status for result in store.all()] == ["done", "done"]


def test_unknown_names_and_grids_of_which_nothing_can_run_are_always_errors(store, planner):
    with pytest.raises(UnknownNameError, match="find"):
        schedule([spec(), spec(method="fnd")], store, planner, unplanned="store")
    with pytest.raises(OptionError, match="does not exist"):
        schedule([spec(weights="no.pt")], store, planner, unplanned="store")


def test_a_damaged_result_is_an_error_and_no_run_to_compute_again(store, planner):
    planned = schedule([spec()], store, planner)
    list(planned.run(Serial(planner)))
    store.path(planned.asked[0][1]).write_text("{")
    with pytest.raises(InputError, match="Delete it"):
        schedule([spec()], store, planner)
