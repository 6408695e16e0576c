"""The prediction server: requests of many clients share mixed batches, which a method predicts on Ray Serve."""

from collections.abc import Callable

from findtta._extras import require
from findtta.serve.settings import Settings

__all__ = ["Settings", "serve"]


def serve(settings: Settings, on_ready: Callable[[str, str], None] = print) -> bool:
    """Serve until SIGTERM or Ctrl-C, then answer what was accepted; a second signal stops at once.

    Calls ``on_ready`` with the URL and Ray's address as soon as requests are answered, and returns whether
    everything that was accepted was answered. Raises ``MissingExtraError`` without the extra ``serve``.
    """
    for module in ("ray.serve", "fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, "serve", f"serving (with {module})")
    from findtta.serve.server import run

    return run(settings, on_ready)
