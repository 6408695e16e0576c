"""The prediction server: requests of many clients share mixed batches, which a method predicts."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from findtta._extras import require_installed
from findtta.errors import OptionError
from findtta.serve.engine import Description
from findtta.serve.settings import Settings

__all__ = ["Description", "Settings", "serve"]

OnReady = Callable[[str, Description, str], None]


def serve(settings: Settings, on_ready: OnReady = print) -> bool:
    """Serve until SIGTERM or Ctrl-C, then answer what was accepted; a second signal stops at once.

    Calls ``on_ready`` with the URL, what is served and where its replicas run as soon as requests are answered,
    and returns whether everything that was accepted was answered. Raises ``MissingExtraError`` without the extra
    ``serve``, or without ``ray`` for the executor of that name.
    """
    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require_installed(module, "serve", f"serving (with {module})")
    if settings.kind == "ray":
        from findtta.serve.on_ray import run as run_on_ray

        return run_on_ray(settings, on_ready)
    from findtta.serve.embedded import Workers

    # A port in use shows before anything is loaded, and the model loads while the HTTP side is imported.
    with listening(settings) as listener, Workers(settings) as backend:
        from findtta.serve.server import run

        return run(settings, listener, backend, on_ready)


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """Give a socket that is bound to the address of the server."""
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


def __getattr__(name: str) -> Any:
    """Import the Ray Serve application when it is first asked for: nothing else needs Ray.

    ``application`` is a builder with arguments. ``default_application`` is what it builds without any: 'serve
    build' takes no builder.
    """
    if name not in ("application", "default_application"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from findtta.serve import on_ray

    return on_ray.application if name == "application" else on_ray.application(on_ray.Arguments())
