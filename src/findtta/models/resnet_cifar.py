"""Residual networks for small images (He et al., 2016), in the two shapes the field uses.

The *classic* ones (20, 32, 44, 56) are made of basic blocks and end in a linear layer with bias. The ones of the
test-time adaptation benchmark the paper uses (26 and 50) switch to bottlenecks from depth 44 on, so that its
"ResNet-50" is a thin network of 0.78 million parameters, and their classifier has no bias.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

_WIDTHS = (16, 32, 64)


class ResidualBlock(nn.Module):
    """Convolutions, each followed by BatchNorm and ReLU, beside a shortcut that is added before the last ReLU."""

    def __init__(self, convolutions: Sequence[nn.Conv2d], downsample: nn.Module | None) -> None:
        super().__init__()
        self.depth = len(convolutions)
        for number, convolution in enumerate(convolutions, start=1):
            self.add_module(f"conv{number}", convolution)
            self.add_module(f"bn{number}", nn.BatchNorm2d(convolution.out_channels))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        for number in range(1, self.depth + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            x = self.relu(x + shortcut if number == self.depth else x)
        return x


def _basic(channels: int, width: int, stride: int) -> list[nn.Conv2d]:
    return [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)]


def _bottleneck(channels: int, width: int, stride: int) -> list[nn.Conv2d]:
    return [
        nn.Conv2d(channels, width, 1, bias=False),
        nn.Conv2d(width, width, 3, stride, 1, bias=False),
        nn.Conv2d(width, 4 * width, 1, bias=False),
    ]


class CifarResNet(nn.Module):
    """A residual network of three stages for images of about 32x32.

    Args:
        depth: 6n + 2, for n blocks per stage.
        num_classes: The number of classes.
        classic: Basic blocks at any depth and a bias in the last layer; otherwise as the benchmark builds them.
    """

    def __init__(self, depth: int, num_classes: int, *, classic: bool) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 6n + 2, such as 20, 26 or 50, got {depth}.")
        convolutions, expansion = (_bottleneck, 4) if depth >= 44 and not classic else (_basic, 1)
        self.conv1 = nn.Conv2d(3, _WIDTHS[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        self.relu = nn.ReLU(inplace=True)
        channels = _WIDTHS[0]
        stages: list[nn.Module] = []
        for stage, width in enumerate(_WIDTHS, start=1):
            layers: list[nn.Module] = []
            for number in range(blocks):
                stride = 2 if stage > 1 and number == 0 else 1
                out = width * expansion
                shortcut = None
                if stride != 1 or channels != out:
                    shortcut = _shortcut(channels, out, stride, classic)
                layers.append(ResidualBlock(convolutions(channels, width, stride), shortcut))
                channels = out
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3 = stages
        # The names are those of the checkpoints in circulation.
        self.head = "fc" if classic else "classifier"
        setattr(self, self.head, nn.Linear(channels, num_classes, bias=classic))
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return getattr(self, self.head)(x.mean((2, 3)))

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def _shortcut(channels: int, out: int, stride: int, classic: bool) -> nn.Sequential:
    names = ("0", "1") if classic else ("conv", "bn")
    layers = (nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    return nn.Sequential(OrderedDict(zip(names, layers, strict=True)))
