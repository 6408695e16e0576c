"""Replicas in processes of this machine: errors, deaths and hangs, and what a server does that cannot go on."""

import asyncio
import os
import signal
import textwrap
import time

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="the 'serve' extra is not installed")

from findtta.errors import OptionError, WorkerError
from findtta.serve import Settings
from findtta.serve.embedded import Workers
from findtta.serve.engine import Engine, Unavailable
from findtta.serve.telemetry import Telemetry

pytestmark = pytest.mark.slow

#: What the first pixel of a batch makes of the model below.
FINE, RAISES, DIES, HANGS = 10, 20, 30, 40


@pytest.fixture
def own_model(tmp_path):
    """A model that misbehaves for some images, and cannot be started while a file is there."""
    file = tmp_path / "moody.py"
    file.write_text(
        textwrap.dedent(
            """
            import os, time
            from pathlib import Path
            from torch import nn

            class Moody(nn.Sequential):
                def forward(self, x):
                    mood = round(255 * float(x[0, 0, 0, 0]))
                    if mood == 20:
                        raise ValueError("it does not like this image")
                    if mood == 30:
                        os._exit(7)
                    if mood == 40:
                        time.sleep(60)
                    return super().forward(x)

            def make():
                if Path(__file__).with_name("broken").exists():
                    os._exit(3)
                first = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
                return Moody(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
            """
        )
    )
    return f"{file}:make"


def batch(mood: int) -> np.ndarray:
    return np.full((2, 8, 8, 3), mood, np.uint8)


def with_workers(use, **settings):
    """Run ``use(engine, workers)`` beside replicas."""

    async def main(workers):
        await workers.start()
        return await use(Engine(workers, Telemetry((), ()), 10), workers)

    with Workers(Settings(method="source", num_classes=5, image_size=8, **settings)) as workers:
        return asyncio.run(main(workers))


def test_an_error_of_the_model_is_raised_here_and_costs_no_process(own_model):
    async def use(engine, workers):
        with pytest.raises(ValueError, match="does not like") as caught:
            await engine.predict(batch(RAISES))
        before = [worker.process.pid for worker in workers._workers]
        predictions = await engine.predict(batch(FINE))
        return caught.value.__notes__, before == [worker.process.pid for worker in workers._workers], predictions

    notes, same, predictions = with_workers(use, model=own_model)
    assert "in forward" in notes[0]
    assert same
    assert predictions.probabilities.shape == (2, 5)


def test_a_batch_that_kills_every_replica_is_given_up_and_others_are_predicted(own_model):
    async def use(engine, workers):
        bad = asyncio.ensure_future(engine.predict(batch(DIES)))
        good = await asyncio.gather(*(engine.predict(batch(FINE)) for _ in range(20)))
        with pytest.raises(Unavailable):
            await bad
        return good, await engine.predict(batch(FINE)), engine.failed

    good, after, failed = with_workers(use, model=own_model, replicas=2)
    assert {len(one.probabilities) for one in (*good, after)} == {2}
    assert not failed


def test_a_replica_that_hangs_is_killed_and_replaced(own_model):
    async def use(engine, workers):
        (hanging,) = (worker.process.pid for worker in workers._workers)
        with pytest.raises(TimeoutError):
            await engine.predict(batch(HANGS))
        await engine.predict(batch(FINE))
        return hanging, [worker.process.pid for worker in workers._workers]

    hanging, now = with_workers(use, model=own_model, timeout_s=1)
    assert hanging not in now
    assert len(now) == 1


def test_a_replica_that_dies_at_every_start_is_an_error(own_model, tmp_path):
    (tmp_path / "broken").touch()
    with pytest.raises(WorkerError, match=r"started in 3 attempts; the last: .* ended with exit code 3"):
        with_workers(None, model=own_model)


def test_a_replica_that_cannot_be_replaced_makes_the_server_fail_and_not_wait(own_model, tmp_path, caplog):
    async def use(engine, workers):
        (tmp_path / "broken").touch()
        assert (engine.healthy, engine.failed) == (True, False)
        os.kill(workers._workers[0].process.pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(Unavailable, match="could not be started in 3 attempts"):
            await engine.predict(batch(FINE))
        assert (engine.healthy, engine.failed) == (False, True)
        with pytest.raises(Unavailable):
            await engine.predict(batch(FINE))
        return time.monotonic() - start

    assert with_workers(use, model=own_model) < 30
    assert "was killed by SIGKILL and is replaced" in caplog.text
    assert "Restart the server" in caplog.text


def test_replicas_that_come_back_are_used_though_another_is_given_up(own_model, tmp_path):
    async def use(engine, workers):
        first, second = (worker.process.pid for worker in workers._workers)
        (tmp_path / "broken").touch()
        os.kill(first, signal.SIGKILL)
        await asyncio.sleep(0.8)
        os.kill(second, signal.SIGKILL)
        async with asyncio.timeout(60):
            while workers._error is None:  # until the first is given up
                await asyncio.sleep(0.001)
            (tmp_path / "broken").unlink()
            while not engine.healthy and not engine.failed:
                await asyncio.sleep(0.01)
        assert not engine.failed
        return [len((await engine.predict(batch(FINE))).probabilities) for _ in range(6)]

    assert with_workers(use, model=own_model, replicas=2) == [2] * 6


def test_replicas_that_died_idle_cost_no_batch_its_lives(own_model):
    async def use(engine, workers):
        for _ in range(6):
            worker = workers._workers[0]
            os.kill(worker.process.pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                while worker in workers._workers or not engine.healthy:
                    await asyncio.sleep(0.01)
        return await engine.predict(batch(FINE))

    assert with_workers(use, model=own_model).probabilities.shape == (2, 5)


def test_an_idle_replica_that_dies_is_replaced_before_anybody_asks(own_model):
    async def use(engine, workers):
        (victim,) = (worker.process.pid for worker in workers._workers)
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(60):
            while [worker.process.pid for worker in workers._workers] in ([], [victim]) or not engine.healthy:
                await asyncio.sleep(0.01)
        return await engine.predict(batch(FINE))

    assert with_workers(use, model=own_model).probabilities.shape == (2, 5)


def test_what_is_wrong_with_the_settings_is_raised_at_once():
    async def start(workers):
        await workers.start()

    with Workers(Settings(method="tent")) as workers, pytest.raises(OptionError, match="learns from every batch"):
        asyncio.run(start(workers))
