"""One call from prepared pictures to answers, the same for files, for clusters and for the server."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from findtta.api import adapt
from findtta.errors import InputError
from findtta.inference.images import Pixels, Preparation
from findtta.inference.watch import Watch
from findtta.models.card import Classifier

#: The side of the pictures that the weights were trained on, by dataset.
_TRAINED_AT = {"shapes": 32, "cifar10": 32, "cifar100": 32, "imagenet": 224}
_BY_CLASSES = {10: 32, 100: 32}


@dataclass(frozen=True)
class Predictions:
    """The answers to one batch, row by row.

    Attributes:
        probabilities: ``(samples, classes)``.
        groups: The group of each sample in each layer, ``(samples, layers)``; -1 where a layer makes none.
        drift: How far each sample is from the training data in each layer, ``(samples, layers)``; NaN if unknown.
    """

    probabilities: NDArray[np.float32]
    groups: NDArray[np.int64]
    drift: NDArray[np.float64]

    @property
    def indices(self) -> NDArray[np.int64]:
        """The most probable class of each sample."""
        return self.probabilities.argmax(1)

    @property
    def last_groups(self) -> NDArray[np.int64]:
        """The group of each sample in the last layer that makes groups; -1 if none does."""
        grouping = np.flatnonzero((self.groups >= 0).all(0))
        return self.groups[:, grouping[-1]] if len(grouping) else np.full(len(self.groups), -1)

    @property
    def sample_drift(self) -> NDArray[np.float64]:
        """The drift of each sample, averaged over the layers that measure it; NaN if none does."""
        known = ~np.isnan(self.drift)
        total = np.where(known, self.drift, 0).sum(1)
        return np.where(known.any(1), total / np.maximum(known.sum(1), 1), np.nan)


class Predictor:
    """A network under a method, which takes pictures and gives answers.

    Args:
        model: The network; it is copied, not changed.
        method: Name of a method.
        options: The method's options.
        device: Where it runs.
        size: The side of the square pictures it gets; by default what the network was trained at.
        crop: See ``Preparation``; by default 0.875 from 160 pixels on, and 1 below.

    Attributes:
        labels: The names of the classes; their numbers where the network does not know names.
        layers: The names of the layers that are watched.
        prepare: Turns a picture of any size into what ``__call__`` takes.
    """

    def __init__(
        self,
        model: Classifier,
        method: str = "find",
        *,
        options: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        size: int | None = None,
        crop: float | None = None,
    ) -> None:
        self.device = torch.device(device)
        if any(tensor.device != self.device for tensor in model.state_dict().values()):
            model = copy.deepcopy(model).to(self.device)  # moving changes a network in place
        self.adapted = adapt(model, method, **(options or {}))
        self.card = model.card
        self.labels = model.card.classes or tuple(str(index) for index in range(model.card.num_classes))
        size = size or usual_size(model)
        self.prepare = Preparation(size, crop if crop is not None else (0.875 if size >= 160 else 1.0))
        self._watch = Watch(self.adapted)
        self.layers = self._watch.layers

    def __call__(self, pictures: Pixels) -> Predictions:
        """Classify one batch of prepared pictures, uint8 ``(samples, size, size, 3)``."""
        expected = (self.prepare.size, self.prepare.size, 3)
        if pictures.ndim != 4 or pictures.shape[1:] != expected or pictures.dtype != np.uint8:
            raise InputError(
                f"pictures must be uint8 of shape (samples, {', '.join(map(str, expected))}), got "
                f"{pictures.dtype} of shape {pictures.shape}: pass each through prepare first."
            )
        samples = len(pictures)
        if samples == 0:
            shape = (0, len(self.layers))
            empty = np.zeros((0, len(self.labels)), np.float32)
            return Predictions(empty, np.zeros(shape, np.int64), np.zeros(shape))
        self._watch.clear()
        # Arrays that came from another process may be read-only, which torch warns about.
        images = torch.from_numpy(np.require(pictures, requirements=("C", "W"))).to(self.device)
        logits = self.adapted(images.permute(0, 3, 1, 2).float().div_(255))
        return Predictions(
            torch.softmax(logits.float(), 1).cpu().numpy(),
            self._watch.groups(samples).numpy(),
            self._watch.drift(samples).numpy(),
        )


def usual_size(model: Classifier) -> int:
    """Return the side of the pictures a network is meant for, as far as its card tells."""
    card = model.card
    trained_on = (card.trained_on or "").lower()
    return card.input_size or _TRAINED_AT.get(trained_on) or _BY_CLASSES.get(card.num_classes, 224)
