"""What the load test finds out about servers that misbehave in known ways."""

import argparse
import asyncio
import json
import os
import threading
from collections import Counter

import pytest

pytest.importorskip("aiohttp")

from misbehaving_server import Stub, answer, error, hang_up

from findtta.cli import loadtest
from findtta.errors import InputError, MissingExtraError
from findtta.loadtest import LoadOptions, client, drive, run
from findtta.loadtest.memory import Watch
from findtta.loadtest.payloads import digest

RATE = 2000.0


def load(stub: Stub, watch: Watch | None = None, **options):
    async def scenario():
        async with stub.serve() as url:
            return await drive(LoadOptions(url=url, **{"rate": RATE, "retries": 0, **options}), watch=watch)

    return asyncio.run(scenario())


def counts(outcome) -> dict[str, int]:
    return {name: count for name, count in outcome.counts.items() if count}


def on(numbers, action):
    """Misbehave on the requests with these numbers only."""

    async def misbehave(stub, request, request_id):
        if int(request_id.rpartition("-")[2]) in numbers:
            return await action(stub, request, request_id)
        return None

    return misbehave


@pytest.mark.parametrize("per_request", [1, 3])
@pytest.mark.parametrize("rate", [RATE, None])
def test_honest_server_passes_and_gets_every_image_once(rate, per_request):
    stub = Stub()
    outcome = load(stub, requests=60, rate=rate, per_request=per_request)
    assert outcome.passed
    assert counts(outcome) == {"right": 60}
    assert outcome.statuses == {"200": 60}
    assert len(set(stub.ids)) == len(stub.ids) == 60
    assert len(set(stub.digests)) == len(stub.digests) == 60 * per_request
    assert outcome.latency.count == 60
    assert outcome.images_per_second == pytest.approx(per_request * outcome.throughput)


def test_poisoned_inputs_are_all_sent_and_rightly_answered():
    outcome = load(Stub(), requests=48, bad=1.0, oversize_mb=2, rate=200)
    assert outcome.examples == ()
    assert counts(outcome) == {"right": 48}
    assert {kind: found["right"] for kind, found in outcome.poisons.items()} == dict.fromkeys(outcome.poisons, 3)
    assert len(outcome.poisons) == 16
    assert outcome.latency is None
    assert outcome.poisoned_latency.count == 48


@pytest.mark.parametrize(("silent", "fate"), [(False, "right"), (True, "lost")])
def test_too_large_a_body_may_be_hung_up_on_but_not_ignored(silent, fate):
    async def drop_large(stub, request, request_id):
        if (request.content_length or 0) < 1_500_000:
            return None
        if silent:
            await asyncio.sleep(30)
        return await hang_up(request)

    outcome = load(Stub(drop_large), requests=16, bad=1.0, oversize_mb=2, rate=200, timeout=1.0)
    assert outcome.poisons["oversize"] == {fate: 1}
    assert counts(outcome) == ({"right": 16} if fate == "right" else {"right": 15, "lost": 1})


def test_server_that_takes_everything_is_caught():
    async def takes_all(stub, request, request_id):
        return answer(request_id, ["0" * 16])

    outcome = load(Stub(takes_all), requests=16, bad=1.0, oversize_mb=2, rate=200)
    # Ten kinds must be refused; the other six must get their own digest. A body that nobody reads may break.
    assert outcome.counts["swapped"] == 6
    assert outcome.counts["unexpected"] in (9, 10)
    assert outcome.counts["unexpected"] + outcome.counts["right"] == 10
    assert not outcome.passed


def test_swapped_answers_are_found_by_digest():
    """Two requests wait for each other, and each gets the other's predictions under its own name."""
    meeting: list = []

    async def swap(stub, request, request_id):
        body = await request.read()
        mine = asyncio.get_running_loop().create_future()
        meeting.append((digest(body), mine))
        if len(meeting) == 2:
            (first, first_waits), (second, second_waits) = meeting
            first_waits.set_result(second)
            second_waits.set_result(first)
        return answer(request_id, [await mine])

    outcome = load(Stub(on({5, 9}, swap)), requests=20)
    assert counts(outcome) == {"right": 18, "swapped": 2}
    assert not outcome.passed
    assert all("digest must be" in example for example in outcome.examples)


def test_swapped_answers_are_found_by_request_id():
    async def misname(stub, request, request_id):
        return answer("somebody-else", [])

    outcome = load(Stub(on({3}, misname)), requests=10)
    assert counts(outcome) == {"right": 9, "swapped": 1}


