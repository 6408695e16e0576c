"""The parts of the load test that need no server."""

import asyncio
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.errors import MissingExtraError, OptionError
from findtta.loadtest import Killer, LoadOptions, kill_replica, kills, memory
from findtta.loadtest.arrivals import Spread, percentile, poisson
from findtta.loadtest.judge import judge
from findtta.loadtest.memory import Memory, Sample, Watch
from findtta.loadtest.payloads import REJECTED, Payload

TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


@given(TIMES, st.sampled_from([0, 1, 5, 50, 90, 95, 99, 100]))
def test_percentile_is_numpys(values, percent):
    expected = np.percentile(values, percent, method="inverted_cdf")
    assert percentile(sorted(values), percent) == expected


@given(TIMES, st.integers(1, 100))
def test_percentile_is_the_smallest_value_that_covers_its_share(values, percent):
    found = percentile(sorted(values), percent)
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


def test_spread_is_in_milliseconds():
    assert Spread.of([0.004, 0.001, 0.003, 0.002]) == Spread(4, 2.0, 4.0, 4.0, 4.0)
    assert Spread.of([]) is None


def test_arrivals_are_a_poisson_process_of_the_rate():
    gaps = np.diff(poisson(20_000, 50.0, 0), prepend=0.0)
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.03)  # the mark of the exponential distribution
    assert np.array_equal(poisson(10, 50.0, 1), poisson(10, 50.0, 1))
    assert not np.array_equal(poisson(10, 50.0, 1), poisson(10, 50.0, 2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "127.0.0.1:8000"),
        ("requests", 0),
        ("rate", 0.0),
        ("rate", float("nan")),
        ("concurrency", 0),
        ("bad", 1.5),
        ("seed", -1),
        ("per_request", 0),
        ("retries", -1),
        ("timeout", 0.0),
        ("limit", -1.0),
        ("oversize_mb", 0.0),
    ],
)
def test_options_out_of_range_are_named(name, value):
    with pytest.raises(OptionError, match=f"'{name}'"):
        LoadOptions(**{name: value})


def test_every_test_has_an_end():
    assert LoadOptions(limit=5.0).seconds == 5.0
    assert LoadOptions(rate=None).seconds == 600.0
    assert LoadOptions(requests=100, rate=10.0, timeout=20.0, retries=1).seconds == 15 + 40 + 60


GOOD = Payload("png", b"x", "image/png", ("ab",))
BAD = Payload("garbage", b"x", "image/png", (), REJECTED, poisoned=True)
SANE = '{"label": "star", "index": 4, "confidence": 0.5, "digest": "ab"}'


@pytest.mark.parametrize(
    ("payload", "status", "body", "fate"),
    [
        (GOOD, 200, f'{{"request_id": "r", "predictions": [{SANE}]}}', "right"),
        (GOOD, 200, f'{{"request_id": "s", "predictions": [{SANE}]}}', "swapped"),
        (GOOD, 200, f'{{"predictions": [{SANE}]}}', "swapped"),
        (GOOD, 200, f'{{"request_id": "r", "predictions": [{SANE.replace("ab", "cd")}]}}', "swapped"),
        (GOOD, 200, f'{{"request_id": "r", "predictions": [{SANE}, {SANE}]}}', "unexpected"),
        (GOOD, 200, '{"request_id": "r", "predictions": []}', "unexpected"),
        (GOOD, 200, '{"request_id": "r", "predictions": [1]}', "unexpected"),
        (GOOD, 200, '{"request_id": "r", "predictions": [{"label": "star"}]}', "unexpected"),
        (GOOD, 200, f'{{"request_id": "r", "predictions": [{SANE.replace("0.5", "1.5")}]}}', "unexpected"),
        (GOOD, 200, f'{{"request_id": "r", "predictions": [{SANE.replace("0.5", "NaN")}]}}', "unexpected"),
        (GOOD, 200, "[]", "unexpected"),
        (GOOD, 200, "", "unexpected"),
        (GOOD, 204, "", "unexpected"),
        (GOOD, 422, '{"error": {"code": "a", "message": "b"}}', "unexpected"),
        (GOOD, 500, "", "lost"),
        (GOOD, 504, "", "lost"),
        (GOOD, 503, "", "refused"),
        (BAD, 503, "", "refused"),
        (BAD, 422, '{"error": {"code": "a", "message": "b"}}', "right"),
        (BAD, 422, '{"error": "no"}', "unexpected"),
        (BAD, 422, "<html>", "unexpected"),
        (BAD, 404, '{"error": {"code": "a", "message": "b"}}', "unexpected"),
        (BAD, 500, '{"error": {"code": "a", "message": "b"}}', "unexpected"),
        (BAD, 200, f'{{"request_id": "r", "predictions": [{SANE}]}}', "unexpected"),
    ],
)
def test_verdicts(payload, status, body, fate):
    verdict = judge(payload, "r", status, body.encode())
    assert verdict.fate == fate
    assert bool(verdict.why) == (fate != "right")


