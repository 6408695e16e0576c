"""Load test of a prediction server: how fast it is, and whether every prediction belongs to its request.

``python benchmarks/loadtest.py --url http://127.0.0.1:8000 --bad 0.2 --kill-every 10`` sends good and poisoned
images, kills a replica every 10 seconds, and exits with 0 only if no request was lost, swapped or answered
unexpectedly. Requests are due at times that are drawn beforehand, and latency counts from those times: a server
that stalls for a second is seen stalling by every request of that second. With ``--saturate`` each client sends
its next request as soon as it has the response to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import aiohttp
import numpy as np
import psutil  # type: ignore[import-untyped]
from loadtest_inputs import Inputs, Payload
from tqdm import tqdm

from findtta.cli.flags import add_flags, given
from findtta.errors import FindTTAError, InputError, OptionError
from findtta.options import Count, Fraction, Options, Positive, Seed, option, require_int
from findtta.serve.embedded import PROCESS_NAME
from findtta.serve.on_ray import APP_NAME, DEPLOYMENT_NAME
from findtta.tables import render

#: What never happens to a request on a correct server. lost: no response; swapped: the response to another
#: request; unexpected: any other wrong response.
FAULTS = ("lost", "swapped", "unexpected")
_KEY_VARIABLE = "FINDTTA_API_KEY"
_KEEPALIVE_S = 2.0  # servers drop connections that were idle for about 5 s; a request sent then would seem lost
_LONGEST_WAIT_S = 30.0
_ON_RAY = f"ray::ServeReplica:{APP_NAME}:{DEPLOYMENT_NAME}"  # how Ray names the processes of replicas


@dataclass(frozen=True)
class LoadOptions(Options):
    """What is sent, how fast, and how patiently."""

    url: str = option("http://127.0.0.1:8000", "URL of the server", metavar="URL")
    api_key: str | None = option(None, "key to send, if the server requires one", shown=f"${_KEY_VARIABLE}")
    requests: Count = option(1000, "number of requests")
    rate: Positive = option(50.0, "requests per second that arrive on average, whether responses come or not")
    saturate: bool = option(False, "send as fast as responses come, to find the highest throughput")
    concurrency: Count = option(64, "connections at one time")
    retries: Annotated[int, partial(require_int, low=0)] = option(
        2, "tries after the first, for broken connections and statuses from 500 on"
    )
    timeout: Positive = option(90.0, "seconds that one try may take", metavar="S")
    limit: Positive | None = option(
        None, "seconds that the whole test may take", metavar="S", shown="from the others"
    )
    images: str = option("shapes", "good images: a folder, or 'shapes', which are drawn", metavar="FOLDER")
    per_request: Count = option(1, "images per request; several are sent as multipart and as JSON in turn")
    bad: Fraction = option(0.0, "fraction of requests with a poisoned input")
    oversize_mb: Positive = option(
        40.0, "size of the poisoned input that is too large for the server", metavar="MB"
    )
    seed: Seed = option(0, "seed of arrival times, images and poisoned inputs")
    pid: int | None = option(None, "process of the server, whose memory is watched with that of its children")
    kill_every: Positive | None = option(None, "seconds between kills of a replica on this machine", metavar="S")
    kills: Count = option(100, "number of kills, at most")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(("http://", "https://")):
            raise OptionError(f"url must begin with http:// or https://, got {self.url!r}.")

    @property
    def seconds(self) -> float:
        """The time after which the test ends, whatever is still open."""
        if self.limit is not None or self.saturate:
            return self.limit or 600.0
        # Poisson arrivals end within 1.5 times their mean; the rest is for retries and waits between them.
        return 1.5 * self.requests / self.rate + (self.retries + 1) * self.timeout + 60


class Reply(NamedTuple):
    """What came of one try: the status is None if there was no response, and the body then says why."""

    status: int | None
    body: bytes
    retry_after: float | None = None
    hung_up: bool = False


def judge(payload: Payload, request_id: str, reply: Reply) -> tuple[str, str]:
    """Return what became of a request (``"right"``, ``"refused"`` by 503, or one of ``FAULTS``), and why."""
    status, text = reply.status, reply.body[:200].decode(errors="replace")
    if status is None:
        return ("right", "") if payload.may_break and reply.hung_up else ("lost", text)
    if status == 503:
        return "refused", "503"
    if status not in payload.accepts:
        # A server that fails over a good image owes its prediction; failing over a bad one is a wrong response.
        return "lost" if status >= 500 and not payload.poisoned else "unexpected", f"{status}: {text}"
    try:
        document = json.loads(reply.body, parse_constant=_not_json)
        if status != 200:
            clear = all(isinstance(document["error"][name], str) for name in ("code", "message"))
            return ("right", "") if clear else ("unexpected", f"{status} without code and message: {text}")
        predictions = document["predictions"]
        digests = [str(prediction["digest"]) for prediction in predictions]
        sane = [
            isinstance(row["label"], str) and row["index"] >= 0 and 0 <= row["confidence"] <= 1
            for row in predictions
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "unexpected", f"{status} with a body that is not as documented: {text}"
    if document.get("request_id") != request_id:
        return "swapped", f"request_id must be {request_id}: {text}"
    if len(digests) != len(payload.digests) or not all(sane):
        return "unexpected", f"predictions must be {len(payload.digests)}, with label and confidence: {text}"
    return ("right", "") if tuple(digests) == payload.digests else ("swapped", f"digests are not its own: {text}")


def _not_json(constant: str) -> None:
    raise ValueError(constant)  # Python reads NaN and Infinity; other languages refuse the whole response


@dataclass
class Tally:
    """Counts of requests as they end."""

    begun: int = 0
    images: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    poisons: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    examples: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    def end(self, request_id: str, payload: Payload, fate: str, why: str, latency: float) -> None:
        """Count a request after all its tries."""
        self.fates[fate] += 1
        if payload.poisoned:
            self.poisons[payload.kind][fate] += 1
        if fate not in ("lost", "refused"):
            self.latencies["poisoned" if payload.poisoned else "good"].append(latency)
        if fate == "right":
            self.images += len(payload.digests)
        elif fate in FAULTS and len(self.examples) < 20:
            self.examples.append(f"{fate}: {request_id} ({payload.kind}): {why}")


class Driver:
    """Sends the requests of one test."""

    def __init__(self, options: LoadOptions, progress: Callable[[Tally], object]) -> None:
        self.options, self.progress, self.tally = options, progress, Tally()
        self._inputs = Inputs(
            options.images,
            options.requests,
            bad=options.bad,
            per_request=options.per_request,
            seed=options.seed,
            oversize_mb=options.oversize_mb,
        )
        self._slots = asyncio.Semaphore(options.concurrency)
        self._jitter = random.Random(options.seed)
        self._name = secrets.token_hex(4)  # a server may remember the requests of an earlier test

    async def send_all(self, session: aiohttp.ClientSession) -> None:
        """Send each request when it is due or, to saturate, let clients send one after another."""
        numbers = iter(range(self.options.requests))

        async def client() -> None:
            for number in numbers:
                await self._request(session, number, time.perf_counter())

        async with asyncio.TaskGroup() as group:
            if self.options.saturate:
                for _ in range(self.options.concurrency):
                    group.create_task(client())
                return
            gaps = np.random.default_rng([self.options.seed, 0]).exponential(
                1 / self.options.rate, self.options.requests
            )
            start = time.perf_counter()
            for number, offset in zip(numbers, np.cumsum(gaps).tolist(), strict=True):
                await asyncio.sleep(max(0.0, start + offset - time.perf_counter()))
                group.create_task(self._request(session, number, start + offset))

    async def _request(self, session: aiohttp.ClientSession, number: int, due: float) -> None:
        request_id, payload, broken = f"{self._name}-{number}", None, set()
        for tries in range(self.options.retries + 1):
            async with self._slots:
                if payload is None:  # not before: thousands may wait for a free connection
                    self.tally.begun += 1
                    self.tally.latencies["due to sent"].append(time.perf_counter() - due)
                    payload = self._inputs[number]
                reply = await self._post(session, payload, request_id)
            ended = time.perf_counter()
            self.tally.statuses["broken" if reply.status is None else str(reply.status)] += 1
            if (reply.status or 500) < 500 or (payload.may_break and reply.hung_up):
                break
            broken.add("deferred" if reply.status == 503 else "recovered")
            if tries < self.options.retries:
                await asyncio.sleep(self._wait(tries, reply))
        assert payload is not None
        fate, why = judge(payload, request_id, reply)
        if fate not in ("lost", "refused"):
            self.tally.fates.update(broken)
        self.tally.end(request_id, payload, fate, why, ended - due)
        self.progress(self.tally)

    async def _post(self, session: aiohttp.ClientSession, payload: Payload, request_id: str) -> Reply:
        large = len(payload.body) > 2**20  # sent piece by piece, so that other requests get their turn
        headers = {"X-Request-ID": request_id, "Content-Type": payload.content_type}
        data = io.BytesIO(payload.body) if large else payload.body
        try:
            async with session.post(f"{self.options.url}/v1/predict", data=data, headers=headers) as response:
                try:
                    retry_after = max(0.0, float(response.headers.get("Retry-After", "")))
                except ValueError:
                    retry_after = None
                return Reply(response.status, await response.read(), retry_after)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            hung_up = not isinstance(error, TimeoutError | aiohttp.ClientConnectorError)
            return Reply(None, f"{type(error).__name__}: {error}".encode(), hung_up=hung_up)

    def _wait(self, tries: int, reply: Reply) -> float:
        if reply.retry_after is not None:  # a little later than asked, and not all at once
            return min(reply.retry_after, _LONGEST_WAIT_S) * self._jitter.uniform(1, 1.25)
        return min(0.1 * 2**tries, _LONGEST_WAIT_S) * self._jitter.uniform(0.5, 1.5)


async def drive(options: LoadOptions, progress: Callable[[Tally], object] = lambda _: None) -> dict[str, Any]:
    """Test a server, and return what was found; see ``summary``."""
    key = options.api_key or os.environ.get(_KEY_VARIABLE)
    driver = Driver(options, progress)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=options.concurrency, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=options.timeout),
        headers={"Authorization": f"Bearer {key}"} if key else {},
    ) as session:
        await _require_health(session, options.url)
        beside = []
        if options.pid is not None or options.kill_every is not None:
            beside.append(asyncio.create_task(watch_memory(options.pid, driver.tally.memory)))
        if options.kill_every is not None:
            beside.append(asyncio.create_task(kill_replicas(options, driver.tally.killed)))
        start = time.perf_counter()
        try:
            with suppress(TimeoutError):  # what is not done by then is open or unsent
                async with asyncio.timeout(options.seconds):
                    await driver.send_all(session)
        finally:
            seconds = time.perf_counter() - start
            for task in beside:
                task.cancel()
            ends = await asyncio.gather(*beside, return_exceptions=True)
    # The results of an hour are worth keeping even if watching or killing stopped before its time.
    troubles = [f"{type(end).__name__}: {end}" for end in ends if isinstance(end, Exception)]
    return summary(options, driver.tally, seconds, troubles)


async def _require_health(session: aiohttp.ClientSession, url: str) -> None:
    try:
        async with session.get(f"{url}/healthz", timeout=aiohttp.ClientTimeout(total=10)) as response:
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise InputError(
            f"url: no server answers at {url}/healthz ({error}). Start it, or give its --url."
        ) from error
    if status != 200:
        raise InputError(f"url: {url}/healthz must answer 200, got {status}. Wait until the server is ready.")


async def watch_memory(pid: int | None, samples: list[tuple[float, int]]) -> None:
    """Add the memory in MB and the number of processes to a list twice a second, until cancelled.

    Args:
        pid: A process that is watched with its children; None watches the replicas on this machine.
        samples: Where to.
    """
    while True:
        # In a thread: listing processes takes milliseconds in which no response would be read.
        samples.append(await asyncio.to_thread(_resident, pid))
        await asyncio.sleep(0.5)


def _resident(pid: int | None) -> tuple[float, int]:
    family = [] if pid is None else [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    processes = family or replicas(None)
    sizes = []
    for process in processes:
        with suppress(psutil.Error):  # it may have ended
            sizes.append(process.memory_info().rss)
    return sum(sizes) / 1e6, len(sizes)


async def kill_replicas(options: LoadOptions, killed: list[str]) -> None:
    """Kill a replica every few seconds, and add its name to a list."""
    assert options.kill_every is not None
    choice = random.Random(options.seed)
    while len(killed) < options.kills:
        await asyncio.sleep(options.kill_every)
        killed += await asyncio.to_thread(kill_one, options.pid, choice)


def kill_one(pid: int | None, choice: random.Random) -> list[str]:
    """Kill one replica of the server; returns its process, or nothing if none is running."""
    found = replicas(pid)
    if not found:
        return []
    process = choice.choice(found)
    with suppress(psutil.Error):  # it may have ended in the meantime
        process.kill()
    return [str(process.pid)]


def replicas(pid: int | None) -> list[psutil.Process]:
    """Return the processes of replicas on this machine, or of those the server with this process has."""
    everything = psutil.process_iter() if pid is None else psutil.Process(pid).children(recursive=True)
    found = []
    for process in everything:
        with suppress(psutil.Error):
            if process.name() == PROCESS_NAME or (process.cmdline() or [""])[0].startswith(_ON_RAY):
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def summary(options: LoadOptions, tally: Tally, seconds: float, troubles: list[str]) -> dict[str, Any]:
    """Return everything that a test found, as plain values; open are requests that the limit of time cut off."""
    counts = {fate: tally.fates[fate] for fate in ("right", "refused", *FAULTS)}
    counts |= {"open": tally.begun - sum(counts.values()), "unsent": options.requests - tally.begun}
    memory = [sample for sample in tally.memory if sample[1]]
    tenth = max(len(memory) // 10, 1)
    ends = {"first": memory[:tenth], "last": memory[-tenth:]} if memory else {}
    return {
        "passed": not troubles and not any(counts[name] for name in (*FAULTS, "open", "unsent")),
        "settings": {name: value for name, value in vars(options).items() if name != "api_key"},
        "seconds": seconds,
        "counts": counts | {name: tally.fates[name] for name in ("recovered", "deferred")},
        "statuses": dict(sorted(tally.statuses.items())),
        "poisons": {kind: dict(fates) for kind, fates in sorted(tally.poisons.items())},
        "right_per_second": counts["right"] / seconds,
        "images_per_second": tally.images / seconds,
        "milliseconds": {kind: _spread(values) for kind, values in tally.latencies.items()},
        "memory_mb": {name: float(np.median([mb for mb, _ in part])) for name, part in ends.items()}
        | {f"{name}_per_process": float(np.median([mb / n for mb, n in part])) for name, part in ends.items()}
        | ({"peak": max(mb for mb, _ in memory), "samples": len(memory)} if memory else {}),
        "kills": tally.killed,
        "troubles": troubles,
        "examples": tally.examples,
    }


def _spread(seconds: Iterable[float]) -> dict[str, float]:
    """Return percentiles that some request had, in milliseconds; interpolation would invent latencies."""
    values = 1000 * np.asarray(list(seconds))
    p50, p95, p99, most = np.percentile(values, (50, 95, 99, 100), method="inverted_cdf").tolist()
    return {"count": len(values), "p50": p50, "p95": p95, "p99": p99, "max": most}


def text(found: dict[str, Any]) -> str:
    """Return what a test found for the terminal."""
    fates = ("right", "refused", *FAULTS)
    times = [
        (kind, spread["count"], *(f"{spread[name]:.1f}" for name in ("p50", "p95", "p99", "max")))
        for kind, spread in found["milliseconds"].items()
    ]
    poisons = [(kind, *(counts.get(fate, 0) for fate in fates)) for kind, counts in found["poisons"].items()]
    blocks = [
        render(("requests", "count"), [*found["counts"].items(), ("in all", found["settings"]["requests"])]),
        render(("milliseconds", "count", "p50", "p95", "p99", "max"), times),
        render(("status of tries", "count"), found["statuses"].items()),
        render(("poisoned input", *fates), poisons) if poisons else "",
        f"{found['seconds']:.1f} s, {found['right_per_second']:.1f} right responses/s, "
        f"{found['images_per_second']:.1f} images/s",
        "memory of the server in MB: " + ", ".join(f"{name} {mb:.0f}" for name, mb in found["memory_mb"].items())
        if found["memory_mb"]
        else "",
        f"replicas killed: {len(found['kills'])}" if found["kills"] else "",
        "\n".join((*found["troubles"], *found["examples"])),
        "passed" if found["passed"] else "FAILED",
    ]
    return "\n\n".join(block for block in blocks if block)


def main(words: list[str] | None = None) -> int:
    """Test, and print what was found; 0 only if no request was lost, swapped, unexpected, open or unsent."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_flags(parser, LoadOptions)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything that was found to this file, too"
    )
    arguments = parser.parse_args(words)
    try:
        options = LoadOptions(**given(arguments, LoadOptions))
        if options.kill_every is not None and not replicas(options.pid):
            raise OptionError("kill_every needs replicas on this machine, but there are none.")
        with tqdm(total=options.requests, unit="request", leave=False, disable=not sys.stderr.isatty()) as bar:
            found = asyncio.run(drive(options, lambda _: bar.update()))
    except FindTTAError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    print(text(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
