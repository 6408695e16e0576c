"""From prepared images to predictions: the model, the method and what it found out about each sample.

The same call serves folders of files, clusters and the server.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.api import adapt
from findtta.errors import InputError
from findtta.functional import gaussian_kl, instance_moments
from findtta.images import ImageLimits, Interpolation, Pixels, to_input
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.frozen import eps_of
from findtta.layers.surgery import find_norms
from findtta.models.card import NORMALIZATION, Classifier
from findtta.models.open import NAMES, describe_input, load, preprocessing_of
from findtta.options import Count, Options, Positive, option, require_device
from findtta.registry import build_options, load_method


@dataclass(frozen=True, kw_only=True)
class PredictorSettings(Options):
    """Which model predicts, under which method: what batch prediction, the server and exports share."""

    model: str | Classifier = option("shapes-resnet26", NAMES, metavar="NAME")
    weights: str | None = option(None, "weights of an architecture", metavar="FILE")
    num_classes: Count | None = option(None, "number of classes", shown="that of the weights' card")
    normalization: str | None = option(
        None, f"mean and standard deviation of the input: {NORMALIZATION}", shown="the model's own"
    )
    method: str = option("find", "method that adapts the model; 'findtta methods' lists them", metavar="NAME")
    options: Mapping[str, Any] = option(dict, "option of the method; may be repeated", flag="option")
    device: str = option("cpu", "device that the model runs on, such as cuda:0")
    image_size: Count | None = option(None, "side of the images that the model gets", shown="the model's own")
    crop: float | None = option(
        None, "fraction of the shorter side that the centre crop keeps", shown="the model's own"
    )
    interpolation: Interpolation | None = option(None, "how images are resized", shown="the model's own")
    max_image_mb: Positive = option(20, "size in MiB up to which an image file is accepted", metavar="MB")
    max_pixels: Count = option(
        50_000_000, "width times height up to which an image is accepted", shown="50 million"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_device()

    def check_device(self) -> None:
        """Raise ``OptionError`` unless the device can be used."""
        require_device(self.device)

    @property
    def image_limits(self) -> ImageLimits:
        """How large images may be."""
        return ImageLimits(max_bytes=max(1, int(self.max_image_mb * 2**20)), max_pixels=self.max_pixels)

    def load_model(self) -> Classifier:
        """Load the model, on the CPU and in eval mode."""
        if isinstance(self.model, Classifier):
            return self.model
        return load(
            self.model, weights=self.weights, num_classes=self.num_classes, normalization=self.normalization
        )

    def method_options(self) -> Options:
        """Return the method's options, checked."""
        return build_options(load_method(self.method), dict(self.options))

    def predictor(self, model: Classifier | None = None) -> Predictor:
        """Put the model, loaded now if not given, under the method on the device."""
        return Predictor(model or self.load_model(), self)


