"""What the load test finds out about servers that misbehave in known ways."""

import asyncio
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("psutil")
pytest.importorskip("prometheus_client")

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import loadtest
from loadtest import LoadOptions, drive
from loadtest_inputs import MEDIA_TYPES, Inputs, digest, poisons
from misbehaving_server import Stub, error, hang_up, respond
from PIL import Image

from findtta.errors import InputError, OptionError
from findtta.images import ImageError, ImageLimits, read_image
from findtta.serve.requests import read_npy

RATE = 2000.0


def load(stub: Stub, **options):
    async def scenario():
        async with stub.serve() as url:
            return await drive(LoadOptions(url=url, **{"rate": RATE, "retries": 0, **options}))

    return asyncio.run(scenario())


def counts(found) -> dict[str, int]:
    return {name: count for name, count in found["counts"].items() if count}


def on(numbers, action):
    """Misbehave on the requests with these numbers only."""

    async def misbehave(stub, request, request_id):
        if int(request_id.rpartition("-")[2]) in numbers:
            return await action(stub, request, request_id)
        return None

    return misbehave


@pytest.mark.parametrize("options", [{}, {"saturate": True}, {"per_request": 3}])
def test_an_honest_server_passes_and_gets_every_image_once(options):
    stub = Stub()
    found = load(stub, requests=60, **options)
    images = 60 * options.get("per_request", 1)
    assert found["passed"]
    assert counts(found) == {"right": 60}
    assert found["statuses"] == {"200": 60}
    assert len(set(stub.ids)) == len(stub.ids) == 60
    assert len(set(stub.digests)) == len(stub.digests) == images
    assert found["milliseconds"]["good"]["count"] == 60
    assert found["images_per_second"] == pytest.approx(images / found["seconds"])


def test_poisoned_inputs_are_all_sent_and_rightly_answered():
    found = load(Stub(), requests=48, bad=1.0, oversize_mb=2, rate=200)
    assert found["examples"] == []
    assert counts(found) == {"right": 48}
    assert len(found["poisons"]) == 16
    assert {fates["right"] for fates in found["poisons"].values()} == {3}
    assert found["milliseconds"]["poisoned"]["count"] == 48


@pytest.mark.parametrize(("silent", "fate"), [(False, "right"), (True, "lost")])
def test_too_large_a_body_may_be_hung_up_on_but_not_ignored(silent, fate):
    async def drop_large(stub, request, request_id):
        if (request.content_length or 0) < 1_500_000:
            return None
        if silent:
            await asyncio.sleep(30)
        return await hang_up(request)

    found = load(Stub(drop_large), requests=16, bad=1.0, oversize_mb=2, rate=200, timeout=1.0)
    assert found["poisons"]["oversize"] == {fate: 1}
    assert found["passed"] == (not silent)


def test_a_server_that_accepts_everything_is_caught():
    async def takes_all(stub, request, request_id):
        return respond(request_id, ["0" * 16])

    found = load(Stub(takes_all), requests=16, bad=1.0, oversize_mb=2, rate=200)
    # Ten kinds must be refused; the other six must get their own digest. A body that nobody reads may break.
    assert found["counts"]["swapped"] == 6
    assert found["counts"]["unexpected"] in (9, 10)
    assert not found["passed"]


def test_predictions_given_to_each_other_are_found_by_digest():
    meeting: list = []

    async def swap(stub, request, request_id):
        body = await request.read()
        mine = asyncio.get_running_loop().create_future()
        meeting.append((digest(body), mine))
        if len(meeting) == 2:
            (first, first_waits), (second, second_waits) = meeting
            first_waits.set_result(second)
            second_waits.set_result(first)
        return respond(request_id, [await mine])

    found = load(Stub(on({5, 9}, swap)), requests=20)
    assert counts(found) == {"right": 18, "swapped": 2}
    assert not found["passed"]


def test_images_of_one_request_that_change_places_are_swapped():
    async def reverse(stub, request, request_id):
        honest = json.loads((await stub.honest(request, request_id)).text)
        return respond(request_id, [prediction["digest"] for prediction in honest["predictions"]][::-1])

    assert counts(load(Stub(on({2, 3}, reverse)), requests=6, per_request=2)) == {"right": 4, "swapped": 2}


