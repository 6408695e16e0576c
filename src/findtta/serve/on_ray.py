"""The executor 'ray': replicas of the model on Ray Serve, on this machine or on a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from findtta._extras import require
from findtta._ray import Place, require_gpus, start_ray
from findtta.errors import FindTTAError
from findtta.images import Pixels
from findtta.predictor import Predictions
from findtta.serve.engine import Description, Replica, ReplicaDied
from findtta.serve.settings import MEBIBYTE, Choice, Settings

APP_NAME = "findtta"
DEPLOYMENT_NAME = "Model"
#: Batches that a replica may hold: the one it computes, the next one, and room for retries.
_ONGOING = 4
_QUIET = {"enable_access_log": False, "log_level": "ERROR"}


class RayReplica:
    """A replica that Ray Serve runs in a process of its own."""

    def __init__(self, settings: Settings, place: Place) -> None:
        place.enter()  # where relative paths of the settings start
        # A thread of its own leaves the event loop free to answer Ray Serve's health checks.
        self._thread = ThreadPoolExecutor(1)
        self._replica = self._thread.submit(Replica, settings).result()
        self._name = uuid.uuid4().hex

    async def predict(self, images: Pixels, choice: Choice | None = None) -> tuple[Predictions, str]:
        """Predict one batch; also returns the name of this replica."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._replica, images, choice), self._name


def is_death(error: BaseException) -> bool:
    """Whether a replica died or cannot be reached, rather than the batch being at fault."""
    exceptions = require("ray.exceptions", "ray", "the executor 'ray'")
    serve_exceptions = require("ray.serve.exceptions", "ray", "the executor 'ray'")
    if isinstance(error, exceptions.RayTaskError):
        return False  # raised by the model itself
    return isinstance(error, exceptions.RayError | serve_exceptions.RayServeException)


@dataclass
class RayBackend:
    """Replicas on Ray Serve, which replaces those that die."""

    call: Callable[[Pixels, Choice | None], Awaitable[tuple[Predictions, str]]]
    description: Description
    place: str
    most_deaths: float = math.inf  # calls fail until Ray Serve has noticed a death
    ready: bool = True
    failed: bool = False

    async def start(self) -> Description:
        """Describe the model; Ray Serve has started it."""
        return self.description

    async def predict(self, images: Pixels, choice: Choice | None = None) -> tuple[Predictions, str]:
        """Predict a batch; also returns the name of the replica. Raises ``ReplicaDied`` if it died."""
        try:
            return await self.call(images, choice)
        except Exception as error:
            if is_death(error):
                raise ReplicaDied(str(error)) from error
            raise


@contextlib.contextmanager
def on_ray(settings: Settings) -> Iterator[RayBackend]:
    """Run replicas on Ray Serve for the block."""
    ray_serve = require("ray.serve", "ray", "the executor 'ray'")
    # Here first, so that mistakes in the settings are plain errors.
    description = Replica(dataclasses.replace(settings, device="cpu")).description
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray = start_ray(
        settings.ray_address,
        num_cpus=settings.most_replicas * settings.threads + 1,
        object_store_memory=512 * MEBIBYTE,
    )
    try:
        require_gpus(ray, settings.replicas * settings.gpus)
        ray_serve.start(proxy_location="Disabled", logging_config=_QUIET)
        handle = ray_serve.run(_deployment(ray_serve, settings), name=APP_NAME, route_prefix=None)
        address = str(ray.get_runtime_context().gcs_address)
        yield RayBackend(handle.predict.remote, description, f"on Ray at {address}")
    except RuntimeError as error:  # what Ray Serve raises when no replica starts
        raise FindTTAError(f"the model could not be started on Ray Serve: {error}") from error
    finally:
        if settings.ray_address is not None:
            with contextlib.suppress(Exception):  # the cluster may have stopped
                ray_serve.delete(APP_NAME)
        ray.shutdown()


def _deployment(ray_serve: Any, settings: Settings) -> Any:
    scaling = {
        "min_replicas": settings.replicas,
        "max_replicas": settings.most_replicas,
        "target_ongoing_requests": 1,  # a request is a batch here
        "upscale_delay_s": 5,
    }
    deployment = ray_serve.deployment(
        RayReplica,
        name=DEPLOYMENT_NAME,
        autoscaling_config=scaling,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": settings.threads, "num_gpus": settings.gpus},
        health_check_period_s=1,  # a dead replica is replaced soon
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=10,
        logging_config=_QUIET,
    )
    return deployment.bind(settings, Place.here())
