"""Residual networks for small images (He et al., 2016), in the two shapes the field uses.

The *classic* ones (20, 32, 44, 56) are made of basic blocks and end in a linear layer with bias. The ones of the
test-time adaptation benchmark the paper uses (26 and 50) switch to bottlenecks from depth 44 on, so that its
"ResNet-50" is a thin network of 0.78 million parameters, and their classifier has no bias.
"""

from collections import OrderedDict

from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Convolutions, each followed by BatchNorm and ReLU, beside a shortcut that is added before the last ReLU.

    Args:
        channels: The channels of the input.
        shapes: Kernel size and channels of each convolution; the stride is that of the first 3x3.
        stride: The stride of the block.
        names: The names of the convolution and the BatchNorm in the shortcut of a block that changes the shape.
    """

    def __init__(self, channels: int, shapes: list[tuple[int, int]], stride: int, names: tuple[str, str]) -> None:
        super().__init__()
        self.depth = len(shapes)
        strided = next(number for number, (kernel, _) in enumerate(shapes) if kernel == 3)
        inputs = [channels, *(out for _, out in shapes)]
        for number, (kernel, out) in enumerate(shapes):
            step = stride if number == strided else 1
            convolution = nn.Conv2d(inputs[number], out, kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{number + 1}", convolution)
            self.add_module(f"bn{number + 1}", nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != out:
            layers = (nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            self.downsample = nn.Sequential(OrderedDict(zip(names, layers, strict=True)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        for number in range(1, self.depth + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            x = self.relu(x + shortcut if number == self.depth else x)
        return x


class CifarResNet(nn.Module):
    """A residual network of three stages for images of about 32x32.

    Args:
        depth: 6n + 2, for n blocks per stage.
        num_classes: The number of classes.
        classic: Basic blocks at any depth and a bias in the last layer; otherwise as the benchmark builds them.
        width: The channels of the first stage, which the next ones double.
    """

    def __init__(self, depth: int, num_classes: int, *, classic: bool, width: int = 16) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 6n + 2, such as 20, 26 or 50, got {depth}.")
        bottlenecks = depth >= 44 and not classic
        # The names here and below are those of the checkpoints in circulation.
        names = ("0", "1") if classic else ("conv", "bn")
        channels = width
        self.conv1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        stages: list[nn.Module] = []
        for stage in range(3):
            inner = width << stage
            shapes = [(1, inner), (3, inner), (1, 4 * inner)] if bottlenecks else [(3, inner), (3, inner)]
            layers = nn.Sequential()
            for number in range(blocks):
                layers.append(ResidualBlock(channels, shapes, 2 if stage and number == 0 else 1, names))
                channels = shapes[-1][1]
            stages.append(layers)
        self.layer1, self.layer2, self.layer3 = stages
        self.head = "fc" if classic else "classifier"
        setattr(self, self.head, nn.Linear(channels, num_classes, bias=classic))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return getattr(self, self.head)(x.mean((2, 3)))