@given(st.binary(max_size=300), st.sampled_from([200, 400, 422, 500, 503]))
def test_no_answer_is_beyond_judgement(body, status):
    assert judge(GOOD, "r", status, body).fate != "right"


def test_memory_compares_the_first_tenth_with_the_last():
    samples = [Sample(float(at), 100.0 + at, 2) for at in range(100)]
    found = Memory.of([Sample(0.0, 0.0, 0), *samples])
    assert found == Memory(104.5, 194.5, 199.0, 52.25, 97.25, 100)
    assert "+86.1%" in found.text()
    assert Memory.of([Sample(0.0, 0.0, 0)]) is None


def test_memory_of_a_process_tree():
    """A process with a child that holds 50 MB more than its parent."""
    child = "import sys; held = bytearray(b'x') * 50_000_000; print('ready', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        tree = memory.process_tree(process.pid)
        alone, one = memory.resident([process.pid])
        together, both = memory.resident(tree)
        process.stdin.close()
    assert (one, both, len(tree)) == (1, 2, 2)
    assert together - alone > 50
    assert memory.process_tree(process.pid) == []
    assert memory.resident(tree) == (0, 0)


def test_processes_of_ray_are_known_by_their_title():
    title = f"exec -a ray::ServeReplica:findtta:Model {sys.executable} -c 'print(1, flush=True); input()'"
    with subprocess.Popen(["bash", "-c", title], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        found = memory.replica_processes()
        process.stdin.write(b"\n")
    assert process.pid in found
    assert os.getpid() not in found


def test_watching_needs_a_process():
    with pytest.raises(OptionError, match="pid must be that of a running process"):
        Watch.tree(2**30)


class RayError(Exception):
    pass


class FakeRay:
    """As much of Ray as killing needs."""

    def __init__(self, *names: str, namespace: str = "serve") -> None:
        self.alive = [{"name": name, "namespace": namespace} for name in names]
        self.util = SimpleNamespace(list_named_actors=lambda all_namespaces: list(self.alive))
        self.gone: set[str] = set()
        self.exceptions = SimpleNamespace(RayError=RayError)

    def is_initialized(self) -> bool:
        return True

    def get_actor(self, name: str, namespace: str) -> str:
        if name in self.gone:
            raise ValueError(name)
        return name

    def kill(self, actor: str) -> None:
        self.alive = [entry for entry in self.alive if entry["name"] != actor]


REPLICAS = [f"SERVE_REPLICA::findtta#Model#{name}" for name in "abcdef"]
OTHERS = ["SERVE_REPLICA::findtta#Models#x", "SERVE_REPLICA::other#Model#x", "SERVE_CONTROLLER_ACTOR"]


@pytest.fixture
def fake_ray(monkeypatch) -> FakeRay:
    ray = FakeRay(*REPLICAS, *OTHERS)
    monkeypatch.setattr(kills.importlib, "import_module", lambda name: ray)
    return ray


def test_only_replicas_of_the_deployment_are_killed(fake_ray):
    choice = random.Random(0)
    killed = [kill_replica(choice=choice) for _ in range(7)]
    assert sorted(killed[:6]) == REPLICAS
    assert killed[6] is None
    assert [entry["name"] for entry in fake_ray.alive] == OTHERS


def test_replica_that_went_by_itself_is_no_kill(fake_ray):
    fake_ray.gone.update(REPLICAS)
    assert kill_replica() is None


def test_killer_stops_at_its_limit_and_its_seed_decides(fake_ray):
    def victims(seed: int) -> list[str]:
        fake_ray.alive = [{"name": name, "namespace": "serve"} for name in REPLICAS]
        killed: list[str] = []
        asyncio.run(Killer(0.001, limit=3, seed=seed).into(killed))
        return killed

    assert len(set(victims(0))) == 3
    assert victims(1) == victims(1)
    assert len({tuple(victims(seed)) for seed in range(5)}) > 1


def test_killer_wants_somebody_to_kill(fake_ray):
    Killer(1.0).require_replicas()
    with pytest.raises(OptionError, match=r"'Nobody' of app 'findtta'.*findtta#Model#a"):
        Killer(1.0, deployment="Nobody").require_replicas()


@pytest.mark.parametrize(
    ("name", "values"), [("kill_every", {"every": 0.0}), ("kills", {"every": 1.0, "limit": 0})]
)
def test_killer_out_of_range_is_named(name, values):
    with pytest.raises(OptionError, match=name):
        Killer(**values)


def test_without_ray_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(kills.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"findtta\[serve\]"):
        kill_replica()


@pytest.mark.parametrize("error", [ConnectionError("no cluster"), RayError("no token"), RuntimeError()])
def test_without_a_cluster_the_option_is_named(fake_ray, monkeypatch, error):
    def none(**options):
        raise error

    monkeypatch.setattr(fake_ray, "is_initialized", lambda: False)
    fake_ray.init = none
    with pytest.raises(OptionError, match=rf"kill_every needs a Ray cluster.*{str(error) or 'RuntimeError'}"):
        kill_replica()
