"""No item is lost, processed twice or given another's result, whatever fails around it."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import run as run_virtually

from findtta.errors import InputError
from findtta.serve.batcher import Batcher, QueueFull


@dataclass
class Model:
    """Returns 10 * item + 1 after a while, and fails on chosen batches."""

    seconds: float = 0.05
    fails_on: frozenset[int] = frozenset()
    batches: list[list[int]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def __call__(self, items):
        number = len(self.batches)
        self.batches.append(list(items))
        self.starts.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        if number in self.fails_on:
            raise RuntimeError(f"batch {number} failed")
        return [10 * item + 1 for item in items]


def batcher(model, **changes):
    return Batcher(model, **{"max_batch": 4, "wait_s": 0.01, "max_queue": 100, **changes})


requests = st.lists(
    st.tuples(
        st.floats(0, 0.2),  # when it arrives
        st.integers(1, 4),  # how many items
        st.none() | st.floats(0.001, 0.3),  # how long it waits
        st.none() | st.floats(0.001, 0.3),  # when its client goes away
    ),
    max_size=25,
)


@given(
    requests=requests,
    seconds=st.floats(0, 0.1),
    fails_on=st.frozensets(st.integers(0, 12)),
    workers=st.integers(1, 3),
    ahead=st.integers(0, 2),
    max_queue=st.integers(4, 30),
)
def test_every_request_gets_its_own_results_or_an_error(requests, seconds, fails_on, workers, ahead, max_queue):
    model = Model(seconds, fails_on)

    async def scenario():
        queue = batcher(model, workers=workers, ahead=ahead, max_queue=max_queue)
        sizes = []

        async def client(first_item, arrival, count, timeout, leaves):
            await asyncio.sleep(arrival)
            sizes.append(queue.size)
            items = list(range(first_item, first_item + count))
            task = asyncio.ensure_future(queue.submit(items, timeout))
            if leaves is not None:
                asyncio.get_running_loop().call_later(leaves, task.cancel)
            try:
                return items, await task
            except (QueueFull, TimeoutError, RuntimeError, asyncio.CancelledError) as error:
                sizes.append(queue.size)
                return items, error

        starts = [sum(request[1] for request in requests[:index]) for index in range(len(requests))]
        outcomes = await asyncio.gather(*(client(*pair) for pair in _joined(starts, requests)))
        for _ in range(100):  # batches that nobody waits for may still run
            await asyncio.sleep(0.01 if queue.size else 0)
        return outcomes, sizes, queue.size

    outcomes, sizes, left = run_virtually(scenario())
    assert left == 0
    assert all(0 <= size <= max_queue for size in sizes)
    assert model.most_running <= workers + ahead
    assert all(1 <= len(batch) <= 4 for batch in model.batches)
    sent = Counter(item for batch in model.batches for item in batch)
    assert all(times == 1 for times in sent.values())
    failed = {item for number in fails_on if number < len(model.batches) for item in model.batches[number]}
    for (_, _, timeout, leaves), (items, outcome) in zip(requests, outcomes, strict=True):
        if isinstance(outcome, list):
            assert outcome == [10 * item + 1 for item in items]
            assert not failed & set(items)
            assert len({number for number, batch in enumerate(model.batches) if set(items) & set(batch)}) == 1
        elif isinstance(outcome, QueueFull):
            assert not sent.keys() & set(items)
        elif isinstance(outcome, TimeoutError):
            assert timeout is not None
        elif isinstance(outcome, RuntimeError):
            assert set(items) <= failed
        else:
            assert leaves is not None


def _joined(starts, requests):
    return [(start, *request) for start, request in zip(starts, requests, strict=True)]


@given(arrivals=st.lists(st.floats(0, 1), min_size=1, max_size=12, unique=True))
def test_requests_are_sent_in_the_order_they_came(arrivals):
    model = Model(0.02)

    async def scenario():
        queue = batcher(model)

        async def client(index):
            await asyncio.sleep(arrivals[index])
            await queue.submit([index])

        await asyncio.gather(*map(client, range(len(arrivals))))

    run_virtually(scenario())
    sent = [item for batch in model.batches for item in batch]
    assert sent == sorted(range(len(arrivals)), key=lambda index: arrivals[index])


def test_a_full_batch_goes_at_once_and_another_when_its_time_has_come():
    model = Model(0.05)

    async def scenario():
        queue = batcher(model, workers=2)
        await asyncio.gather(*(queue.submit([item]) for item in range(6)))

    run_virtually(scenario())
    assert model.batches == [[0, 1, 2, 3], [4, 5]]
    assert model.starts == pytest.approx([0, 0.01])


def test_a_request_that_seems_to_be_alone_does_not_wait_for_others():
    model = Model(0.05)

    async def scenario():
        queue = batcher(model)

        async def later(delay, item):
            await asyncio.sleep(delay)
            await queue.submit([item])

        # Alone, and again; then two at one moment, after which even a single one waits; then alone as before.
        delays = [0, 1, 2, 2.0005, 3, 4]
        await asyncio.gather(*(later(delay, item) for item, delay in enumerate(delays)))

    run_virtually(scenario())
    assert model.batches == [[0], [1], [2, 3], [4], [5]]
    assert model.starts == pytest.approx([0.001, 1.001, 2.001, 3.01, 4.001])


def test_the_next_batch_leaves_before_most_responses_of_the_last_are_written():
    model, events = Model(0.05), []

    async def run(items):
        events.append("batch")
        return await model(items)

    async def scenario():
        queue = batcher(run, max_batch=32, ahead=0)

        async def client(item):
            await queue.submit([item])
            events.append("response")

        await asyncio.gather(*map(client, range(64)))

    run_virtually(scenario())
    assert events.count("response") == 64
    assert events.index("batch", 1) <= 3


def test_while_the_worker_is_busy_a_full_batch_is_sent_ahead_and_a_small_one_grows():
    model = Model(1.0)

    async def scenario():
        queue = batcher(model)

        async def later(delay, item):
            await asyncio.sleep(delay)
            await queue.submit([item])

        delays = [0, 0, 0, 0, 0.1, 0.11, 0.12, 0.13, 0.2, 0.5]
        await asyncio.gather(*(later(delay, item) for item, delay in enumerate(delays)))

    run_virtually(scenario())
    assert model.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # The second is on its way while the first is computed; the third had to wait for an idle worker.
    assert model.starts == pytest.approx([0, 0.13, 1.13])


def test_a_request_stays_together_and_nobody_overtakes_it():
    model = Model()

    async def scenario():
        queue = batcher(model)
        return await asyncio.gather(queue.submit([0, 1]), queue.submit([2, 3, 4]), queue.submit([5]))

    assert run_virtually(scenario()) == [[1, 11], [21, 31, 41], [51]]
    assert model.batches == [[0, 1], [2, 3, 4, 5]]


def test_what_stands_behind_a_request_that_gave_up_is_not_forgotten():
    model = Model(0.05)

    async def scenario():
        queue = batcher(model, wait_s=0.02)
        first = asyncio.ensure_future(queue.submit([0, 1, 2], timeout_s=0.01))
        second = asyncio.ensure_future(queue.submit([3]))
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        return outcomes, asyncio.get_running_loop().time()

    (first, second), end = run_virtually(scenario())
    # Four items fill a batch: they are sent at once, and computed although the first client did not wait.
    assert isinstance(first, TimeoutError)
    assert second == [31]
    assert end == pytest.approx(0.05)


def test_a_wrong_number_of_results_is_an_error_not_a_shift():
    async def forgetful(items):
        return [1] * (len(items) - 1)

    async def scenario():
        return await batcher(forgetful).submit([1, 2])

    with pytest.raises(InputError, match="one result per item"):
        run_virtually(scenario())


def test_what_cannot_be_is_refused():
    async def scenario():
        queue = batcher(Model())
        await queue.submit([1, 2, 3, 4, 5])

    with pytest.raises(InputError, match="at most 4"):
        run_virtually(scenario())
