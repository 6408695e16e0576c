"""Where the model runs: replicas on Ray Serve, and the engine through which the HTTP side asks them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from findtta._extras import require
from findtta._io import finite
from findtta._ray import Place, require_gpus, start_ray
from findtta.errors import FindTTAError
from findtta.images import Pixels, Preprocessing
from findtta.predictor import Predictions, Predictor
from findtta.serve.settings import MEBIBYTE, Settings
from findtta.serve.telemetry import Telemetry

APP_NAME = "findtta"
DEPLOYMENT_NAME = "Model"
#: Batches that a replica may hold: the one it computes, the next one, and room for retries.
_ONGOING = 4
_QUIET = {"enable_access_log": False, "log_level": "ERROR"}


class Unavailable(FindTTAError):
    """No replica of the model could be reached in time."""


@dataclass(frozen=True)
class Description:
    """What clients may know about a model."""

    model: str  # without the folder of a file
    method: str
    options: dict[str, Any]
    labels: tuple[str, ...]
    layers: tuple[str, ...]  # those whose groups and drift are recorded
    preprocessing: Preprocessing
    mean: tuple[float, ...]  # of RGB in [0, 1], by which the model normalizes its input
    std: tuple[float, ...]

    @classmethod
    def of(cls, settings: Settings, predictor: Predictor) -> Description:
        """Describe a loaded model."""
        return cls(
            model=settings.model_name,
            method=settings.method,
            options=json.loads(json.dumps(finite(vars(predictor.adapted.options)), default=str)),
            labels=_distinct(predictor.labels),
            layers=predictor.layers,
            preprocessing=predictor.preprocess,
            mean=predictor.card.mean,
            std=predictor.card.std,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain values; how an image becomes an input is all under ``preprocessing``."""
        described = asdict(self)
        described["preprocessing"] |= {
            "crop": round(self.preprocessing.crop, 4),
            "mean": described.pop("mean"),
            "std": described.pop("std"),
        }
        return described


def _distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Tell classes of one name apart by their numbers, since predictions are keyed by name."""
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    return tuple(f"{label} ({index})" if label in repeated else label for index, label in enumerate(labels))


class Replica:
    """One replica of the model, which predicts one batch at a time; Ray Serve runs it in its own process."""

    def __init__(self, settings: Settings, place: Place) -> None:
        place.enter()  # where relative paths of the settings start
        # A thread of its own leaves the event loop free to answer Ray Serve's health checks.
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(settings.threads,))
        self._predictor = self._thread.submit(settings.predictor).result()
        if not self._predictor.adapted.stateful:  # pay for the first call now, unless the model would remember it
            blank = np.zeros((2, *self._predictor.preprocess.size, 3), np.uint8)
            self._thread.submit(self._predictor, blank).result()
        self._name = uuid.uuid4().hex

    async def predict(self, images: Pixels) -> tuple[Predictions, str]:
        """Predict one batch; also returns the name of this replica."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._predictor, images), self._name


def is_death(error: BaseException) -> bool:
    """Whether a replica died or cannot be reached, rather than the batch being at fault."""
    exceptions = require("ray.exceptions", "serve", "serving")
    serve_exceptions = require("ray.serve.exceptions", "serve", "serving")
    if isinstance(error, exceptions.RayTaskError):
        return False  # raised by the model itself
    return isinstance(error, exceptions.RayError | serve_exceptions.RayServeException)


@dataclass
class Engine:
    """Asks replicas for predictions, and asks again when one dies: a death costs time, not predictions.

    Asking twice is harmless, since predictions depend on the images only.
    """

    call: Callable[[Pixels], Awaitable[tuple[Predictions, str]]]  # the predictions of a batch, by which replica
    telemetry: Telemetry
    patience_s: float  # how long a batch is tried again
    is_death: Callable[[BaseException], bool] = is_death  # or an error that would come again
    _retrying: int = 0

    @property
    def healthy(self) -> bool:
        """Whether no batch is being tried again."""
        return self._retrying == 0

    async def predict(self, images: Pixels) -> Predictions:
        """Predict a batch of preprocessed images; raises ``Unavailable`` if no replica predicts it in time."""
        loop = asyncio.get_running_loop()
        end, pause, retrying = loop.time() + self.patience_s, 0.05, False
        try:
            while True:
                try:
                    predictions, replica = await self.call(images)
                    self.telemetry.count_replica(replica)
                    return predictions
                except Exception as error:
                    if not self.is_death(error):
                        raise
                    if loop.time() + pause >= end:
                        raise Unavailable(str(error)) from error
                self._retrying += not retrying
                retrying = True
                self.telemetry.retries.inc()
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
        finally:
            self._retrying -= retrying


@contextlib.contextmanager
def ray_engine(settings: Settings, telemetry: Telemetry) -> Iterator[tuple[Engine, str]]:
    """Run replicas on Ray Serve for the block; gives the engine and Ray's address."""
    ray_serve = require("ray.serve", "serve", "serving")
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray = start_ray(
        settings.ray_address,
        num_cpus=settings.most_replicas * settings.threads + 1,
        extra="serve",
        object_store_memory=512 * MEBIBYTE,
    )
    try:
        require_gpus(ray, settings.replicas * settings.gpus)
        ray_serve.start(proxy_location="Disabled", logging_config=_QUIET)
        handle = ray_serve.run(_deployment(ray_serve, settings), name=APP_NAME, route_prefix=None)
        address = str(ray.get_runtime_context().gcs_address)
        yield Engine(handle.predict.remote, telemetry, settings.timeout_s), address
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
        Replica,
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
