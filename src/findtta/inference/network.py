"""Which network answers, under which method: the settings that batch prediction and the server share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from findtta.errors import OptionError
from findtta.inference.predictor import Predictor
from findtta.models import ARCHITECTURES, SHIPPED, Classifier, ModelCard, load
from findtta.models.card import find_normalization
from findtta.models.targets import load_model
from findtta.options import Options
from findtta.registry import build_options, load_method


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """A network and the method it runs under.

    Attributes:
        model: A network, the name of a shipped one, an architecture (``timm:NAME`` included) with ``weights``, a
            ``.safetensors`` file with a card, or a model of your own (``module:CALLABLE``, ``file.py:CALLABLE``).
        weights: The weights of an architecture.
        num_classes: The number of classes, if the weights have no card that says it.
        normalization: Of the input, if the weights have no card that says it.
        method: The method that answers.
        options: The method's options.
        device: Where the network runs.
        size: The side of the square pictures it gets; by default what it was trained at.
        crop: The part of the shorter side that is kept; see ``findtta.inference.Preparation``.
    """

    model: str | Classifier = "shapes-resnet26"
    weights: str | None = None
    num_classes: int | None = None
    normalization: str | None = None
    method: str = "find"
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    size: int | None = None
    crop: float | None = None

    def load_model(self) -> Classifier:
        """Load the network, on the CPU and in eval mode."""
        if isinstance(self.model, Classifier):
            return self.model
        named = self.model in SHIPPED or self.model in ARCHITECTURES
        if ":" in self.model and not named and not self.model.startswith("timm:"):
            return self._load_own_model(self.model)
        return load(
            self.model, weights=self.weights, num_classes=self.num_classes, normalization=self.normalization
        )

    def _load_own_model(self, target: str) -> Classifier:
        model = load_model(target, self.weights).eval()
        if isinstance(model, Classifier):
            return model
        if self.num_classes is None:
            raise OptionError(f"num_classes must be given for {target!r}, which has no card that says it.")
        mean, std = find_normalization(self.normalization or "none")
        card = ModelCard(arch=target, num_classes=self.num_classes, mean=mean, std=std)
        return Classifier(model, card).eval()

    def method_options(self) -> Options:
        """Return the method's options, checked."""
        return build_options(load_method(self.method), dict(self.options))

    def require_device(self) -> None:
        """Raise unless the device has a name that torch knows."""
        try:
            torch.device(self.device)
        except RuntimeError as error:
            raise OptionError(f"device must be such as 'cpu', 'cuda' or 'cuda:1', got {self.device!r}.") from error

    def predictor(self, model: Classifier | None = None) -> Predictor:
        """Put the network, loaded now if not given, under the method on the device."""
        self.require_device()
        try:
            return Predictor(
                model or self.load_model(),
                self.method,
                options=self.options,
                device=self.device,
                size=self.size,
                crop=self.crop,
            )
        except (RuntimeError, AssertionError) as error:  # torch without CUDA, or no such card
            if self.device == "cpu":
                raise
            reason = (str(error).splitlines() or [""])[0]
            raise OptionError(f"device {self.device!r} cannot be used ({reason}).") from error
