"""What must be known about a model to use it: its input, its classes and how good it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from findtta.images import Interpolation, Triple


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What must be known about a model to use it.

    Attributes:
        arch: The name of the architecture.
        num_classes: The number of classes.
        mean: Mean that is subtracted from the RGB channels, on the [0, 1] scale.
        std: Standard deviation that they are divided by.
        input_size: Side that the model resizes its inputs to by itself; None if it takes any size.
        image_size: Side of the images it is given, where known; ``input_size`` if that is all there is.
        crop: Fraction of the shorter side that a centre crop keeps (timm's ``crop_pct``), where known.
        interpolation: How images are resized, ``"bilinear"`` or ``"bicubic"``, where known.
        trained_on: The dataset of the weights, where known.
        classes: The names of the classes, where known.
        clean_accuracy: Accuracy on the clean test images in %, where known.
        clean_images: How many test images that was measured on.
        corrupted_accuracy: Accuracy under each corruption in %, by domain such as ``"fog@5"``, where known.
        corrupted_images: How many test images each of these was measured on.
        recipe: How the weights were made, where known.
    """

    arch: str
    num_classes: int
    mean: Triple
    std: Triple
    input_size: int | None = None
    image_size: int | None = None
    crop: float | None = None
    interpolation: Interpolation | None = None
    trained_on: str | None = None
    classes: tuple[str, ...] | None = None
    clean_accuracy: float | None = None
    clean_images: int | None = None
    corrupted_accuracy: Mapping[str, float] | None = None
    corrupted_images: int | None = None
    recipe: Mapping[str, Any] | None = None

    @property
    def side(self) -> int | None:
        """Side of the images that the model is given, if anything says it."""
        return self.image_size or self.input_size

    def to_json(self) -> str:
        """Return the card as JSON, as it is stored inside a weights file."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        """Return the card written by ``to_json``."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields | {name: tuple(value) for name, value in fields.items() if isinstance(value, list)})


class Classifier(nn.Module):
    """A model with its normalization inside: it takes RGB in [0, 1] and returns logits.

    Attributes:
        card: What is known about the model.
        net: The model without normalization.
        source: Where the card comes from, for the user; empty if it is but an assumption.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, card: ModelCard, source: str = "the model's card") -> None:
        super().__init__()
        self.card = card
        self.net = net
        self.source = source
        self.register_buffer("mean", torch.tensor(card.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(card.std).view(1, 3, 1, 1), persistent=False)
        self.input_size = card.input_size

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images of shape (n, 3, height, width) with values in [0, 1]."""
        if self.input_size is not None:
            # A no-op where the size is right already.
            x = F.interpolate(x, (self.input_size, self.input_size), mode="bilinear", antialias=False)
        logits: Tensor = self.net((x - self.mean) / self.std)
        return logits
