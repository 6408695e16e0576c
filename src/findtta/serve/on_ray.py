"""The server as a Ray Serve application: HTTP on every node, batches formed by the replicas of the model."""

import asyncio
import contextlib
import copy
import dataclasses
import logging
import math
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, create_model
from pydantic import model_validator as validator

from findtta._extras import require
from findtta._ray import Place, require_gpus, start_ray, worker_error
from findtta.errors import FindTTAError, OptionError, UnknownNameError, close_matches
from findtta.images import Pixels
from findtta.options import parse_assignments, require_type, split_list
from findtta.predictor import Predictions
from findtta.serve import OnReady, listening
from findtta.serve.batcher import Batcher, QueueFull
from findtta.serve.engine import Description, Engine, Replica, ReplicaDied, Row, Unavailable, rows_of
from findtta.serve.settings import KEY_VARIABLE, MEBIBYTE, Settings
from findtta.serve.telemetry import Kinds, Telemetry

APP_NAME = "findtta"
DEPLOYMENT_NAME = "Model"
#: Seconds beyond the longest request that a stopping replica has for its last responses.
_LAST_RESPONSES_S = 5
#: Tries to find a replica with the same model while another one is being rolled out.
_TRIES = 20
_QUIET = {"enable_access_log": False, "log_level": "ERROR"}
#: Settings that are Ray Serve's own: where it listens, and where it runs.
_NOT_ARGUMENTS = ("host", "port", "executor", "ray_address", "drain_s")


class _Arguments(BaseModel):
    """Base of the arguments of the application: ``Settings`` has their names, types and defaults."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)  # one of them is the API key

    @validator(mode="wrap")
    @classmethod
    def _read(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Read values, which are texts from ``serve run``; errors are those of the settings."""
        values, hints = dict(given), get_type_hints(Settings, include_extras=True)
        for name in values:
            if name in _NOT_ARGUMENTS:
                raise OptionError(f"{name} is not an argument of the application: Ray Serve's own options say it.")
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields)
                hint = close_matches(name, cls.model_fields)
                raise UnknownNameError(f"{name!r} must be an argument of the application ({known}).{hint}")
        if isinstance(values.get("options"), str):
            values["options"] = parse_assignments("options", split_list(values["options"]))
        try:
            return handler(values)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            require_type(name, values[name], hints[name])
            raise


def _arguments() -> type[_Arguments]:
    hints = get_type_hints(Settings, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        if field.name not in _NOT_ARGUMENTS:
            factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
            default: dict[str, Any] = {"default_factory": factory} if factory else {"default": field.default}
            about = Field(description=field.metadata.get("meaning"), **default)
            fields[field.name] = (hints[field.name], about)
    return create_model("Arguments", __base__=_Arguments, **fields)


Arguments = _arguments()


def application(arguments: BaseModel) -> Any:
    """Build the Ray Serve application; its arguments are the settings that Ray Serve does not have itself.

    The API key comes from ``$FINDTTA_API_KEY`` unless it is given.
    """
    given = arguments.model_dump(exclude_unset=True)
    given.setdefault("api_key", os.environ.get(KEY_VARIABLE, "").strip() or None)
    return build(Settings(ray_address="auto", **given))  # a device need not be one of the machine that builds it


application.__annotations__["arguments"] = Arguments  # Ray Serve reads it to parse the arguments


def build(settings: Settings) -> Any:
    """Return the application for some settings."""
    serve = require("ray.serve", "ray", "the executor 'ray'")
    from findtta.registry import load_method

    settings.require_servable()
    scaling = {
        "min_replicas": settings.replicas,
        "max_replicas": settings.most_replicas,
        "target_ongoing_requests": settings.max_batch,
        "upscale_delay_s": 5,
    }
    common = {
        "autoscaling_config": scaling,
        "max_queued_requests": settings.max_queue,
        "health_check_period_s": 1,  # a dead replica is replaced soon
        "health_check_timeout_s": 30,
        "graceful_shutdown_timeout_s": settings.timeout_s + _LAST_RESPONSES_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "backpressure_config": {"status_code": 503, "retry_after_s": 1},
    }
    model = serve.deployment(
        Model,
        name=DEPLOYMENT_NAME,
        max_ongoing_requests=2 * settings.max_batch,  # the batch that is computed, and the next one
        # A new replica starts before an old one stops, unless each would remember its own images.
        max_surge_percent=0 if load_method(settings.method).stateful else 25,
        ray_actor_options={"num_cpus": settings.threads, "num_gpus": settings.gpus},
        **common,
    ).bind(settings, Place.here())
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="Ingress",
        max_ongoing_requests=2 * settings.max_queue,  # so that it is here that a request too many is refused
        max_surge_percent=25,
        ray_actor_options={"num_cpus": 1},
        **common,
    )
    return ingress.bind(settings, Place.here(), model)


