"""The models that are timed, with random weights: what they compute does not matter here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from findtta.models import build as build_known
from findtta.models.zoo import import_timm

#: How a model is built, and the side of its images.
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet20": (partial(build_known, "resnet20", num_classes=10, normalization="cifar10"), 32),
    "resnet26": (partial(build_known, "resnet26", num_classes=10, normalization="cifar10"), 32),
    "resnet50": (lambda: import_timm().create_model("resnet50", pretrained=False), 224),
}


def build(name: str, seed: int = 0) -> tuple[nn.Module, int]:
    """Build a model in evaluation mode, and return it with its image size."""
    torch.manual_seed(seed)
    make, size = MODELS[name]
    return settle(make(), size), size


def settle(network: nn.Module, size: int) -> nn.Module:
    """Give a model the statistics of one random batch, and put it in evaluation mode."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.randn(8, 3, size, size))
    return network.eval()