async def _misname(stub, request, request_id):
    return respond("somebody-else", [digest(await request.read())])


async def _hang_up(stub, request, request_id):
    return await hang_up(request)


async def _fail(stub, request, request_id):
    return error(500, "failed")


async def _dislike(stub, request, request_id):
    return error(422, "dislike")


async def _sleep(stub, request, request_id):
    await asyncio.sleep(30)


async def _too_sure(stub, request, request_id):
    return respond(request_id, [digest(await request.read())], confidence=1.5)


async def _forget(stub, request, request_id):
    return respond(request_id, [])


@pytest.mark.parametrize(
    ("action", "fate"),
    [
        (_misname, "swapped"),
        (_hang_up, "lost"),
        (_fail, "lost"),
        (_sleep, "lost"),
        (_dislike, "unexpected"),
        (_too_sure, "unexpected"),
        (_forget, "unexpected"),
    ],
)
def test_every_kind_of_fault_is_counted(action, fate):
    found = load(Stub(on({1, 4}, action)), requests=10, timeout=3.0)
    assert counts(found) == {"right": 8, fate: 2}
    assert not found["passed"]
    assert len(found["examples"]) == 2
    assert "FAILED" in loadtest.text(found)


@pytest.mark.parametrize("failure", [_hang_up, _fail])
def test_what_breaks_once_is_answered_on_retry_under_the_same_name(failure):
    failed: set = set()

    async def fail_once(stub, request, request_id):
        if request_id in failed:
            return None
        failed.add(request_id)
        return await failure(stub, request, request_id)

    stub = Stub(on({1, 4}, fail_once))
    found = load(stub, requests=10, retries=1)
    assert counts(found) == {"right": 10, "recovered": 2}
    assert found["passed"]
    assert sorted(Counter(stub.ids).values()) == [1] * 8 + [2] * 2


def test_a_full_queue_is_not_a_loss_and_retry_after_is_honoured():
    times: dict = {}

    async def full_once(stub, request, request_id):
        times.setdefault(request_id, []).append(asyncio.get_running_loop().time())
        return error(503, "full", **{"Retry-After": "0.3"}) if len(times[request_id]) == 1 else None

    assert counts(load(Stub(on({0, 1}, full_once)), requests=5, retries=1)) == {"right": 5, "deferred": 2}
    assert all(second - first >= 0.29 for first, second in times.values())
    times.clear()
    found = load(Stub(on({0, 1}, full_once)), requests=5, retries=0)
    assert counts(found) == {"right": 3, "refused": 2}
    assert found["passed"]


def test_the_whole_test_ends_in_time_and_tells_open_from_lost_and_unsent():
    found = load(Stub(_sleep), requests=10, concurrency=3, limit=0.5)
    assert counts(found) == {"open": 3, "unsent": 7}
    assert not found["passed"]


def test_a_stall_shows_in_the_latency_of_all_that_arrived_meanwhile():
    """A client that waits for its response before it sends the next would see one slow response of 200."""

    async def stall(stub, request, request_id):
        if request_id.endswith("-100"):
            stub.wall = asyncio.get_running_loop().create_task(asyncio.sleep(0.6))
        wall = getattr(stub, "wall", None)
        if wall is not None and not wall.done():
            await asyncio.shield(wall)

    found = load(Stub(stall), requests=200, rate=200.0, concurrency=1)
    assert counts(found) == {"right": 200}
    assert found["milliseconds"]["good"]["p95"] >= 300
    assert found["milliseconds"]["due to sent"]["p95"] >= 300


def test_connections_are_bounded():
    async def slow(stub, request, request_id):
        await asyncio.sleep(0.02)

    stub = Stub(slow)
    assert counts(load(stub, requests=40, concurrency=4)) == {"right": 40}
    assert stub.most_at_once == 4


def test_memory_is_watched_and_a_watch_that_fails_spoils_the_test_but_not_its_numbers(monkeypatch):
    found = load(Stub(), requests=5, rate=20.0, pid=os.getpid())
    assert found["passed"]
    assert 0 < found["memory_mb"]["first"] <= found["memory_mb"]["peak"]

    def fail(pid):
        raise RuntimeError("processes cannot be listed")

    monkeypatch.setattr(loadtest, "_resident", fail)
    found = load(Stub(), requests=5, pid=os.getpid())
    assert counts(found) == {"right": 5}
    assert not found["passed"]
    assert "processes cannot be listed" in loadtest.text(found)


