"""Which model predicts under which method, and what it predicts; made and read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from findtta.images import NORMALIZATION, Crop, ImageLimits, Interpolation
from findtta.options import COMPILE, MODEL_NAMES, Count, Options, Positive, option, require_device

if TYPE_CHECKING:
    from findtta.models.card import Classifier
    from findtta.predictor.predictor import Predictor


@dataclass(frozen=True, kw_only=True)
class PredictorSettings(Options):
    """Which model predicts, under which method: what batch prediction, the server and exports share."""

    model: Any = option("shapes-resnet26", MODEL_NAMES, metavar="NAME")  # or a ``Classifier``
    weights: str | None = option(None, "weights of an architecture", metavar="FILE")
    num_classes: Count | None = option(None, "number of classes", shown="that of the weights' card")
    normalization: str | None = option(
        None, f"mean and standard deviation of the input: {NORMALIZATION}", shown="the model's own"
    )
    method: str = option("find", "method that adapts the model; 'findtta methods' lists them", metavar="NAME")
    options: Mapping[str, Any] = option(dict, "option of the method; may be repeated", flag="option")
    device: str = option("cpu", "device that the model runs on, such as cuda:0")
    image_size: Count | None = option(None, "side of the images that the model gets", shown="the model's own")
    crop: Crop | None = option(
        None, "fraction of the shorter side that the centre crop keeps", shown="the model's own"
    )
    interpolation: Interpolation | None = option(None, "how images are resized", shown="the model's own")
    compile: bool = option(False, COMPILE)
    max_image_mb: Positive = option(20, "size in MiB up to which an image file is accepted", metavar="MB")
    max_pixels: Count = option(
        50_000_000, "width times height up to which an image is accepted", shown="50 million"
    )
    card: Mapping[str, Any] = field(default_factory=dict)  # of a config file, see ``findtta.models.load``

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_device()

    def check_device(self) -> None:
        """Raise ``OptionError`` unless the device can be used; importing torch for the CPU is not worth it."""
        if self.device != "cpu":
            require_device(self.device)

    @property
    def image_limits(self) -> ImageLimits:
        """How large images may be."""
        return ImageLimits(max_bytes=max(1, int(self.max_image_mb * 2**20)), max_pixels=self.max_pixels)

    def load_model(self) -> Classifier:
        """Load the model, on the CPU and in eval mode."""
        if not isinstance(self.model, str):
            model: Classifier = self.model
            return model
        from findtta.models.open import load

        return load(
            self.model,
            weights=self.weights,
            num_classes=self.num_classes,
            normalization=self.normalization,
            card=self.card,
        )

    def method_options(self) -> Options:
        """Return the method's options, checked."""
        from findtta.registry import build_options, load_method

        return build_options(load_method(self.method), dict(self.options))

    def predictor(self, model: Classifier | None = None) -> Predictor:
        """Put the model, loaded now if not given, under the method on the device."""
        from findtta.predictor.predictor import Predictor

        return Predictor(model or self.load_model(), self)


@dataclass(frozen=True)
class Predictions:
    """The predictions for one batch, row by row.

    Attributes:
        probabilities: ``(samples, classes)``.
        groups: The group of each sample in each layer, ``(samples, layers)``; -1 where a layer makes none.
        drift: How far each sample is from the training data in each layer, ``(samples, layers)``; NaN if unknown.
        domains: Place, samples, share and drift of the domains met so far, those used most first; empty unless the
            method remembers them.
        places: Of the domain of each sample, ``(samples,)``; -1 where it has none. None if there are no domains.
    """

    probabilities: NDArray[np.float32]
    groups: NDArray[np.int64]
    drift: NDArray[np.float64]
    domains: tuple[Mapping[str, float], ...] = ()
    places: NDArray[np.int64] | None = None

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
