"""Running the server without Ray: the HTTP side in this process, one call of a replica for a whole batch."""

import asyncio
import contextlib
import platform
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TextIO

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from findtta.errors import OptionError
from findtta.serve import OnReady
from findtta.serve.alert import require_clean_images
from findtta.serve.app import Frontend
from findtta.serve.engine import Backend, Description, Engine
from findtta.serve.settings import Settings
from findtta.serve.telemetry import Kinds, Telemetry

#: Seconds that finished responses may take to leave.
_LAST_RESPONSES_S = 5
#: Seconds after which a thread that computes lets another one run; Python's own 5 ms are long beside a batch.
_SWITCH_S = 0.0005


def run(settings: Settings, listener: socket.socket, backend: Backend, on_ready: OnReady) -> bool:
    """Serve until a signal; see :func:`findtta.serve.serve`."""
    require_clean_images(settings.clean_images)

    async def main(access_log: TextIO | None) -> bool:
        description = await backend.start()
        print(f"findtta: {description.input}", file=sys.stderr, flush=True)
        engine = engine_of(settings, description, backend, access_log)
        frontend = Frontend(settings, description, engine, engine.telemetry)

        def ready(url: str) -> None:
            on_ready(url, description, backend.place)
            frontend.watch()
            frontend.overview.start()

        server = _Server(frontend, settings.drain_s, ready)
        await server.serve([listener])
        return not server.force_exit

    # A replica waits for its next batch until a thread that has read its predictions may run.
    sys.setswitchinterval(_SWITCH_S)
    loop = asyncio.Runner(loop_factory=auto_loop_factory())  # uvloop, where there is one
    with access_log_of(settings.access_log) as access_log, loop:
        return loop.run(main(access_log))


def engine_of(
    settings: Settings,
    description: Description,
    backend: Backend,
    access_log: TextIO | None,
    kinds: Kinds | None = None,
) -> Engine:
    """Return what asks replicas of the model, with the metrics of a server."""
    build = {"model": description.model, "method": description.method, "executor": settings.kind}
    build["shadow"] = settings.shadow or ""
    versions = {"python": platform.python_version(), "torch": metadata.version("torch")}
    telemetry = Telemetry(description.layers, description.labels, build | versions, access_log, kinds)
    return Engine(backend, telemetry, settings.timeout_s)


def access_log_of(target: str | None) -> contextlib.AbstractContextManager[TextIO | None]:
    """Open the file for lines about requests; ``"-"`` is stderr."""
    if target is None or target == "-":
        return contextlib.nullcontext(None if target is None else sys.stderr)
    try:
        return Path(target).open("a", encoding="utf-8", buffering=1)  # line by line
    except OSError as error:
        raise OptionError(f"access_log: {target!r} cannot be written ({error.strerror}).") from error


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
