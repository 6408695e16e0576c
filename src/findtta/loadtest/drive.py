"""Sending requests on schedule and collecting what comes back.

In an open loop requests are due at times that were drawn beforehand, and latency counts from those times. A server
that stalls for a second is then seen stalling by every request of that second, not only by the few that were under
way.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from findtta.loadtest.arrivals import poisson
from findtta.loadtest.client import Client, Reply, import_aiohttp
from findtta.loadtest.judge import RIGHT, Verdict, judge
from findtta.loadtest.kills import Killer
from findtta.loadtest.memory import Memory, Sample, Watch
from findtta.loadtest.outcome import Outcome, Tally
from findtta.loadtest.payloads import Mixture, Payload
from findtta.loadtest.pictures import Pictures
from findtta.loadtest.poison import poisons
from findtta.loadtest.settings import LoadOptions

Progress = Callable[[Tally], None]

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0
_clock = time.perf_counter


def run(
    options: LoadOptions,
    *,
    watch: Watch | None = None,
    killer: Killer | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Test a server under load.

    Args:
        options: What to send, and how fast.
        watch: Looks at the server's memory meanwhile.
        killer: Kills replicas meanwhile.
        progress: Called with the counts so far whenever a request has ended.

    Returns:
        What was found.

    Raises:
        InputError: If no server answers, or images cannot be read.
        MissingExtraError: If the extra ``serve`` is not installed.
    """
    import_aiohttp()
    if killer:
        killer.require_replicas()
    return asyncio.run(drive(options, watch=watch, killer=killer, progress=progress))


async def drive(
    options: LoadOptions,
    *,
    watch: Watch | None = None,
    killer: Killer | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Test a server under load, in a loop that runs already; see :func:`run`."""
    mixture = Mixture(
        Pictures.open(options.images, options.seed),
        poisons(options.seed, options.oversize_mb) if options.bad else (),
        options.bad,
        options.per_request,
        options.seed,
    )
    tally, samples, killed = Tally(), list[Sample](), list[str]()
    async with Client(options) as client:
        await client.require_health()
        beside = []
        if watch:
            beside.append(asyncio.create_task(watch.into(samples)))
        if killer:
            beside.append(asyncio.create_task(killer.into(killed)))
        start = _clock()
        driver = _Driver(options, mixture, client, tally, progress)
        try:
            # Whoever is not done by then is lost or unsent.
            with suppress(TimeoutError):
                async with asyncio.timeout(options.seconds):
                    await (driver.closed_loop() if options.saturated else driver.open_loop())
        finally:
            for task in beside:
                task.cancel()
            ends = await asyncio.gather(*beside, return_exceptions=True)
        seconds = _clock() - start
    # The answers of an hour are worth keeping even if the cluster stopped talking to the killer.
    troubles = [f"{type(end).__name__}: {end}" for end in ends if isinstance(end, Exception)]
    return Outcome.of(options, tally, seconds, Memory.of(samples), tuple(killed), tuple(troubles))


class _Driver:
    """Sends the requests of one test."""

    def __init__(
        self, options: LoadOptions, mixture: Mixture, client: Client, tally: Tally, progress: Progress | None
    ) -> None:
        self._options, self._mixture, self._client = options, mixture, client
        self._tally, self._progress = tally, progress
        self._choices = mixture.choices(options.requests)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._jitter = random.Random(options.seed)
        # Another one each time: a server may remember the requests of an earlier test.
        self._name = secrets.token_hex(4)

    async def open_loop(self) -> None:
        """Send each request when it is due, whatever has become of the others."""
        rate = self._options.rate
        assert rate is not None, "an open loop has a rate"
        start = _clock()
        async with asyncio.TaskGroup() as group:
            for number, offset in enumerate(poisson(self._options.requests, rate, self._options.seed).tolist()):
                wait = start + offset - _clock()
                if wait > 0:
                    await asyncio.sleep(wait)
                group.create_task(self._request(number, start + offset))

    async def closed_loop(self) -> None:
        """Let some clients send one request after another, each as soon as it has its answer."""
        numbers = iter(range(self._options.requests))

        async def one_client() -> None:
            for number in numbers:
                await self._request(number, _clock())

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.concurrency):
                group.create_task(one_client())

    async def _request(self, number: int, due: float) -> None:
        request_id = f"{self._name}-{number}"
        payload: Payload | None = None
        broken = turned_away = 0
        for retries_left in range(self._options.retries, -1, -1):
            async with self._slots:
                if payload is None:  # not before: thousands may wait for a free connection
                    self._tally.begin(_clock() - due)
                    payload = self._mixture.payload(number, self._choices[number])
                reply = await self._client.post(payload, request_id)
            ended = _clock()
            self._tally.tried(reply)
            if not reply.worth_retrying or _may_hang_up(payload, reply):
                break
            broken += reply.broken
            turned_away += not reply.broken
            if not retries_left:
                break
            await asyncio.sleep(self._wait(broken + turned_away, reply))
        assert payload is not None
        self._tally.end(
            request_id,
            payload,
            _verdict(payload, request_id, reply),
            latency=ended - due,
            broken=broken,
            turned_away=turned_away,
        )
        if self._progress:
            self._progress(self._tally)

    def _wait(self, tries: int, reply: Reply) -> float:
        if reply.retry_after is not None:
            # A little later than asked, and not all at once.
            return min(reply.retry_after, _LONGEST_WAIT) * self._jitter.uniform(1, 1.25)
        return min(_FIRST_WAIT * 2 ** (tries - 1), _LONGEST_WAIT) * self._jitter.uniform(0.5, 1.5)


def _verdict(payload: Payload, request_id: str, reply: Reply) -> Verdict:
    if reply.status is not None:
        return judge(payload, request_id, reply.status, reply.body)
    return RIGHT if _may_hang_up(payload, reply) else Verdict("lost", reply.body.decode(errors="replace"))


def _may_hang_up(payload: Payload, reply: Reply) -> bool:
    return payload.may_break and reply.hung_up
