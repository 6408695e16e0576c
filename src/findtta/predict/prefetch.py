"""Work ahead of what is asked for, in threads, in order, and never further than a given number of items."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Files that are read at once: enough to hide the latency of an object store.
READS = 32


def in_order(function: Callable[[Item], Result], items: Iterable[Item], ahead: int = READS) -> Iterator[Result]:
    """Yield what a function returns for each item, in order, while up to ``ahead`` of the next are under way."""
    pool = ThreadPoolExecutor(READS)
    coming: deque[Future[Result]] = deque()
    try:
        for item in items:
            coming.append(pool.submit(function, item))
            if len(coming) > ahead:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of an iterator, of which a thread has the next one ready or under way."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # it is not the end