def test_images_of_one_request_that_change_places_are_swapped():
    async def reverse(stub, request, request_id):
        honest = json.loads((await stub.honest(request, request_id)).text)
        return answer(request_id, [prediction["digest"] for prediction in honest["predictions"]][::-1])

    outcome = load(Stub(on({2, 3}, reverse)), requests=6, per_request=2)
    assert counts(outcome) == {"right": 4, "swapped": 2}


@pytest.mark.parametrize("failure", ["hang up", 500, 502, 504])
def test_broken_and_failed_requests_are_lost(failure):
    async def fail(stub, request, request_id):
        return await hang_up(request) if failure == "hang up" else error(failure, "failed")

    outcome = load(Stub(on({1, 4}, fail)), requests=10)
    assert counts(outcome) == {"right": 8, "lost": 2}
    assert outcome.statuses == {"200": 8, "broken" if failure == "hang up" else str(failure): 2}
    assert not outcome.passed


@pytest.mark.parametrize("failure", ["hang up", 500])
def test_what_breaks_once_is_answered_on_retry_under_the_same_name(failure):
    failed: set = set()

    async def fail_once(stub, request, request_id):
        if request_id in failed:
            return None
        failed.add(request_id)
        return await hang_up(request) if failure == "hang up" else error(failure, "failed")

    stub = Stub(on({1, 4}, fail_once))
    outcome = load(stub, requests=10, retries=1)
    assert counts(outcome) == {"right": 10, "recovered": 2}
    assert outcome.passed
    assert sorted(Counter(stub.ids).values()) == [1] * 8 + [2] * 2


def test_full_queue_is_not_a_loss_and_retry_after_is_honoured():
    times: dict = {}

    async def full_once(stub, request, request_id):
        times.setdefault(request_id, []).append(asyncio.get_running_loop().time())
        return error(503, "full", **{"Retry-After": "0.3"}) if len(times[request_id]) == 1 else None

    outcome = load(Stub(on({0, 1}, full_once)), requests=5, retries=1)
    assert counts(outcome) == {"right": 5, "deferred": 2}
    assert all(second - first >= 0.29 for first, second in times.values())

    times.clear()
    outcome = load(Stub(on({0, 1}, full_once)), requests=5, retries=0)
    assert counts(outcome) == {"right": 3, "refused": 2}
    assert outcome.passed


def test_retries_end():
    async def always(stub, request, request_id):
        return error(500, "failed")

    stub = Stub(on({2}, always))
    outcome = load(stub, requests=4, retries=2)
    assert counts(outcome) == {"right": 3, "lost": 1}
    assert outcome.statuses == {"200": 3, "500": 3}


def test_silence_is_lost_after_the_timeout():
    async def sleep(stub, request, request_id):
        await asyncio.sleep(30)

    outcome = load(Stub(on({2}, sleep)), requests=5, timeout=0.3)
    assert counts(outcome) == {"right": 4, "lost": 1}
    assert "TimeoutError" in outcome.examples[0]


def test_the_whole_test_ends_in_time_and_tells_lost_from_unsent():
    async def sleep(stub, request, request_id):
        await asyncio.sleep(30)

    outcome = load(Stub(sleep), requests=10, concurrency=3, limit=0.5)
    assert counts(outcome) == {"lost": 3, "unsent": 7}
    assert not outcome.passed


def test_good_images_that_are_turned_down_are_unexpected():
    async def refuse(stub, request, request_id):
        return error(422, "dislike")

    outcome = load(Stub(on({7}, refuse)), requests=10, retries=2)
    assert counts(outcome) == {"right": 9, "unexpected": 1}
    assert "dislike" in outcome.examples[0]


def test_a_stall_shows_in_the_latency_of_all_that_arrived_meanwhile():
    """A client that waits for its answer before it sends the next would see one slow answer of 200."""

    async def stall(stub, request, request_id):
        number = int(request_id.rpartition("-")[2])
        if number == 100:
            stub.wall = asyncio.get_running_loop().create_task(asyncio.sleep(0.6))
        wall = getattr(stub, "wall", None)
        if wall is not None and not wall.done():
            await asyncio.shield(wall)

    outcome = load(Stub(stall), requests=200, rate=200.0, concurrency=1)
    assert counts(outcome) == {"right": 200}
    # Only one request was sent into the stall, but about a hundred were due in it.
    assert outcome.latency.max >= 590
    assert outcome.latency.p95 >= 300
    assert outcome.latency.p99 >= 450
    assert outcome.delay.p95 >= 300


