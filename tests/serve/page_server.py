"""The HTTP side of the server in a thread, with a model of this process."""

import asyncio
import threading
import time
from contextlib import contextmanager

import uvicorn

from findtta.serve.app import Frontend
from findtta.serve.engine import Description, Replica
from findtta.serve.telemetry import Telemetry


class Here:
    """Predicts in threads of this process, one batch at a time."""

    healthy, failed = True, False

    def __init__(self, model):
        self._model, self._lock = model, threading.Lock()

    async def predict(self, images, choice=None, *, once=False):
        return await asyncio.to_thread(self._predict, images, *([] if choice is None else [choice]))

    def _predict(self, *batch):
        with self._lock:
            return self._model(*batch)


def frontend(settings, engine=None):
    if engine is None:
        replica = Replica(settings)
        engine, description = Here(replica), replica.description
    else:
        description = Description.of(settings, settings.predictor())
    return Frontend(settings, description, engine, Telemetry(description.layers, description.labels))


def app(settings, engine=None):
    return frontend(settings, engine).app


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
