"""The engine: what the HTTP side asks for predictions, and the model as each replica runs it.

Where replicas run is the business of a backend: in processes of this machine (``embedded``), or on Ray Serve.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from findtta._io import finite
from findtta.errors import FindTTAError, OptionError
from findtta.images import Pixels, Preprocessing
from findtta.plugins import public_values
from findtta.predictor import Predictions
from findtta.serve.settings import Choice, Settings

if TYPE_CHECKING:
    from findtta.predictor import Predictor
    from findtta.serve.telemetry import Telemetry


Result = TypeVar("Result")


class Unavailable(FindTTAError):
    """No replica of the model could be reached in time."""


class ReplicaDied(FindTTAError):
    """A replica died or cannot be reached, rather than the batch being at fault."""


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
    warm_up_batches: int = 0  # on which a new replica warms up
    stateful: bool = False  # whether a batch changes how later ones are predicted
    batch_independent: bool = False  # whether the prediction for an image depends on nothing but the image
    trained_on: str | None = None  # the dataset of the weights, where known
    input: str = ""  # in one line what the model is given, and what says so

    @classmethod
    def of(cls, settings: Settings, predictor: Predictor) -> Description:
        """Describe a loaded model."""
        return cls(
            model=settings.model_name,
            method=settings.method_name,
            options=json.loads(json.dumps(finite(public_values(vars(predictor.adapted.options))), default=str)),
            labels=_distinct(predictor.labels),
            layers=predictor.layers,
            preprocessing=predictor.preprocess,
            mean=predictor.card.mean,
            std=predictor.card.std,
            warm_up_batches=settings.warm_up_batches,
            stateful=predictor.adapted.stateful,
            batch_independent=not settings.depends_on_batch,
            trained_on=predictor.card.trained_on,
            input=predictor.input,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain values; how an image becomes an input is all under ``preprocessing``."""
        described = asdict(self)
        del described["input"]
        described["preprocessing"] |= {
            "crop": round(self.preprocessing.crop, 4),
            "mean": described.pop("mean"),
            "std": described.pop("std"),
        }
        return described


#: The use of a choice that is only tried.
TRIAL = "trial"


@dataclass(frozen=True)
class Tried(Predictions):
    """Predictions of a method that was tried, and what would be served under it."""

    description: Description = field(kw_only=True)


