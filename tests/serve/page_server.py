"""The HTTP side of the server in a thread, with no model or one of this process."""

import asyncio
import threading
import time
from contextlib import contextmanager

import uvicorn

from findtta.serve.app import Frontend
from findtta.serve.engine import Description
from findtta.serve.telemetry import Telemetry


class NoModel:
    healthy, failed = True, False

    async def predict(self, images, choice=None):
        raise AssertionError("the page compares; it does not ask for predictions")


class Here:
    """Predicts in a thread of this process."""

    healthy, failed = True, False

    def __init__(self, predictor):
        self._predictor = predictor

    async def predict(self, images, choice=None):
        return await asyncio.to_thread(self._predictor, images)


def app(settings, engine=None):
    description = Description.of(settings, settings.predictor())
    telemetry = Telemetry(description.layers, description.labels)
    return Frontend(settings, description, engine or NoModel(), telemetry).app


@contextmanager
def serving(settings, engine=None):
    """Serve on a free port of this machine; gives the address."""
    config = uvicorn.Config(
        app(settings, engine), host="127.0.0.1", port=0, log_level="critical", ws="none", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(1000):
        if server.started:
            break
        time.sleep(0.01)
    assert server.started, "the server does not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)
