"""Several methods side by side on the same images: on any batch, and in advance on several hundred samples."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.concurrency import run_in_threadpool

from findtta.data.arrays import ArrayDataset
from findtta.data.corrupted import CorruptedDataset
from findtta.data.corruptions import corrupt
from findtta.data.dataset import CLEAN, match_classes, split_domain
from findtta.data.open import load_as_is
from findtta.data.shapes import Shapes
from findtta.errors import FindTTAError, InputError, OptionError
from findtta.images import Pixels
from findtta.intervals import Interval, Scores, interval
from findtta.plugins import public_name
from findtta.predictor import Predictions
from findtta.serve.engine import Description, Engine, Unavailable
from findtta.serve.settings import Choice, Settings
from findtta.streams.scenarios import CrossMix

SOURCE, BEYOND = "source", "find-soft"
#: Images of the overview, each of them under all fifteen corruptions.
IMAGES = 32
SEVERITY = 5
BATCH = 64
#: Between which of the clean samples' drift counts as normal.
BAND = (0.05, 0.95)
_TOP = 5
_IDLE_S, _RETRY_S, _ATTEMPTS = 0.02, 10.0, 3

_log = logging.getLogger(__name__)

Side = dict[str, Predictions]


async def _at_once() -> None:
    """Wait for nothing."""


class SideBySide:
    """The source model, the served method and find-soft on the same batches, on the replicas that serve.

    A stateful method remembers the batches that it got here, not those of requests.
    """

    def __init__(self, choice: Choice, description: Description, engine: Engine) -> None:
        self.description, self.served = description, description.method
        self._engine = engine
        choices = {SOURCE: Choice(SOURCE), choice.method: choice}
        choices.setdefault(BEYOND, Choice(BEYOND))
        self._choices = {public_name(name): choice._replace(use="compare") for name, choice in choices.items()}

    async def predict(self, images: Pixels, turn: Callable[[], Awaitable[None]] = _at_once) -> Side:
        """Predict a batch with each method, every time after ``turn``; find-soft only if it fits the model."""
        predictions = {}
        for name, choice in list(self._choices.items()):
            await turn()
            try:
                predictions[name] = await self._engine.predict(images, choice)
            except Unavailable:
                raise
            except FindTTAError as error:
                if name in (SOURCE, self.served):
                    raise
                _log.info("the page leaves out %s: %s", name, error)
                self._choices.pop(name, None)
        return predictions

    def describe(
        self, names: Sequence[str], corruptions: Sequence[str], images: Pixels, side: Side
    ) -> dict[str, Any]:
        """Return a batch with its predictions as plain values; groups and drift are those of the served method."""
        served, labels = side[self.served], self.description.labels
        groups, drift, layer_drift = number_groups(served.groups), served.sample_drift, served.drift.mean(0)
        return {
            "model": self.description.model,
            "method": self.served,
            "methods": list(side),
            "labels": list(labels),
            "images": [
                {
                    "name": name,
                    "corruption": corruptions[row],
                    "corrupted": png_url(images[row]),
                    "predictions": {method: _top(made, row, labels) for method, made in side.items()},
                    "group": [int(number) or None for number in groups[row]],
                    "drift": float(drift[row]),
                }
                for row, name in enumerate(names)
            ],
            "layers": [
                {"name": name, "groups": int(groups[:, column].max()), "drift": float(layer_drift[column])}
                for column, name in enumerate(self.description.layers)
            ],
        }


def corrupt_rows(
    images: Pixels, kinds: Sequence[str], severity: int, seed: int, index: NDArray[np.int64]
) -> Pixels:
    """Corrupt each image in its own way, given the index of each in its dataset."""
    result = np.empty_like(images)
    for kind in set(kinds):
        where = np.flatnonzero(np.array(kinds) == kind)
        # More threads would take cores from the replicas, and torch would be imported to ask how many.
        result[where] = corrupt(images[where], kind, severity, seed=seed, index=index[where], threads=1)
    return result


def number_groups(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the groups of every layer (column) from 1, in order of appearance; 0 where there are none."""
    numbers = np.zeros_like(labels)
    for column, layer in enumerate(labels.T):
        if (layer >= 0).all():
            _, first, inverse = np.unique(layer, return_index=True, return_inverse=True)
            numbers[:, column] = (np.argsort(np.argsort(first)) + 1)[inverse]
    return numbers


