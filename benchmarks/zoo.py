"""The models that are timed, with random weights: what they compute does not matter here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from findtta.models.zoo import import_timm


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


def resnet20() -> nn.Module:
    """CIFAR ResNet-20: three stages of three blocks, 16 to 64 channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    before = 16
    for after, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            layers.append(_Block(before, after, stride if block == 0 else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet50() -> nn.Module:
    """ImageNet ResNet-50 of timm."""
    network: nn.Module = import_timm().create_model("resnet50", pretrained=False)
    return network


MODELS = {"resnet20": (resnet20, 32), "resnet50": (resnet50, 224)}


def build(name: str, seed: int = 0) -> tuple[nn.Module, int]:
    """Build a model in evaluation mode, with statistics from one random batch, and its image size."""
    torch.manual_seed(seed)
    make, size = MODELS[name]
    network = make()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.randn(8, 3, size, size))
    return network.eval(), size
