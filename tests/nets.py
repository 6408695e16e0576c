"""Small networks for the tests, filled from an explicit seed."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from findtta.models import Classifier, load

# Those that compute no gradients.
METHODS = ("source", "tbn", "alpha-bn", "iabn", "instance", "find", "find-star", "find-soft")


def graded(names=METHODS, slow=("find-soft",)) -> list:
    """Methods for compilers and exporters, which take seconds each: one fast, few slow, the rest nightly."""
    marks = {"find": (), **dict.fromkeys(slow, pytest.mark.slow)}
    return [pytest.param(name, marks=marks.get(name, pytest.mark.nightly)) for name in names]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def images(count: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32, size: int = 8) -> Tensor:
    """Images of three kinds of contrast and brightness, so that there are groups to find."""
    kind = torch.arange(count).remainder(3)[:, None, None, None]
    return ((1 + kind) * randn(count, 3, size, size, seed=seed, dtype=torch.float64) + 2 * kind - 1).to(dtype)


def stream(batches: int, count: int = 8, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [images(count, seed=100 + index, dtype=dtype) for index in range(batches)]


def filled(model: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Give the model seeded weights and running statistics that differ from the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if name.endswith("running_var"):
                values = 0.5 + values.abs()
            elif tensor.ndim > 1:
                values = values / tensor[0].numel() ** 0.5
            tensor.copy_(values)
    return model.to(dtype).eval()


def shallow() -> Classifier:
    """The shipped model with one residual block per stage: tracing takes time by the layer."""
    model = load("shapes-resnet26")
    for stage in (model.net.layer1, model.net.layer2, model.net.layer3):
        del stage[1:]
    return model


def conv(channels_in: int, channels_out: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)


class TinyNet(nn.Module):
    """Two stages with a skip connection, and a head with BatchNorm1d."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), nn.ReLU())
        self.conv1, self.bn1 = conv(6, 6), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = conv(6, 6), nn.BatchNorm2d(6)
        self.head = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
        self.classes = 4

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return self.head(F.relu(x + y).mean((2, 3)))


class PreActivation(nn.Module):
    """The input of each BatchNorm is also read by the skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.bn0 = conv(3, 6), nn.BatchNorm2d(6)
        self.conv1, self.bn1 = conv(6, 6), nn.BatchNorm2d(6)
        self.conv2 = conv(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv0(x)
        x = x + self.conv1(F.relu(self.bn0(x)))
        return x + self.conv2(F.relu(self.bn1(x)))


class OutputUsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.bn0, self.bn1 = conv(3, 6), nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv0(x)
        return self.bn0(y) * self.bn1(y)


class CalledTwice(nn.Module):
    """One BatchNorm layer, used in two places, and registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.conv1, self.bn0 = conv(3, 6), conv(6, 6), nn.BatchNorm2d(6)
        self.other = nn.Sequential(conv(6, 6), nn.BatchNorm2d(6))
        self.alias = self.bn0

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.alias(self.conv1(self.bn0(self.conv0(x)))))


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.bn0 = conv(3, 6), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv0(x)
        return self.bn0(y) + y if x.sum() > -1e9 else self.bn0(y)


class AsksForTensor(DataDependent):
    """Takes another path under a symbolic trace, whose placeholders are not tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv0(x)
        return self.bn0(y) + y if isinstance(x, Tensor) else self.bn0(y)


class KeepsFeatures(DataDependent):
    """Keeps the convolution's output in an attribute, which a trace does not show."""

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.conv0(x)
        z = self.bn0(self.features)
        return z.relu()


class ManyArguments(DataDependent):
    def forward(self, *args: Tensor) -> Tensor:
        return self.bn0(self.conv0(args[0])) + sum(extra.mean() for extra in args[1:])


class WithKeywords(DataDependent):
    def forward(self, x: Tensor, scale: float = 1.0, twice: bool = False) -> Tensor:
        y = self.conv0(x)
        z = scale * self.bn0(y)
        return z + y if twice else z


class NamedInput(DataDependent):
    """Calls its BatchNorm layer by the name of the argument, as torch names it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.bn0(input=self.conv0(x))


class MixedCalls(DataDependent):
    """Calls one BatchNorm layer by position and by name; the named call's input is read again."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv0(x)
        return self.bn0(self.conv0(x + 1)) + self.bn0(input=y) * y


class UnusedLayer(DataDependent):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.spare = conv(6, 6), nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn1(self.conv1(self.bn0(self.conv0(x))))


class FrozenBatchNorm2d(nn.Module):
    """As detection models define it: constant statistics, no class of torch behind it."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[None, :, None, None] + shift[None, :, None, None]


class ActivatedNorm(nn.BatchNorm2d):
    """Normalises by calling its base class, then activates."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class OwnMathsNorm(nn.BatchNorm2d):
    """Normalises without torch's batch_norm, so that there is no step to replace."""

    def forward(self, input: Tensor) -> Tensor:
        mean, variance = self.running_mean[None, :, None, None], self.running_var[None, :, None, None]
        return (input - mean) / (variance + self.eps).sqrt()


def tiny(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    return filled(TinyNet(), seed, dtype)


def snapshot(model: nn.Module) -> dict[str, object]:
    """All that a user could notice of a model: state, modes, classes and hooks."""
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "modules": [(name, id(module), type(module), module.training) for name, module in model.named_modules()],
        "hooks": [
            (len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
            for module in model.modules()
        ],
        "grad": [(name, parameter.requires_grad) for name, parameter in model.named_parameters()],
    }


def assert_same_snapshot(before: dict[str, object], after: dict[str, object]) -> None:
    assert {key: before[key] for key in before if key != "state"} == {
        key: after[key] for key in after if key != "state"
    }
    assert before["state"].keys() == after["state"].keys()
    for name, tensor in before["state"].items():
        assert same_bits(tensor, after["state"][name]), name


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal to within ``tolerance`` of the larger of 1 and the value."""
    assert a.shape == b.shape
    return bool(torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance, equal_nan=True))


def without(batch: Tensor, index: int) -> Tensor:
    return torch.cat([batch[:index], batch[index + 1 :]])


def replaced(model: nn.Module, make) -> nn.Module:
    """Return a copy of the model with every BatchNorm ``m`` replaced by ``make(m)``."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, make(child))
    return model


def in_threads(call, inputs, threads=8):
    """Call with every input, all threads starting together."""
    barrier = threading.Barrier(threads)

    def work(part):
        barrier.wait(timeout=60)
        return [call(item) for item in part]

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(work, [inputs[start::threads] for start in range(threads)], timeout=120))
    answers = [None] * len(inputs)
    for start, part in enumerate(parts):
        answers[start::threads] = part
    return answers