def test_the_same_seed_sends_the_same():
    first, second = Stub(), Stub()
    load(first, requests=20, seed=3)
    load(second, requests=20, seed=3)
    assert sorted(first.digests) == sorted(second.digests)
    assert not set(first.ids) & set(second.ids)


def test_a_server_that_is_not_ready_is_an_error():
    class Unready(Stub):
        async def health(self, request):
            return error(503, "loading")

    with pytest.raises(InputError, match="must answer 200, got 503"):
        load(Unready())
    with pytest.raises(InputError, match=r"no server answers at http://127\.0\.0\.1:9/healthz"):
        asyncio.run(drive(LoadOptions(url="http://127.0.0.1:9")))


@pytest.mark.parametrize(
    "wrong", [{"url": "here"}, {"requests": 0}, {"bad": 2}, {"retries": -1}, {"kill_every": 0}, {"rate": 0}]
)
def test_options_that_cannot_work(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        LoadOptions(**wrong)


def pixels(payload):
    data = payload.body
    return read_npy(data, ImageLimits()) if data.startswith(b"\x93NUMPY") else read_image(data)


def inputs(source="shapes", **options):
    return Inputs(str(source), 300, **{"bad": 0.0, "per_request": 1, "seed": 0, "oversize_mb": 1, **options})


def test_a_number_in_an_image_changes_its_bytes_but_not_its_pixels():
    stream = inputs()
    for number, kind in enumerate(MEDIA_TYPES):
        first, again = stream[number], stream[number + 256]
        assert first.kind == again.kind == kind
        assert first.body != again.body
        if kind != "npy":
            np.testing.assert_array_equal(pixels(first), pixels(again))


def test_images_of_a_folder_are_sent_as_they_are(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 8, 3), dtype=np.uint8))
    for name in ("a.jpg", "b.png", "c.bmp"):
        image.save(tmp_path / name)
    stream = inputs(tmp_path)
    assert [stream[number].kind for number in range(3)] == ["jpeg", "png", "png"]
    np.testing.assert_array_equal(pixels(stream[2]), np.asarray(image))
    with pytest.raises(InputError, match="which has none"):
        inputs(tmp_path / "nothing")


def test_every_poison_is_refused_or_read_as_it_says():
    for payload in poisons(oversize_mb=0.1):
        readable = 200 in payload.accepts
        if payload.kind in ("wrong-type", "deep-json"):  # refused by its declared type, or as JSON
            continue
        try:
            shape = pixels(payload).shape
        except ImageError:
            assert not readable, payload.kind
        else:
            assert readable, payload.kind
            assert shape[2] == 3


class InThread:
    """A stub that serves from a thread of its own, for a command that runs its own loop."""

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


def test_the_command_prints_tables_and_writes_json_without_the_key(tmp_path, capsys, monkeypatch):
    stub, out = Stub(), tmp_path / "out.json"
    monkeypatch.setenv("FINDTTA_API_KEY", "from-the-environment")
    words = ["--requests", "20", "--rate", "500", "--bad", "0.3", "--oversize-mb", "2", "--retries", "0"]
    with InThread(stub) as url:
        assert loadtest.main(["--url", url, *words, "--json", str(out), "--pid", str(os.getpid())]) == 0
        assert loadtest.main(["--url", url, "--requests", "2", "--saturate", "--api-key", "given"]) == 0
    assert stub.authorizations == {"Bearer from-the-environment", "Bearer given"}
    kept = json.loads(out.read_text())
    assert kept["passed"]
    assert kept["counts"]["right"] == 20
    assert "from-the-environment" not in out.read_text()
    printed = capsys.readouterr().out
    assert "p99" in printed
    assert "memory of the server" in printed


def test_the_command_fails_for_a_faulty_server(capsys):
    with InThread(Stub(on({3}, _fail))) as url:
        words = ["--requests", "6", "--saturate", "--concurrency", "2", "--retries", "0"]
        assert loadtest.main(["--url", url, *words]) == 1
    assert "lost" in capsys.readouterr().out
    assert loadtest.main(["--url", "http://127.0.0.1:9"]) == 2
    assert "no server answers" in capsys.readouterr().err
