"""Starting and stopping the server: the model on Ray Serve, the HTTP side in this process.

The HTTP side is not a deployment of its own: calls would then pass through Ray's proxy one by one, while here
one call to Ray carries a whole batch, and one place sees all requests, which bounds the queue exactly and makes
batches as mixed as they can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import importlib.util
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import torch

from findtta._ray import Place, start_ray
from findtta.errors import FindTTAError, MissingExtraError, OptionError
from findtta.images import Pixels
from findtta.serve.model import (
    APP_NAME,
    DEPLOYMENT_NAME,
    BatchAnswer,
    Classify,
    Description,
    Model,
    Persistent,
)
from findtta.serve.settings import MEBIBYTE, Settings

#: Batches that a copy may hold: the one it computes, the next one, and room for tries after a death.
_ONGOING = 4
#: Answers that are ready may take so long to leave, in seconds.
_LAST_WORDS_S = 5


def require_extra() -> None:
    """Raise unless everything that serving needs is installed."""
    for name in ("ray", "fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(
                f"serving needs the 'serve' extra, since {name} is not installed: pip install \"findtta[serve]\""
            )


def serve(settings: Settings, on_ready: Callable[[str, str], None] = print) -> bool:
    """Serve until SIGTERM or Ctrl-C, then answer what was accepted; a second signal ends that.

    Args:
        settings: Of the server.
        on_ready: Told the URL and Ray's address as soon as requests are answered.

    Returns:
        Whether everything that was accepted was answered.
    """
    require_extra()
    torch.set_num_threads(settings.threads)  # the page's comparisons run here, and must not starve the model
    with _listening(settings) as listener:  # a port that is taken shows before anything is loaded
        description = check(settings)
        with deployed(settings) as classify:
            return asyncio.run(_serve(settings, description, classify, listener, on_ready))


def check(settings: Settings) -> Description:
    """Load the model once in this process, so that mistakes show as plain errors."""
    predictor = dataclasses.replace(settings, device="cpu").predictor()
    classes = predictor(np.zeros((2, *predictor.preprocess.size, 3), np.uint8)).probabilities.shape[1]
    if classes != len(predictor.labels):
        raise OptionError(f"num_classes: the model gives {classes} classes, not {len(predictor.labels)}.")
    return Description.of(settings, predictor)


@contextlib.contextmanager
def deployed(settings: Settings) -> Iterator[Classify]:
    """Run the model on Ray Serve for a while.

    Args:
        settings: Of the server.

    Yields:
        What answers a batch; it raises Ray's errors when a copy dies.
    """
    ray_serve: Any = importlib.import_module("ray.serve")
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray = start_ray(
        settings.ray_address,
        num_cpus=settings.most_replicas * settings.threads + 1,
        extra="serve",
        object_store_memory=512 * MEBIBYTE,
    )
    try:
        ray_serve.start(proxy_location="Disabled", logging_config=_quiet())
        handle = ray_serve.run(_deployment(ray_serve, settings), name=APP_NAME, route_prefix=None)

        async def classify(pictures: Pixels) -> BatchAnswer:
            answer: BatchAnswer = await handle.predict.remote(pictures)
            return answer

        yield classify
    except RuntimeError as error:  # what Ray Serve says when no copy starts
        raise FindTTAError(f"the model could not be started on Ray Serve: {error}") from error
    finally:
        if settings.ray_address is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray_serve.delete(APP_NAME)
        ray.shutdown()  # and with it all of a Ray of its own


def _deployment(ray_serve: Any, settings: Settings) -> Any:
    scaling: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.most_replicas > settings.replicas:
        scaling = {
            "autoscaling_config": {
                "min_replicas": settings.replicas,
                "max_replicas": settings.most_replicas,
                "target_ongoing_requests": 1,  # a request is a batch here
                "upscale_delay_s": 5,
            }
        }
    needs_gpu = settings.device.startswith("cuda")
    deployment = ray_serve.deployment(
        Model,
        name=DEPLOYMENT_NAME,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": settings.threads, "num_gpus": int(needs_gpu)},
        health_check_period_s=1,  # a dead copy is replaced soon
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=10,
        logging_config=_quiet(),
        **scaling,
    )
    return deployment.bind(settings, Place.here())


def _quiet() -> dict[str, Any]:
    return {"enable_access_log": False, "log_level": "ERROR"}


def _ray_address() -> str:
    ray: Any = importlib.import_module("ray")
    return str(ray.get_runtime_context().gcs_address)


def is_death(error: BaseException) -> bool:
    """Whether a copy of the model died or cannot be reached, rather than the batch being at fault."""
    exceptions: Any = importlib.import_module("ray.exceptions")
    serve_exceptions: Any = importlib.import_module("ray.serve.exceptions")
    if isinstance(error, exceptions.RayTaskError):
        return False  # raised by the model itself
    return isinstance(error, exceptions.RayError | serve_exceptions.RayServeException)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it; an answer in two packets would wait 40 ms for its second.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise OptionError(
                f"port: {settings.host}:{settings.port} cannot be listened at ({error.strerror}); "
                "choose another, or 0 for a free one."
            ) from error
        yield listener


async def _serve(
    settings: Settings,
    description: Description,
    classify: Classify,
    listener: socket.socket,
    on_ready: Callable[[str, str], None],
) -> bool:
    uvicorn: Any = importlib.import_module("uvicorn")
    from findtta.serve.app import Front, Unavailable
    from findtta.serve.metrics import Metrics

    metrics = Metrics(description.layers, description.labels)
    persistent = Persistent(classify, is_death, settings.timeout_s, metrics.count_retry)

    async def answer(pictures: Pixels) -> BatchAnswer:
        try:
            return await persistent(pictures)
        except Exception as error:
            if is_death(error):
                raise Unavailable(str(error)) from error
            raise

    front = Front(settings, description, answer, metrics=metrics, healthy=lambda: persistent.healthy)
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    config = uvicorn.Config(
        front.app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=2048,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )

    class Server(uvicorn.Server):  # type: ignore[misc]  # whose handlers would stop it before it is drained
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", _ray_address())
        await _first(stop.wait(), asyncio.shield(running))
        await _first(asyncio.gather(front.drain(), asyncio.sleep(settings.drain_s)), hurry.wait())
    finally:
        server.should_exit = True
        await running
        front.close()
    return not hurry.is_set()


async def _first(*tasks: Awaitable[Any]) -> None:
    """Wait until one of several is done, and stop waiting for the others."""
    futures = [asyncio.ensure_future(task) for task in tasks]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in futures:
        future.cancel()