@dataclass(frozen=True)
class Predictions:
    """The predictions for one batch, row by row.

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
    """A model under a method, which takes images and returns predictions; made by ``PredictorSettings.predictor``.

    Attributes:
        labels: The names of the classes, or their numbers if the model's card has no names.
        layers: The names of the layers whose groups and drift are recorded.
        preprocess: Turns an image of any size into what ``__call__`` takes.
        input: In one line what the model is given, and what says so.
    """

    def __init__(self, model: Classifier, settings: PredictorSettings) -> None:
        self.device = torch.device(settings.device)
        self.preprocess = preprocessing_of(model, settings.image_size, settings.crop, settings.interpolation)
        self.input = describe_input(model, self.preprocess, self.preprocess.size, vars(settings))
        if any(tensor.device != self.device for tensor in model.state_dict().values()):
            model = copy.deepcopy(model).to(self.device)  # moving changes a model in place
        self.adapted = adapt(model, settings.method, **settings.options)
        self.card = model.card
        self.labels = model.card.classes or tuple(str(index) for index in range(model.card.num_classes))
        self._recorder = Recorder(self.adapted)
        self.layers = self._recorder.layers

    def __call__(self, images: Pixels) -> Predictions:
        """Predict one batch of preprocessed images, uint8 ``(samples, height, width, 3)``."""
        expected = (*self.preprocess.size, 3)
        if images.ndim != 4 or images.shape[1:] != expected or images.dtype != np.uint8:
            raise InputError(
                f"images must be uint8 of shape (samples, {', '.join(map(str, expected))}), got "
                f"{images.dtype} of shape {images.shape}: pass each through preprocess first."
            )
        samples = len(images)
        if samples == 0:
            shape = (0, len(self.layers))
            empty = np.zeros((0, len(self.labels)), np.float32)
            return Predictions(empty, np.zeros(shape, np.int64), np.zeros(shape))
        self._recorder.clear()
        logits = self.adapted(to_input(images, self.device))
        return Predictions(
            torch.softmax(logits.float(), 1).cpu().numpy(),
            self._recorder.groups(samples).numpy(),
            self._recorder.drift(samples).numpy(),
        )


class _Recorded(threading.local):
    """The drift of each sample by layer in the last batch of a thread."""

    def __init__(self) -> None:
        self.drift: dict[str, Tensor] = {}


class Recorder:
    """Records groups and drift of each sample while an adapted model runs, separately for each thread.

    The drift of a sample in a layer is the KL divergence of its own statistics from the source's, averaged
    over the channels: 0 where it looks like the training data. Layers that keep no source statistics have none.

    Args:
        adapted: The model; recording does not change what it computes, and ends with ``close``.

    Attributes:
        layers: The names of the layers, in module order.
    """

    def __init__(self, adapted: Adapted) -> None:
        self._adaptive = dict(adapted.layers())
        self._removers: list[Callable[[], None]] = []
        self._recorded = _Recorded()
        recorded: list[tuple[str, nn.Module]] = (
            list(self._adaptive.items())
            if self._adaptive
            else [(site.name, site.module) for site in find_norms(adapted.model)]
        )
        self.layers = tuple(name for name, _ in recorded)
        for name, layer in recorded:
            self._attach(name, layer)

    def _attach(self, name: str, layer: nn.Module) -> None:
        norm: Any = layer.norm if isinstance(layer, AdaptiveNorm) else layer
        if norm.running_mean is None:
            return
        eps = eps_of(norm)

        def record(mean: Tensor, variance: Tensor) -> None:
            divergence = gaussian_kl(mean, variance, norm.running_mean, norm.running_var, eps=eps)
            self._recorded.drift[name] = divergence.mean(1)

        if isinstance(layer, AdaptiveNorm):
            layer.observers.append(record)
            self._removers.append(lambda: layer.observers.remove(record))
        else:
            handle = layer.register_forward_pre_hook(lambda _, inputs: record(*instance_moments(inputs[0])))
            self._removers.append(handle.remove)

    def clear(self) -> None:
        """Forget the last batch of this thread; call it before the next."""
        self._recorded.drift.clear()
        for layer in self._adaptive.values():
            layer.last_batch.clear()

    def drift(self, samples: int) -> Tensor:
        """Return the drift of each sample in each layer, ``(samples, layers)``; NaN where there is none."""
        return self._gather(samples, self._recorded.drift, torch.nan)

    def groups(self, samples: int) -> Tensor:
        """Return the group label of each sample in each layer, ``(samples, layers)``; -1 where there is none.

        Samples of one group share a label, which is the index of one of them.
        """
        labels = {
            name: layer.last_batch["labels"].double()
            for name, layer in self._adaptive.items()
            if "labels" in layer.last_batch
        }
        # A layer that sees several windows per image groups windows: no label of an image follows.
        per_image = {name: values for name, values in labels.items() if len(values) == samples}
        return self._gather(samples, per_image, -1).long()

    def _gather(self, samples: int, by_layer: dict[str, Tensor], missing: float) -> Tensor:
        columns = []
        for name in self.layers:
            values = by_layer.get(name)
            if values is None or len(values) % samples:
                columns.append(torch.full((samples,), missing, dtype=torch.float64))
            else:
                # Several windows of one image follow one another.
                columns.append(values.double().view(samples, -1).mean(1).cpu())
        return torch.stack(columns, 1) if columns else torch.empty(samples, 0, dtype=torch.float64)

    def close(self) -> None:
        """Stop recording."""
        for remove in self._removers:
            remove()
        self._removers.clear()