@pytest.mark.parametrize("rate", [RATE, None])
def test_connections_are_bounded(rate):
    async def slow(stub, request, request_id):
        await asyncio.sleep(0.02)

    stub = Stub(slow)
    outcome = load(stub, requests=40, rate=rate, concurrency=4)
    assert counts(outcome) == {"right": 40}
    assert stub.most_at_once == 4


def test_key_is_sent_and_not_reported():
    stub = Stub()
    outcome = load(stub, requests=3, api_key="very-secret")
    assert stub.authorizations == {"Bearer very-secret"}
    assert "very-secret" not in json.dumps(outcome.to_dict())


def test_memory_of_the_server_is_watched():
    outcome = load(Stub(), requests=5, rate=20.0, watch=Watch.tree(os.getpid()))
    assert outcome.memory.samples >= 1
    assert 0 < outcome.memory.first <= outcome.memory.peak


def test_a_watch_that_fails_spoils_the_test_but_not_its_numbers():
    def fail():
        raise RuntimeError("no more processes")

    outcome = load(Stub(), requests=5, watch=Watch(fail))
    assert counts(outcome) == {"right": 5}
    assert not outcome.passed
    assert "no more processes" in outcome.text()


def test_same_seed_sends_the_same():
    first, second = Stub(), Stub()
    load(first, requests=20, seed=3)
    load(second, requests=20, seed=3)
    assert sorted(first.digests) == sorted(second.digests)
    assert not set(first.ids) & set(second.ids)


def test_no_server_is_an_error_that_names_the_url():
    with pytest.raises(InputError, match=r"must answer at http://127\.0\.0\.1:9/healthz"):
        run(LoadOptions(url="http://127.0.0.1:9"))


def test_unready_server_is_an_error():
    class Unready(Stub):
        async def health(self, request):
            return error(503, "loading")

    with pytest.raises(InputError, match="answers 503"):
        load(Unready())


def test_without_aiohttp_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(client.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"findtta\[serve\]"):
        run(LoadOptions())


class InThread:
    """A stub that serves from a thread of its own, for commands that run their own loop."""

    def __init__(self, stub: Stub) -> None:
        self._stub, self._ready, self.url = stub, threading.Event(), ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._stub.serve() as self.url:
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> str:
        self._thread.start()
        assert self._ready.wait(10)
        return self.url

    def __exit__(self, *error) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    loadtest.add_arguments(parser)
    return parser.parse_args(words)


def command(*words: str) -> int:
    return loadtest.run(parsed(*words))


def test_command_has_the_defaults_of_the_library():
    given = vars(parsed())
    expected = {**vars(LoadOptions()), "rate": None}
    assert {name: given[name] for name in expected} == expected


def test_command_prints_tables_and_writes_json(tmp_path, capsys):
    out = tmp_path / "out.json"
    words = ["--requests", "20", "--rate", "500", "--bad", "0.3", "--oversize-mb", "2", "--retries", "0"]
    with InThread(Stub()) as url:
        assert command("--url", url, *words, "--json", str(out), "--pid", str(os.getpid())) == 0
    kept = json.loads(out.read_text())
    assert kept["passed"]
    assert kept["counts"]["right"] == 20
    assert kept["settings"]["rate"] == 500
    printed = capsys.readouterr().out
    assert "p99" in printed
    assert "right answers/s" in printed
    assert "memory of the server" in printed


def test_command_takes_the_key_from_the_environment(monkeypatch):
    stub = Stub()
    monkeypatch.setenv("FINDTTA_API_KEY", "from-the-environment")
    with InThread(stub) as url:
        assert command("--url", url, "--requests", "2", "--saturate") == 0
        assert command("--url", url, "--requests", "2", "--saturate", "--api-key", "given") == 0
    assert stub.authorizations == {"Bearer from-the-environment", "Bearer given"}


def test_command_fails_for_a_faulty_server(capsys):
    async def fail(stub, request, request_id):
        return error(500, "failed")

    with InThread(Stub(on({3}, fail))) as url:
        assert command("--url", url, "--requests", "6", "--saturate", "--concurrency", "2", "--retries", "0") == 1
    assert "lost" in capsys.readouterr().out
