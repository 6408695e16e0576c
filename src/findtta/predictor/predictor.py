"""From prepared images to predictions: the model under a method, and what it found out about each sample."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.api import adapt
from findtta.errors import InputError, OptionError
from findtta.functional import gaussian_kl, instance_moments
from findtta.images import Pixels, to_input
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.frozen import eps_of
from findtta.layers.surgery import find_norms
from findtta.models.card import Classifier
from findtta.models.open import describe_input, preprocessing_of
from findtta.predictor.settings import Predictions, PredictorSettings


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
        self.adapted = adapt(model, settings.method, compile=settings.compile, **settings.options)
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
        if logits.shape != (samples, len(self.labels)):
            found = " x ".join(map(str, logits.shape[1:]))
            raise OptionError(f"num_classes: the model has {found} classes, not {len(self.labels)}.")
        return Predictions(
            torch.softmax(logits.float(), 1).cpu().numpy(),
            self._recorder.groups(samples).numpy(),
            self._recorder.drift(samples).numpy(),
            tuple(asdict(domain) for domain in self.adapted.domains()),
            self._recorder.places(samples),
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

    def places(self, samples: int) -> NDArray[np.int64] | None:
        """Return the place of each sample's domain, ``(samples,)``, -1 where it has none; None without domains."""
        for layer in self._adaptive.values():
            members = layer.last_batch.get("members")  # the same in all layers
            if members is not None and len(members) == samples:
                places: NDArray[np.int64] = torch.where(members.any(1), members.argmax(1), -1).cpu().numpy()
                return places
        return None

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
