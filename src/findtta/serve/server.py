"""Starting and stopping the server: the model on Ray Serve, the HTTP side in this process.

The HTTP side is not a deployment of its own: calls would then pass through Ray's proxy one by one, while here
one call to Ray carries a whole batch, and one place sees all requests, which bounds the queue exactly and makes
batches as mixed as they can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import torch
import uvicorn

from findtta.errors import OptionError
from findtta.models.card import Classifier
from findtta.serve.app import Frontend
from findtta.serve.engine import Description, ray_engine
from findtta.serve.pages import Comparison
from findtta.serve.settings import Settings
from findtta.serve.telemetry import Telemetry

#: Seconds that finished responses may take to leave.
_LAST_RESPONSES_S = 5


def run(settings: Settings, on_ready: Callable[[str, str], None]) -> bool:
    """Serve until a signal; see :func:`findtta.serve.serve`."""
    torch.set_num_threads(settings.threads)  # the page's comparisons run here, and must not starve the model
    with _listening(settings) as listener:  # a port in use shows before anything is loaded
        model = settings.load_model()
        description = check(settings, model)
        telemetry = Telemetry(description.layers, description.labels)
        with ray_engine(settings, telemetry) as (engine, ray_address):

            async def main() -> bool:
                frontend = Frontend(settings, description, engine, telemetry, Comparison(settings, model))
                return await _serve(frontend, settings.drain_s, listener, lambda url: on_ready(url, ray_address))

            return asyncio.run(main())


def check(settings: Settings, model: Classifier) -> Description:
    """Describe the model, after a batch in this process: mistakes in the settings are plain errors here."""
    predictor = dataclasses.replace(settings, device="cpu").predictor(model)
    classes = predictor(np.zeros((2, *predictor.preprocess.size, 3), np.uint8)).probabilities.shape[1]
    if classes != len(predictor.labels):
        raise OptionError(f"num_classes: the model has {classes} classes, not {len(predictor.labels)}.")
    return Description.of(settings, predictor)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it; a response in two packets would wait 40 ms for its second.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise OptionError(
                f"port: {settings.host}:{settings.port} cannot be used ({error.strerror}); "
                "choose another, or 0 for a free one."
            ) from error
        yield listener


class _Server(uvicorn.Server):
    """A web server without signal handlers of its own, which would stop it before it is drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def _serve(
    frontend: Frontend, drain_s: float, listener: socket.socket, on_ready: Callable[[str], None]
) -> bool:
    """Serve until a signal, then drain until everything is answered or a second signal comes."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    config = uvicorn.Config(
        frontend.app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=2048,
        timeout_graceful_shutdown=_LAST_RESPONSES_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await _first(stop.wait(), asyncio.shield(serving))
        await _first(asyncio.gather(frontend.drain(), asyncio.sleep(drain_s)), hurry.wait())
    finally:
        server.should_exit = True
        await serving
    return not hurry.is_set()


async def _first(*tasks: Awaitable[Any]) -> None:
    """Wait until one of several is done, and stop waiting for the others."""
    futures = [asyncio.ensure_future(task) for task in tasks]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in futures:
        future.cancel()