class Model:
    """A replica of the model, which forms batches of the requests of all ingress replicas."""

    def __init__(self, settings: Settings, place: Place) -> None:
        place.enter()  # where relative paths of the settings start
        self._settings = settings
        # A thread of its own leaves the event loop free to form batches and to answer health checks.
        self._thread = ThreadPoolExecutor(1)
        self._replica = self._thread.submit(Replica, settings).result()
        self._name = uuid.uuid4().hex
        self._begin = math.inf
        description = self._replica.description
        self._telemetry = Telemetry(description.layers, description.labels, kinds=_kinds())
        self._batcher = Batcher[Pixels, Row](
            run=self._predict_batch,
            max_batch=settings.max_batch,
            wait_s=settings.wait_ms / 1000,
            max_queue=2 * settings.max_batch**2,  # Ray Serve bounds it: see max_ongoing_requests
            ahead=0,
        )

    async def describe(self, settings: Settings) -> tuple[Description | None, str]:
        """Describe the model, or return None if this replica has other settings; also returns its name."""
        return (self._replica.description if settings == self._settings else None), self._name

    async def submit(self, images: Pixels, prepared_for: str) -> tuple[Sequence[Row] | None, str]:
        """Predict the images of one request in a batch with others; also returns the name of this replica.

        Returns None instead of predictions for images that were prepared for another model.
        """
        if prepared_for != _input_of(self._settings):
            return None, self._name
        return await self._batcher.submit(list(images)), self._name

    async def predict(self, *call: Any) -> tuple[Predictions, str]:
        """Predict images as a batch of their own; see ``Replica``. Also returns the name of this replica."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._replica, *call), self._name

    def check_health(self) -> None:
        """Have this replica replaced if it predicts one batch for longer than a request may take."""
        if time.monotonic() - self._begin > self._settings.timeout_s:
            raise TimeoutError("a batch is not predicted in time.")

    async def _predict_batch(self, images: Sequence[Pixels]) -> Sequence[Row]:
        self._begin = time.monotonic()
        try:
            predictions, _ = await self.predict(np.stack(images))
        finally:
            self._begin = math.inf
        self._telemetry.count_batch(predictions)
        return rows_of(predictions, self._settings.method_name)


def _input_of(settings: Settings) -> str:
    """Return what decides how images are prepared for a model, and what its classes are."""
    names = ("model", "weights", "num_classes", "normalization", "image_size", "crop", "interpolation", "card")
    return repr([getattr(settings, name) for name in names])


class Ingress:
    """A replica of the HTTP side: reads requests, and asks replicas of the model."""

    def __init__(self, settings: Settings, place: Place, model: Any) -> None:
        place.enter()
        self._settings, self._backend = settings, RayBackend(settings, model)

    async def __serve_build_asgi_app__(self) -> Any:
        """Return the app that Ray Serve runs, once the model can be asked."""
        from findtta.serve.app import Frontend
        from findtta.serve.server import access_log_of, engine_of

        description = await self._backend.start()
        access_log = contextlib.ExitStack().enter_context(access_log_of(self._settings.access_log))
        engine = engine_of(self._settings, description, self._backend, access_log, _kinds())
        batches = BatchesOnReplicas(self._settings, self._backend, engine)
        self._frontend = Frontend(self._settings, description, engine, engine.telemetry, batches)
        return _leaving_the_id(self._frontend.app)

    async def drain(self) -> None:
        """Accept nothing new, and wait until everything accepted is answered."""
        await self._frontend.drain()


def _leaving_the_id(app: Any) -> Any:
    """Leave the header with the id of the request to Ray Serve's proxy, which adds it to every response."""

    async def leaving(scope: Any, receive: Any, send: Any) -> None:
        async def send_rest(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
            await send(message)

        await app(scope, receive, send_rest)

    return leaving


@dataclass
class RayBackend:
    """Replicas of the model on Ray Serve, which replaces those that die."""

    settings: Settings
    model: Any  # the handle of their deployment
    place: str = "on Ray"
    most_deaths: float = math.inf  # calls fail until Ray Serve has noticed a death
    ready: bool = True
    failed: bool = False

    async def start(self) -> Description:
        """Wait for a replica that has these settings; during a rollout others may be there."""
        while True:
            with contextlib.suppress(ReplicaDied):
                description, _ = await self.call("describe", self.settings)
                if description is not None:
                    return description
            await asyncio.sleep(0.2)

    async def predict(self, *call: Any) -> tuple[Predictions, str]:
        """Have a replica predict a batch; also returns its name. Raises ``ReplicaDied`` if it died."""
        return await self.call("predict", *call)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of some replica; raises ``ReplicaDied`` if it died."""
        response = getattr(self.model, method).remote(*arguments)
        try:
            return await response
        except asyncio.CancelledError:  # out of time, or the client has left
            response.cancel()
            raise
        except Exception as error:
            if isinstance(error, require("ray.serve.exceptions", "ray", "the executor 'ray'").BackPressureError):
                raise QueueFull("too many requests wait for a replica.") from error
            if is_death(error):
                raise ReplicaDied(str(error)) from error
            raise


def is_death(error: BaseException) -> bool:
    """Whether a replica died or cannot be reached, rather than the batch being at fault."""
    exceptions = require("ray.exceptions", "ray", "the executor 'ray'")
    serve_exceptions = require("ray.serve.exceptions", "ray", "the executor 'ray'")
    if isinstance(error, exceptions.RayTaskError):
        return False  # raised by the model itself
    return isinstance(error, exceptions.RayError | serve_exceptions.RayServeException)


@dataclass
class BatchesOnReplicas:
    """Sends requests one by one: a replica of the model mixes those of all ingress replicas."""

    settings: Settings
    backend: RayBackend
    engine: Engine
    size: int = 0  # the number of images of this ingress replica that wait or are being predicted

    @property
    def is_idle(self) -> bool:
        """Whether no image of this ingress replica waits."""
        return self.size == 0

    async def submit(self, items: Sequence[Pixels], timeout_s: float | None = None) -> Sequence[Row]:
        """Have the images of one request predicted in one batch; see ``Batcher.submit``."""
        if self.size + len(items) > self.settings.max_queue:
            raise QueueFull(f"{self.size} images are in the queue, and at most {self.settings.max_queue} may be.")
        images = np.stack(items)
        self.size += len(items)
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(_TRIES):
                    rows: Sequence[Row] | None = await self.engine.ask(
                        lambda: self.backend.call("submit", images, _input_of(self.settings))
                    )
                    if rows is not None:
                        return rows
                    await asyncio.sleep(0.1)
                raise Unavailable("its replicas have another model now; this ingress replica is being replaced.")
        finally:
            self.size -= len(items)


def _kinds() -> Kinds:
    """Return metrics that Ray publishes on every node, with the names of deployment and replica."""
    metrics = require("ray.serve.metrics", "ray", "the executor 'ray'")

    def histogram(name: str, about: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> _Metric:
        return _Metric(metrics.Histogram(name, about, boundaries=list(buckets), tag_keys=tuple(labels)), labels)

    def plain(kind: Any) -> Callable[..., _Metric]:
        return lambda name, about, labels=(): _Metric(kind(name, about, tag_keys=tuple(labels)), labels)

    return Kinds(plain(metrics.Counter), plain(metrics.Gauge), histogram)


class _Metric:
    """A metric of Ray that is used like one of prometheus_client."""

    def __init__(self, metric: Any, keys: Sequence[str]) -> None:
        self._metric, self._keys, self._tags = metric, keys, dict[str, str]()

    def labels(self, *values: str, **named: str) -> "_Metric":
        labelled = copy.copy(self)
        labelled._tags = dict(zip(self._keys, values, strict=False)) | named
        return labelled

    def inc(self, amount: float = 1) -> None:
        self._metric.inc(amount, self._tags)

    def set(self, value: float) -> None:
        self._metric.set(value, self._tags)

    def observe(self, value: float) -> None:
        self._metric.observe(value, self._tags)


def run(settings: Settings, on_ready: OnReady) -> bool:
    """Run the application until a signal; see :func:`findtta.serve.serve`."""
    serve = require("ray.serve", "ray", "the executor 'ray'")
    with listening(settings) as listener:  # a port in use shows before anything is loaded
        port = listener.getsockname()[1]
    # Here first, so that mistakes in the settings are plain errors.
    description = Replica(dataclasses.replace(settings, device="cpu")).description
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray = start_ray(
        settings.ray_address,
        num_cpus=settings.most_replicas * (settings.threads + 1),
        object_store_memory=512 * MEBIBYTE,
    )
    started, complete = False, False
    try:
        require_gpus(ray, settings.replicas * settings.gpus)
        if serve.status().proxies:
            raise OptionError(
                "ray_address: Ray Serve already runs on this cluster; add the application with 'serve deploy'."
            )
        started = True
        serve.start(http_options={"host": settings.host, "port": port}, logging_config=_QUIET)
        handle = serve.run(build(settings), name=APP_NAME)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        place = f"on Ray at {ray.get_runtime_context().gcs_address}"
        with _signals() as signals:
            on_ready(f"http://{host}:{port}", description, place)
            signals.get()
            complete = _drain(handle, settings, signals)
        return complete
    except RuntimeError as error:  # what Ray Serve raises when no replica starts
        raise FindTTAError(f"the model could not be started on Ray Serve: {worker_error(error)}") from error
    finally:
        if started and (complete or settings.ray_address is not None):
            with contextlib.suppress(Exception):  # the cluster may have stopped
                serve.shutdown()
        ray.shutdown()


@contextlib.contextmanager
def _signals() -> Iterator["queue.SimpleQueue[int]"]:
    """Give a queue of the signals that ask this process to stop."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, _: numbers.put(number)) for number in kinds}
    try:
        yield numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drain(handle: Any, settings: Settings, signals: "queue.SimpleQueue[int]") -> bool:
    """Wait until everything accepted is answered, and tell load balancers; False if a signal ends it."""
    end, outcome = time.monotonic() + settings.drain_s, list[bool]()

    def drain() -> None:
        try:
            handle.broadcast("drain").results(timeout_s=settings.timeout_s)
            outcome.append(True)
        except Exception:
            outcome.append(False)

    threading.Thread(target=drain, daemon=True).start()  # one that nothing waits for
    while not outcome or time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            signals.get(timeout=0.05)
            return False
    return outcome[0]
