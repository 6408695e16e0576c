"""How signals end the web server: the first drains it, a second one stops it at once."""

import asyncio
import os
import signal
import time

import pytest

pytest.importorskip("fastapi", reason="the 'serve' extra is not installed")
pytest.importorskip("uvicorn", reason="the 'serve' extra is not installed")
pytest.importorskip("prometheus_client", reason="the 'serve' extra is not installed")

from findtta.serve import Settings, listening
from findtta.serve.server import _Server


class Frontend:
    """Answers nothing, and drains for a while."""

    def __init__(self, drain_s: float) -> None:
        self.drain_s, self.drained = drain_s, False

    async def app(self, scope, receive, send):
        raise AssertionError("nobody asks")

    async def drain(self):
        await asyncio.sleep(self.drain_s)
        self.drained = True


def stopped_by(signals: int, frontend: Frontend) -> bool:
    """Serve until signals come; returns whether the server was forced to stop."""

    async def main() -> bool:
        urls = []
        with listening(Settings(port=0)) as listener:
            server = _Server(frontend, 0, urls.append)
            serving = asyncio.create_task(server.serve([listener]))
            async with asyncio.timeout(50):
                while not urls:
                    await asyncio.sleep(0.01)
                for _ in range(signals):
                    os.kill(os.getpid(), signal.SIGTERM)
                    await asyncio.sleep(0.2)
                await serving
        assert urls[0].startswith("http://127.0.0.1:")
        return server.force_exit

    return asyncio.run(main())


def test_one_signal_drains():
    frontend = Frontend(0.3)
    assert not stopped_by(1, frontend)
    assert frontend.drained


def test_a_second_signal_does_not_wait():
    frontend = Frontend(60)
    assert stopped_by(2, frontend)
    assert not frontend.drained


class Handle:
    """Ingress replicas on Ray that drain for a while."""

    def __init__(self, drain_s: float) -> None:
        self.drain_s = drain_s

    def broadcast(self, method):
        assert method == "drain"
        return self

    def results(self, *, timeout_s):
        time.sleep(self.drain_s)


@pytest.mark.parametrize(("drain_s", "signals", "complete"), [(0.2, 1, True), (60, 2, False)])
def test_the_same_holds_on_ray(drain_s, signals, complete):
    from findtta.serve.on_ray import _drain, _signals

    with _signals() as queue:
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
        queue.get(timeout=50)
        begin = time.monotonic()
        assert _drain(Handle(drain_s), Settings(), queue) is complete
    assert time.monotonic() - begin < 50
