"""Requests of many clients become batches: none is lost, none gets another's result, and the queue is bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from findtta.errors import FindTTAError, InputError

#: How long a request that seems to be alone waits, in seconds: for others that come at the same moment.
_ALONE_S = 0.001

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFull(FindTTAError):
    """The queue has no room for more items at present."""


@dataclass(eq=False)
class _Entry(Generic[Item, Result]):
    """The items of one request, which stay together."""

    items: Sequence[Item]
    results: asyncio.Future[Sequence[Result]]
    due: float


@dataclass(eq=False)
class Batcher(Generic[Item, Result]):
    """Collects items that arrive at about the same time, and has them processed together.

    Requests are taken in the order they came. A batch is sent as soon as it is full; one that is not, when its
    oldest request has waited long enough and a worker is idle. A request that
    finds nothing under way after a batch of a single request hardly waits: there seem to be no others. Full
    batches are sent ahead of a worker that is still busy, so that it never waits for the next one.
    """

    # Processes a batch: one result per item, in order. If it raises, only this batch fails.
    run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]
    max_batch: int  # the most items in a batch
    wait_s: float  # how long a request waits for others, in seconds
    max_queue: int  # the most items that wait or are being processed
    workers: int = 1  # how many batches are processed at a time
    ahead: int = 1  # how many full batches may be sent beyond that
    size: int = field(default=0, init=False)  # the number of items that wait or are being processed
    _was_shared: bool = field(default=False, init=False)  # whether the last batch held several requests
    _waiting: deque[_Entry[Item, Result]] = field(default_factory=deque, init=False)
    _batches: set[asyncio.Task[None] | None] = field(default_factory=set, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and a worker has nothing to do."""
        return not self._waiting and len(self._batches) < self.workers

    async def submit(self, items: Sequence[Item], timeout_s: float | None = None) -> Sequence[Result]:
        """Have the items of one request processed, all in the same batch; returns one result per item, in order.

        Raises:
            QueueFull: If there is no room; nothing was queued.
            TimeoutError: If the time is over; what was not sent yet never will be.
        """
        if len(items) > self.max_batch:
            raise InputError(f"items must be at most {self.max_batch}, the largest batch, got {len(items)}.")
        if self.size + len(items) > self.max_queue:
            raise QueueFull(f"{self.size} images are in the queue, and at most {self.max_queue} may be.")
        loop = asyncio.get_running_loop()
        wait_s = self.wait_s if self._was_shared or self.size else min(self.wait_s, _ALONE_S)
        entry = _Entry(items, loop.create_future(), loop.time() + wait_s)
        self._waiting.append(entry)
        self.size += len(items)
        self._send()
        try:
            async with asyncio.timeout(timeout_s):
                return await entry.results
        finally:
            if entry in self._waiting:  # timed out or cancelled before it was sent
                self._waiting.remove(entry)
                self.size -= len(items)
                self._send()  # the next ones may fit now

    def _send(self) -> None:
        """Send all batches that are due."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            entries, is_full = self._next()
            busy = len(self._batches) >= self.workers
            if busy and (not is_full or len(self._batches) >= self.workers + self.ahead):
                return  # the end of a batch calls again
            due = self._waiting[0].due
            if not is_full and loop.time() < due:
                self._timer = loop.call_at(due, self._send)
                return
            self._was_shared = len(entries) > 1
            for _ in entries:
                self._waiting.popleft()
            self._batches.add(loop.create_task(self._finish(entries)))

    def _next(self) -> tuple[list[_Entry[Item, Result]], bool]:
        """Return the requests of the next batch, and whether nothing more fits."""
        entries: list[_Entry[Item, Result]] = []
        room = self.max_batch
        for entry in self._waiting:
            if len(entry.items) > room:
                return entries, True
            entries.append(entry)
            room -= len(entry.items)
        return entries, room == 0

    async def _finish(self, entries: list[_Entry[Item, Result]]) -> None:
        items = [item for entry in entries for item in entry.items]
        results: Sequence[Result] = ()
        failure: Exception | None = None
        try:
            results = await self.run(items)
            if len(results) != len(items):
                raise InputError(f"run must return one result per item ({len(items)}), got {len(results)}.")
        except Exception as error:
            failure = error
        finally:
            self._batches.discard(asyncio.current_task())
            self.size -= len(items)
            self._send()
        start = 0
        for entry in entries:
            # One response at a time: the next batch, for which a worker waits, must not come after all of them.
            await asyncio.sleep(0)
            stop = start + len(entry.items)
            if not entry.results.done():
                if failure is not None:
                    entry.results.set_exception(failure)
                else:
                    entry.results.set_result(results[start:stop])
            start = stop
