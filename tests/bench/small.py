"""Runs that take a moment: a tiny network on a few drawn shapes."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from findtta.bench import RunSpec
from nets import filled

HERE = str(Path(__file__))
MARKER = "FINDTTA_TEST_MARKER"  # names a file; whoever kills or interrupts looks at it
PARENT = "FINDTTA_TEST_PARENT"  # the process that must survive


def net() -> nn.Module:
    """Ten classes, weights that are always the same."""
    return filled(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=4, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 10),
        )
    )


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        self.before()
        return self.net(x)

    def before(self) -> None:
        """Do what the network is there for."""


class KilledOnce(Wrapped):
    """Kills its process, unless it is the parent or the marker says that it has happened before."""

    def before(self) -> None:
        marker = Path(os.environ[MARKER])
        if not marker.exists():
            marker.touch()
            kill_worker()


class KilledAlways(Wrapped):
    def before(self) -> None:
        kill_worker()


class Interrupted(Wrapped):
    """Is interrupted as by Ctrl-C for as long as the marker is there."""

    def before(self) -> None:
        if Path(os.environ[MARKER]).exists():
            raise KeyboardInterrupt


class Broken(Wrapped):
    def before(self) -> None:
        raise ZeroDivisionError("no luck")


class Slow(Wrapped):
    def before(self) -> None:
        time.sleep(0.05)


def kill_worker() -> None:
    assert str(os.getpid()) != os.environ[PARENT], "computed in the parent, not in a worker"
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once() -> nn.Module:
    return KilledOnce().eval()


def killed_always() -> nn.Module:
    return KilledAlways().eval()


def interrupted() -> nn.Module:
    return Interrupted().eval()


def broken() -> nn.Module:
    return Broken().eval()


def slow() -> nn.Module:
    return Slow().eval()


def four_classes() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def spec(**settings) -> RunSpec:
    small = {
        "model": f"{HERE}:net",
        "data_options": {"count": 24},
        "domains": ("brightness", "contrast"),
        "batch_size": 16,
    }
    return RunSpec(**{**small, **settings})


def flags(**settings: str) -> list[str]:
    """The same as command-line flags; all but the model, which 'run' and 'bench' call differently."""
    small = {"data_option": "count=24", "domains": "brightness,contrast", "batch_size": "16", **settings}
    return [part for name, value in small.items() for part in (f"--{name.replace('_', '-')}", value)]


def measured(result) -> dict:
    """What of a result must not depend on where and when it was computed."""
    names = ("digest", "status", "config", "metrics", "per_domain", "per_class", "per_round", "running", "layers")
    return {name: getattr(result, name) for name in names} | {"collapse": result.collapse}


def save_weights(path: Path, seed: int = 0) -> Path:
    torch.save(filled(net(), seed).state_dict(), path)
    return path
