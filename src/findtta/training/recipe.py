"""How a source model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from findtta.errors import OptionError

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a source model is trained.

    Attributes:
        epochs: How often the training set is gone through.
        batch_size: Images per step.
        learning_rate: The largest step size; it rises to it and falls to zero along a cosine.
        warmup: The share of the training in which it rises.
        momentum: Of the gradient; Nesterov's.
        weight_decay: On all weights but those of normalisation layers and biases.
        optimizer: ``"sgd"``, or ``"adamw"`` for transformers.
        label_smoothing: The share of a label given to all classes.
        images_per_epoch: For data drawn by code: how many fresh images make an epoch.
        precision: ``"auto"`` is bfloat16 on a GPU and float32 on a CPU, where it gains nothing.
        seed: Decides the first weights, the order and the crops.
    """

    epochs: int = 60
    batch_size: int = 128
    learning_rate: float = 0.1
    warmup: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    optimizer: Literal["sgd", "adamw"] = "sgd"
    label_smoothing: float = 0.0
    images_per_epoch: int = 10_000
    precision: Precision = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "images_per_epoch"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.learning_rate <= 0:
            raise OptionError(f"learning_rate must be above 0, got {self.learning_rate}.")
        if self.optimizer not in ("sgd", "adamw"):
            raise OptionError(f"optimizer must be 'sgd' or 'adamw', got {self.optimizer!r}.")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise OptionError(f"precision must be 'auto', 'float32' or 'bfloat16', got {self.precision!r}.")
        if not 0 <= self.warmup < 1:
            raise OptionError(f"warmup must be a share from 0 to below 1, got {self.warmup}.")

    def rate(self, progress: float) -> float:
        """Return the step size at a point of the training, 0 being its start and 1 its end."""
        if progress < self.warmup:
            return self.learning_rate * (progress + 1e-3) / (self.warmup + 1e-3)
        falling = (progress - self.warmup) / (1 - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * falling))


def default_recipe(data: str, arch: str, **changes: Any) -> Recipe:
    """Return the recipe for a dataset and an architecture, with some settings changed.

    Args:
        data: ``"shapes"``, ``"cifar10"`` or ``"cifar100"``.
        arch: The architecture; transformers are trained with AdamW.
        changes: Settings to replace.

    Returns:
        The recipe.
    """
    settings: dict[str, Any] = {"epochs": 28} if data == "shapes" else {"epochs": 150}
    if "vit" in arch:
        settings |= {"optimizer": "adamw", "learning_rate": 2e-3, "weight_decay": 0.05}
        settings["epochs"] = 16 if data == "shapes" else 150
    return Recipe(**(settings | changes))
