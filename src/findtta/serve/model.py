"""The model behind the server: what answers a batch, where it runs, and trying again when it dies."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from findtta._ray import Place
from findtta.images import Pixels, Preprocessing
from findtta.predictor import Predictions, Predictor
from findtta.serve.settings import Settings

APP_NAME = "findtta"
DEPLOYMENT_NAME = "Model"


@dataclass(frozen=True)
class BatchAnswer:
    """What came of one batch.

    Attributes:
        predictions: Row by row.
        replica: Which copy of the model answered.
    """

    predictions: Predictions
    replica: str

    @functools.cached_property
    def groups(self) -> list[int]:
        """The group of each row in the last layer that makes groups; -1 if none does."""
        return self.predictions.last_groups.tolist()

    @functools.cached_property
    def drift(self) -> list[float]:
        """The drift of each row; NaN if unknown."""
        return self.predictions.sample_drift.tolist()


@dataclass(frozen=True)
class RowAnswer:
    """The answer to one image: a row of the answer to its batch."""

    batch: BatchAnswer
    row: int


#: Answers one batch of prepared pictures.
Classify = Callable[[Pixels], Awaitable[BatchAnswer]]


@dataclass(frozen=True)
class Description:
    """What clients may know about a model.

    Attributes:
        model: Its name, without the folder of a file.
        method: The method that answers.
        options: The method's options.
        labels: The names of the classes.
        layers: The names of the layers that are watched.
        preprocessing: How images become its inputs.
    """

    model: str
    method: str
    options: dict[str, Any]
    labels: tuple[str, ...]
    layers: tuple[str, ...]
    preprocessing: Preprocessing

    @classmethod
    def of(cls, settings: Settings, predictor: Predictor) -> Description:
        """Describe a loaded model."""
        place, colon, name = settings.model.rpartition(":")
        return cls(
            model=f"{Path(place).name}{colon}{name}" if place.endswith(".py") else Path(settings.model).name,
            method=settings.method,
            options={key: str(value) for key, value in vars(predictor.adapted.options).items()},
            labels=_distinct(predictor.labels),
            layers=predictor.layers,
            preprocessing=predictor.preprocess,
        )


def _distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Tell classes of one name apart by their numbers, since answers are keyed by name."""
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    return tuple(f"{label} ({index})" if label in repeated else label for index, label in enumerate(labels))


class Model:
    """One copy of the model, which answers one batch at a time.

    Args:
        settings: Of the server.
        place: Where relative paths of the settings start.
    """

    def __init__(self, settings: Settings, place: Place) -> None:
        place.enter()
        # A thread of its own leaves the event loop free to answer Ray Serve's questions about its health.
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(settings.threads,))
        self._predictor = self._thread.submit(settings.predictor).result()
        self._warm_up()
        self._replica = _replica_name()

    def _warm_up(self) -> None:
        """Pay for the first call now, unless the model would remember it."""
        if not self._predictor.adapted.stateful:
            blank = np.zeros((2, *self._predictor.preprocess.size, 3), np.uint8)
            self._thread.submit(self._predictor, blank).result()

    async def predict(self, pictures: Pixels) -> BatchAnswer:
        """Answer one batch."""
        loop = asyncio.get_running_loop()
        predictions = await loop.run_in_executor(self._thread, self._predictor, pictures)
        return BatchAnswer(predictions, self._replica)


def _replica_name() -> str:
    serve = importlib.import_module("ray.serve")
    return str(serve.get_replica_context().replica_id.unique_id)


@dataclass
class Persistent:
    """Calls until there is an answer: a copy that dies costs time, not answers.

    Asking twice is harmless, since an answer depends on the pictures only.

    Attributes:
        call: Asks the model.
        is_death: Tells the death of a copy from a mistake that would come again.
        patience_s: How long to go on.
        on_retry: Told of every further call.
    """

    call: Classify
    is_death: Callable[[BaseException], bool]
    patience_s: float
    on_retry: Callable[[], None] = lambda: None
    pause_s: float = 0.05
    _failing: set[object] = field(default_factory=set)

    @property
    def healthy(self) -> bool:
        """Whether no batch is being tried again."""
        return not self._failing

    async def __call__(self, pictures: Pixels) -> BatchAnswer:
        """Answer one batch, however often it takes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.patience_s
        pause, me = self.pause_s, object()
        try:
            while True:
                try:
                    return await self.call(pictures)
                except Exception as error:
                    if not self.is_death(error) or loop.time() + pause >= end:
                        raise
                self._failing.add(me)
                self.on_retry()
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
        finally:
            self._failing.discard(me)


def by_row(classify: Classify) -> Callable[[Sequence[Pixels]], Awaitable[Sequence[RowAnswer]]]:
    """Let a model take pictures one by one, as a batcher gives them."""

    async def run(pictures: Sequence[Pixels]) -> Sequence[RowAnswer]:
        answer = await classify(np.stack(pictures))
        return [RowAnswer(answer, row) for row in range(len(pictures))]

    return run