def png_url(image: Pixels) -> str:
    """Return an image as a ``data:`` URL."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _top(predictions: Predictions, row: int, labels: Sequence[str]) -> dict[str, Any]:
    probabilities = predictions.probabilities[row]
    best = np.argsort(-probabilities, kind="stable")[:_TOP]
    top = [{"label": labels[index], "confidence": float(probabilities[index])} for index in best]
    return {**top[0], "top": top}


class Samples:
    """Images to show, as the model gets them, and all of them under fifteen corruptions in mixed batches.

    They are drawn shapes, or images of a folder with a subfolder for each class. ``labels`` are indices of the
    model's classes, or None if those are others.
    """

    def __init__(self, settings: Settings, description: Description) -> None:
        prepare = description.preprocessing
        if settings.samples is None:
            whole = Shapes(IMAGES).pick([CLEAN])
        else:
            try:
                found = load_as_is(Path(settings.samples), preprocessing=prepare)
                whole = found.pick([CLEAN], limit=IMAGES)
            except FindTTAError as error:
                raise OptionError(
                    f"samples must be a folder with a folder of images per class: {error}"
                ) from error
        rows = np.arange(len(whole))
        self.images = np.stack([prepare(image) for image in whole.images(CLEAN, rows)])
        clean = ArrayDataset(
            whole.name, {CLEAN: lambda: self.images}, whole.labels(CLEAN), whole.classes, prepare.size
        )
        self.classes = [whole.classes[label] for label in whole.labels(CLEAN)]
        self.names = [f"{name} {number}" for number, name in enumerate(self.classes, 1)]
        try:
            known, _ = match_classes(clean, description.labels, len(description.labels))
            self.labels: NDArray[np.int64] | None = known.labels(CLEAN)
        except InputError:
            self.labels = None
        mixed = CorruptedDataset(clean).pick(severity=SEVERITY)
        order = CrossMix().arrange(mixed, min(BATCH, settings.max_batch), seed=0)
        self.domains, self.rows = order.domain_ids, order.rows
        self.kinds = [split_domain(mixed.domains[number])[0] for number in order.domain_ids]
        ends = order.sizes.cumsum()
        self.batches = [slice(end - size, end) for size, end in zip(order.sizes, ends, strict=True)]

    def batch(self, where: slice) -> Pixels:
        """Make the images of a mixed batch."""
        rows = self.rows[where]
        return corrupt_rows(self.images[rows], self.kinds[where], SEVERITY, 0, rows)


class Overview:
    """What the methods make of all samples, computed in the background, once for each served method.

    Requests of clients go first.
    """

    def __init__(self, settings: Settings, side: SideBySide, is_idle: Callable[[], bool]) -> None:
        self._settings, self.side, self._is_idle = settings, side, is_idle
        self._task: asyncio.Task[None] | None = None
        self._clean: list[Side] = []
        self._mixed: list[Side] = []
        self._failed = False
        if settings.samples is not None:  # a wrong folder is an error at once
            self.samples  # noqa: B018

    @cached_property
    def samples(self) -> Samples:
        """The samples, drawn or read when they are first asked for."""
        return Samples(self._settings, self.side.description)

    def start(self) -> None:
        """Begin, unless it has begun; call it where an event loop runs."""
        self._task = self._task or asyncio.create_task(self._compute())

    def follow(self, side: SideBySide) -> None:
        """Compare another method from now on."""
        if self._task is not None:
            self._task.cancel()
        self.side, self._task, self._clean, self._mixed, self._failed = side, None, [], [], False
        self.start()

    async def _compute(self) -> None:
        try:
            for start in range(0, len(self.samples.images), self._settings.max_batch):
                images = self.samples.images[start : start + self._settings.max_batch]
                self._clean.append(await self._predict(images))
            for where in self.samples.batches:
                self._mixed.append(await self._predict(await run_in_threadpool(self.samples.batch, where)))
        except Exception:
            self._failed = True
            _log.exception("the overview of the page could not be computed")

    async def _predict(self, images: Pixels) -> Side:
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self.side.predict(images, self._turn)
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
        return await self.side.predict(images, self._turn)

    async def _turn(self) -> None:
        """Wait until no client does."""
        while not self._is_idle():
            await asyncio.sleep(_IDLE_S)

    def first(self) -> dict[str, Any] | None:
        """Return the first mixed batch as a comparison, with the class of each image if the model knows it."""
        if not self._mixed:
            return None
        where = self.samples.batches[0]
        names = [self.samples.names[row] for row in self.samples.rows[where]]
        shown = self.side.describe(names, self.samples.kinds[where], self.samples.batch(where), self._mixed[0])
        for image, row in zip(shown["images"], self.samples.rows[where], strict=True):
            image["truth"] = None if self.samples.labels is None else self.samples.classes[row]
        return shown

    def report(self) -> dict[str, Any]:
        """Return the numbers of all batches so far.

        For each method the accuracy, and its difference to the source model, with 95% intervals clustered by
        image; where the model does not know the classes of the samples, agreement and confidence only.
        """
        samples, batches = self.samples, self.samples.batches
        done = sum(len(side[SOURCE].indices) for side in self._mixed)
        # A method that was left out later than in the first batch is left out altogether.
        methods = list((self._mixed or self._clean or [{}])[-1])
        about = {
            "status": "failed" if self._failed else "ready" if len(self._mixed) == len(batches) else "computing",
            "samples": done,
            "of": len(samples.rows),
            "images": len(samples.images),
            "severity": SEVERITY,
            "model": self.side.description.model,
            "method": self.side.served,
            "labelled": samples.labels is not None,
        }
        mixed, clean = (
            {name: [side[name] for side in sides] for name in methods} for sides in (self._mixed, self._clean)
        )
        return {
            **about,
            "methods": [
                {
                    "method": name,
                    "mixed": self._numbers(made, mixed[SOURCE], samples.rows[:done], samples.domains[:done]),
                    "clean": self._numbers(clean[name], clean[SOURCE]),
                }
                for name, made in mixed.items()
            ],
            "drift": self._normal_drift(),
        }

    def _numbers(
        self,
        made: Sequence[Predictions],
        source: Sequence[Predictions],
        rows: NDArray[np.int64] | None = None,
        domains: NDArray[np.int64] | None = None,
    ) -> dict[str, Any] | None:
        if not made:
            return None
        guesses, others = (np.concatenate([part.indices for part in parts]) for parts in (made, source))
        rows = np.arange(len(guesses)) if rows is None else rows
        domains = np.zeros_like(rows) if domains is None else domains
        numbers: dict[str, Any] = {
            "samples": len(guesses),
            "confidence": 100 * float(np.concatenate([part.probabilities.max(1) for part in made]).mean()),
            "agreement": 100 * float((guesses == others).mean()),
        }
        if self.samples.labels is not None:
            truth = self.samples.labels[rows]
            scores, other = (Scores.sort(rows, domains, labels == truth) for labels in (guesses, others))
            difference = scores.minus(other)
            assert difference is not None, "both saw the same samples"
            numbers |= {
                "correct": int((guesses == truth).sum()),
                "accuracy": _ends(interval([scores]), 0, 100),
                "difference": _ends(interval([difference]), -100, 100),
            }
        return numbers

    def _normal_drift(self) -> dict[str, Any] | None:
        """Return between which values the drift of clean samples is, in each layer and in their mean."""
        if not self._clean:
            return None
        clean = [side[self.side.served] for side in self._clean]
        drift = np.concatenate([np.column_stack([made.sample_drift, made.drift]) for made in clean])
        low, high = np.quantile(drift, BAND, axis=0).tolist()
        return {"mean": [low[0], high[0]], "layers": list(zip(low[1:], high[1:], strict=True))}


def _ends(found: Interval, least: float, most: float) -> dict[str, float]:
    return {"mean": found.mean, "low": max(found.low, least), "high": min(found.high, most)}
