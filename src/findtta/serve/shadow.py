"""The shadow: another method predicts a share of the served batches a second time, and both are compared."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import numpy as np

from findtta import estimates
from findtta.images import Pixels
from findtta.predictor import Predictions
from findtta.serve.telemetry import Telemetry

#: Failures in a row after which it is given up: a batch that kills replicas would cost clients time.
_MOST_FAILURES = 3
#: The number of compared batches that the estimate of the gain is made from.
_WINDOW = 16

_log = logging.getLogger(__name__)

Predict = Callable[[Pixels], Awaitable[Predictions]]


class Shadow:
    """Runs in the background: one batch at a time, and only if nothing else is to be predicted.

    Args:
        predict: Predicts a batch under the other method.
        share: The share of the batches that are to be predicted, evenly spread.
        is_idle: Whether a replica has nothing to do.
        telemetry: What the comparison is told to.
    """

    def __init__(
        self,
        predict: Predict,
        share: float,
        is_idle: Callable[[], bool],
        telemetry: Telemetry,
    ) -> None:
        self._predict, self._share, self._is_idle, self._telemetry = predict, share, is_idle, telemetry
        self._compared: deque[tuple[Predictions, Predictions]] = deque(maxlen=_WINDOW)  # served, and of the shadow
        self._due = 0.0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def offer(self, images: Pixels, served: Predictions) -> None:
        """Compare this batch if it is its turn; its clients get their predictions first."""
        if self._failures == _MOST_FAILURES:
            return
        self._due += self._share
        if self._due < 1 - 1e-9:  # ten times 0.1 is less than 1
            return
        self._due -= 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compare(images, served))
        else:
            self._telemetry.skip_shadow()

    def forget(self) -> None:
        """Estimate the gain from later batches only: another method is served from now on."""
        self._compared = deque(maxlen=_WINDOW)

    def stop(self) -> None:
        """Compare nothing more."""
        self._failures = _MOST_FAILURES
        if self._task is not None:
            self._task.cancel()

    async def _compare(self, images: Pixels, served: Predictions) -> None:
        compared = self._compared
        # Begins once the batch is done and the batcher has sent the next one.
        if not self._is_idle():
            self._telemetry.skip_shadow()
            return
        try:
            shadow = await self._predict(images)
            self._telemetry.count_shadow(served, shadow)
            compared.append((served, shadow))
            if compared is self._compared:  # else the method was switched meanwhile
                self._estimate()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            end = "; it is not run again" if self._failures == _MOST_FAILURES else ""
            _log.warning("the shadow method failed on a batch%s: %s: %s", end, type(error).__name__, error)
            self._telemetry.skip_shadow("failed")

    def _estimate(self) -> None:
        """Tell which method is more accurate by the evidence of ``findtta recommend`` on the last batches."""
        sizes = [len(served.probabilities) for served, _ in self._compared]
        if sum(sizes) < estimates.FEWEST_IMAGES:
            return
        own, other = (np.concatenate([both[side].probabilities for both in self._compared]) for side in (0, 1))
        drift = np.concatenate([served.drift for served, _ in self._compared])
        known = drift[:, np.isfinite(drift).all(0)]
        self._telemetry.shadow_gain.set(100 * estimates.estimate_gain(own, other, known, sizes))
