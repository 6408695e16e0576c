"""The drift alert: what drift is normal on clean images, and when that of the traffic is not."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from findtta.data.dataset import CLEAN
from findtta.data.open import SHAPES, load_as_is
from findtta.data.shapes import draw
from findtta.errors import FindTTAError, InputError, OptionError
from findtta.images import SUFFIXES, ImageError, ImageLimits, Pixels, Preprocessing, read_image
from findtta.predictor import Predictions
from findtta.serve.engine import Description, Engine, Unavailable
from findtta.serve.settings import Choice, Settings
from findtta.serve.telemetry import Telemetry

#: How many clean images calibrate; their mean drift is then known to a sixteenth of what single images vary by.
COUNT = 256
#: The value of the setting that turns the alert off.
NONE = "none"
_FEWEST = 32
#: Groups are the smallest in small batches, which changes the drift of the same images: normal is the higher mean.
_SMALL_BATCH = 4
# The level is the 0.99 quantile of the mean drift of sixteen clean images. The moving mean is that of about 255,
# and thus varies four times less: the rest of the margin is for what calibration cannot know, such as other shares
# of the classes. By the quantile of single images, which vary more, mild corruptions would stay unnoticed.
_QUANTILE_SIGMAS, _MEAN_OF = 2.326, 16
#: The weight of the newest image in the moving mean.
_NEWEST = 1 / 128
#: No image counts more than this many times the normal drift, so that a single one cannot raise the alert.
_MOST_TIMES = 10
#: Seconds that calibration waits for an idle replica, and for another attempt if there is no replica at all.
_IDLE_S, _AGAIN_S = 5.0, 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CleanDrift:
    """The drift of clean images under what is served: per layer, and of images, which is the mean over layers."""

    layers: tuple[str, ...]
    mean: tuple[float, ...]  # per layer; NaN where a layer measures none
    low: tuple[float, ...]  # the 0.05 quantile over images
    high: tuple[float, ...]  # the 0.95 quantile over images
    normal: float  # the mean over images, at the batch size where it is the highest
    level: float  # beyond which a mean over images is not normal any more
    images: int


async def calibrate(
    predict: Callable[[Pixels], Awaitable[Predictions]],
    images: Pixels,
    layers: tuple[str, ...],
    max_batch: int,
    small_batches: bool,
) -> CleanDrift | None:
    """Measure the drift of clean images; None if the method measures none.

    Args:
        predict: Predicts one batch.
        images: The clean images, prepared for the model.
        layers: The names of the layers that measure drift.
        max_batch: The largest batch.
        small_batches: Measure in small batches, too; for methods under which drift depends on the batch.
    """

    async def measure(size: int) -> list[Predictions]:
        return [await predict(images[start : start + size]) for start in range(0, len(images), size)]

    batches = await measure(max_batch)
    samples = [np.concatenate([batch.sample_drift for batch in batches])]
    if small_batches and max_batch > _SMALL_BATCH:
        samples.append(np.concatenate([batch.sample_drift for batch in await measure(_SMALL_BATCH)]))
    drift = np.concatenate([batch.drift for batch in batches])
    if not np.isfinite(samples).all():
        return None
    levels = [float(known.mean() + _QUANTILE_SIGMAS * known.std(ddof=1) / _MEAN_OF**0.5) for known in samples]
    low, high = np.quantile(drift, (0.05, 0.95), axis=0)
    return CleanDrift(
        layers=layers,
        mean=tuple(drift.mean(0).tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        normal=max(float(known.mean()) for known in samples),
        level=max(levels),
        images=len(images),
    )


def require_clean_images(source: str | None) -> None:
    """Raise ``FindTTAError`` unless a setting can name clean images; they are not read yet."""
    if source is None or source == NONE or Path(source).is_dir():
        return
    try:
        load_as_is(source)
    except FindTTAError as error:
        raise OptionError(f"clean_images: {error}") from error


def read_clean_images(source: str | None, preprocessing: Preprocessing, limits: ImageLimits) -> Pixels:
    """Return clean images for calibration: those of a folder or dataset, evenly spread, or else drawn shapes."""
    if source is None:
        # Others than those of the test set and of the page.
        found: Pixels = draw(np.arange(COUNT), seed=1)
        return np.stack([preprocessing(image) for image in found])
    folder = Path(source)
    if folder.is_dir():
        files = sorted(file for file in folder.rglob("[!.]*") if file.suffix.lower() in SUFFIXES)
        chosen = [files[row] for row in _spread(len(files), source)]
        return np.stack([preprocessing(_read(file, limits)) for file in chosen])
    dataset = load_as_is(source)
    if CLEAN not in dataset.domains:
        raise OptionError(f"clean_images must be clean, but {source!r} has the domains {dataset.domains[:3]}...")
    rows = _spread(len(dataset.labels(CLEAN)), source)
    return np.stack([preprocessing(image) for image in dataset.images(CLEAN, rows)])


def _read(file: Path, limits: ImageLimits) -> Pixels:
    try:
        return read_image(file.read_bytes(), limits)
    except (OSError, ImageError) as error:
        raise InputError(f"clean_images: {str(file)!r} cannot be read ({error}).") from error


def _spread(count: int, source: str) -> NDArray[np.int64]:
    if count < _FEWEST:
        raise InputError(f"clean_images must be at least {_FEWEST} images, got {count} in {source!r}.")
    return np.unique(np.linspace(0, count - 1, min(COUNT, count)).astype(np.int64))


class DriftAlert:
    """Follows the drift of the traffic, and logs once when it leaves what is normal and once when it is back."""

    def __init__(
        self, settings: Settings, engine: Engine, is_idle: Callable[[], bool], telemetry: Telemetry
    ) -> None:
        self._settings, self._engine, self._is_idle, self._telemetry = settings, engine, is_idle, telemetry
        self._calibration: asyncio.Task[None] | None = None
        self.restart(None)

    def watch(self, choice: Choice | None, description: Description) -> None:
        """Begin anew for what is served now, and calibrate in the background if there are clean images."""
        self.stop()
        self.restart(None)
        source = self._settings.clean_images
        if source != NONE and (source is not None or description.trained_on == SHAPES):
            if description.stateful:  # clean images must not change what is served
                choice = (choice or self._settings.choice)._replace(use="calibration")
            self._calibration = asyncio.create_task(self._calibrate(choice, description))

    def stop(self) -> None:
        """Stop calibrating."""
        if self._calibration is not None:
            self._calibration.cancel()

    def restart(self, clean: CleanDrift | None) -> None:
        """Begin anew with what is normal, None if it is not known."""
        self.clean, self.is_raised = clean, False
        # From what is normal on, so that the first few images cannot raise it.
        self._mean = None if clean is None else clean.normal
        self._telemetry.drift_level.set(math.nan if clean is None else clean.level)
        self._telemetry.drift_alert.set(0)

    def count(self, drift: NDArray[np.float64]) -> None:
        """Take the drift of the images of a batch into account."""
        drift = drift[np.isfinite(drift)]
        if not len(drift):
            return
        if self.clean is not None:
            drift = np.minimum(drift, _MOST_TIMES * self.clean.normal)
        value = float(drift.mean())
        old = (1 - _NEWEST) ** len(drift)
        self._mean = value if self._mean is None else old * self._mean + (1 - old) * value
        self._telemetry.drift.set(self._mean)
        if self.clean is not None:
            self._compare(self._mean, self.clean)

    def _compare(self, mean: float, clean: CleanDrift) -> None:
        # Back to normal is half the way: a mean that stays at the level must not log again and again.
        end = (clean.normal + clean.level) / 2
        if mean > clean.level and not self.is_raised:
            _log.warning(
                "drift alert: mean drift %.4g is above %.4g, the level of clean images", mean, clean.level
            )
        elif mean < end and self.is_raised:
            _log.warning("drift alert is over: mean drift %.4g is below %.4g again", mean, end)
        else:
            return
        self.is_raised = not self.is_raised
        self._telemetry.drift_alert.set(self.is_raised)

    async def _calibrate(self, choice: Choice | None, description: Description) -> None:
        settings = self._settings

        async def predict(images: Pixels) -> Predictions:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_S):
                    while not self._is_idle():
                        await asyncio.sleep(0.02)
            while True:
                try:
                    return await self._engine.predict(images, choice)
                except (Unavailable, TimeoutError):
                    await asyncio.sleep(_AGAIN_S)

        try:
            images = await asyncio.to_thread(
                read_clean_images, settings.clean_images, description.preprocessing, settings.image_limits
            )
            small_batches = not description.batch_independent
            clean = await calibrate(predict, images, description.layers, settings.max_batch, small_batches)
            self.restart(clean)
        except Exception as error:
            _log.warning("there is no drift alert: %s: %s", type(error).__name__, error)