def _distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Tell classes of one name apart by their numbers, since predictions are keyed by name."""
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    return tuple(f"{label} ({index})" if label in repeated else label for index, label in enumerate(labels))


class Row(NamedTuple):
    """The prediction for one image: a row of its batch."""

    probabilities: NDArray[np.float32]
    group: int
    drift: float
    method: str  # that predicted the batch
    batch_size: int
    batch_id: str


def rows_of(predictions: Predictions, method: str) -> list[Row]:
    """Return the predictions of one batch row by row."""
    groups, drift = predictions.last_groups.tolist(), predictions.sample_drift.tolist()
    batch_id = uuid.uuid4().hex
    rows = zip(predictions.probabilities, groups, drift, strict=True)
    return [Row(*row, method=method, batch_size=len(groups), batch_id=batch_id) for row in rows]


class Replica:
    """One replica of the model, which predicts one batch at a time, under the served method or another one.

    Whatever is wrong with the settings is a plain error here, after one batch if need be.
    """

    #: Methods beside the served one that are kept; the one that was used least recently goes.
    _MOST_CHOICES = 8

    def __init__(self, settings: Settings) -> None:
        import torch

        settings.require_servable()
        torch.set_num_threads(settings.threads)
        self._settings, self._model = settings, settings.load_model()
        self._others: dict[str, Predictor] = {}
        self._predictor = settings.predictor(self._model)
        # Also pays for the first call, unless the model would remember it.
        first = settings.predictor(self._model) if self._predictor.adapted.stateful else self._predictor
        classes = first(np.zeros((2, *first.preprocess.size, 3), np.uint8)).probabilities.shape[1]
        if settings.compile:  # batches of one have a graph of their own, which no client should wait for
            first(np.zeros((1, *first.preprocess.size, 3), np.uint8))
        if classes != len(first.labels):
            raise OptionError(f"num_classes: the model has {classes} classes, not {len(first.labels)}.")
        self.description = Description.of(settings, self._predictor)
        if settings.shadow_choice is not None:
            try:
                self._chosen(settings.shadow_choice)
            except FindTTAError as error:
                raise type(error)(f"shadow: {error}") from error

    def __call__(self, images: Pixels, choice: Choice | None = None) -> Predictions:
        """Predict one batch; raises ``OptionError`` if the method of a choice cannot be served.

        Predictions of a method that is tried are ``Tried``; it is not kept.
        """
        if choice is None:
            return self._predictor(images)
        if choice.use == TRIAL:
            predictor = self._under(choice)
            described = Description.of(self._settings.under(choice), predictor)
            return Tried(**vars(predictor(images)), description=described)
        return self._chosen(choice)(images)

    def _chosen(self, choice: Choice) -> Predictor:
        key = repr(choice)  # values of options may be lists
        predictor = self._others.pop(key, None) or self._under(choice)
        self._others[key] = predictor  # the newest is the last
        if len(self._others) > self._MOST_CHOICES:
            del self._others[next(iter(self._others))]
        return predictor

    def _under(self, choice: Choice) -> Predictor:
        settings = self._settings.under(choice)
        settings.require_servable()
        return settings.predictor(self._model)


class Backend(Protocol):
    """Replicas of the model somewhere."""

    place: str  # where the replicas run, for the user
    most_deaths: float  # of replicas over one batch, which is then given up: it may be the reason

    @property
    def ready(self) -> bool:
        """Whether a replica can be reached."""

    @property
    def failed(self) -> bool:
        """Whether none ever will be again."""

    async def start(self) -> Description:
        """Wait until the replicas are there; raises ``FindTTAError`` if they cannot be started."""

    async def predict(self, images: Pixels, choice: Choice | None = None) -> tuple[Predictions, str]:
        """Predict a batch; also returns the name of the replica. Raises ``ReplicaDied`` if it died."""


@dataclass
class Engine:
    """Asks replicas for predictions, and asks again when one dies: a death costs time, not predictions.

    Asking twice is harmless, since predictions depend on the images only.
    """

    backend: Backend
    telemetry: Telemetry
    patience_s: float  # how long a batch is tried again
    _retrying: int = 0

    @property
    def healthy(self) -> bool:
        """Whether a replica can be reached, and no batch is being tried again."""
        return self._retrying == 0 and self.backend.ready

    @property
    def failed(self) -> bool:
        """Whether nothing will be predicted again unless the server is restarted."""
        return self.backend.failed

    async def predict(self, images: Pixels, choice: Choice | None = None, *, once: bool = False) -> Predictions:
        """Predict a batch of preprocessed images, under the served method unless another one is chosen.

        Raises ``Unavailable`` if no replica predicts it in time, or if one dies and is asked ``once``.
        """
        # Whoever does not wait any more must not take the replica along.
        return await self.ask(lambda: asyncio.shield(self.backend.predict(images, choice)), once=once)

    async def ask(self, call: Callable[[], Awaitable[tuple[Result, str]]], *, once: bool = False) -> Result:
        """Call a replica, again if it dies; the call also returns the replica's name. Raises ``Unavailable``."""
        loop = asyncio.get_running_loop()
        end, pause, deaths = loop.time() + self.patience_s, 0.05, 0
        try:
            while True:
                try:
                    result, replica = await call()
                    self.telemetry.count_replica(replica)
                    return result
                except ReplicaDied as error:
                    self._retrying += not deaths
                    deaths += 1
                    if once or loop.time() + pause >= end or deaths >= self.backend.most_deaths:
                        raise Unavailable(str(error)) from error
                self.telemetry.retries.inc()
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
        finally:
            self._retrying -= deaths > 0
