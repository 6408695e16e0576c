"""Starting and stopping the server: the model on Ray Serve, the HTTP side in this process.

The HTTP side is not a deployment of its own: calls would then pass through Ray's proxy one by one, while here
one call to Ray carries a whole batch, and one place sees all requests, which bounds the queue exactly and makes
batches as mixed as they can be.
"""

import asyncio
import contextlib
import dataclasses
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType

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
                server = _Server(frontend, settings.drain_s, lambda url: on_ready(url, ray_address))
                await server.serve([listener])
                return not server.force_exit

            return asyncio.run(main())


def check(settings: Settings, model: Classifier) -> Description:
    """Describe the model and print its input, after a batch here: mistakes in the settings are plain errors."""
    predictor = dataclasses.replace(settings, device="cpu").predictor(model)
    print(f"findtta: {predictor.input}", file=sys.stderr, flush=True)
    classes = predictor(np.zeros((2, *predictor.preprocess.size, 3), np.uint8)).probabilities.shape[1]
    if classes != len(predictor.labels):
        raise OptionError(f"num_classes: the model has {classes} classes, not {len(predictor.labels)}.")
    return Description.of(settings, predictor)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Only with this protocol asyncio sends small packets at once, which otherwise wait 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise OptionError(
                f"port: {settings.host}:{settings.port} cannot be used ({error.strerror}); "
                "choose another, or 0 for a free one."
            ) from error
        yield listener


class _Server(uvicorn.Server):
    """A web server that a signal drains before it stops; a second signal stops it at once."""

    def __init__(self, frontend: Frontend, drain_s: float, on_ready: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            frontend.app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            backlog=2048,
            timeout_graceful_shutdown=_LAST_RESPONSES_S,
        )
        super().__init__(config)
        self._frontend = frontend
        self._drain_s = drain_s
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.handle_exit, number, None)
        yield  # without raising the signals again at the end, as uvicorn does

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self._on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.gather(self._frontend.drain(), asyncio.sleep(self._drain_s))
        while not (self.force_exit or draining.done()):
            await asyncio.sleep(0.01)
        draining.cancel()
        await super().shutdown(sockets)
