"""Whether our corruptions are those of the benchmark: accuracy of models and statistics on both.

    python benchmarks/compare_corruptions.py --reference severity5.npz --clean cifar10_test.npz \
        --model resnet20=cifar10_resnet20.pt --model resnet32=cifar10_resnet32.pt

The reference file holds, by name of the corruption, uint8 images made by the benchmark's own generator, their
`labels`, and `index`, the row of each in `images` of the clean file. Corruptions draw at random, so ours are
made with several seeds and averaged. Exits with 1 if accuracy, mean or deviation differ by more than allowed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from findtta import models
from findtta.data.corruptions import CORRUPTIONS, corrupt
from findtta.data.dataset import Images, Labels
from findtta.tables import render

BATCH = 250


@dataclass(frozen=True)
class Limit:
    """How much ours and theirs may differ: accuracy in points, mean and deviation in percent."""

    accuracy: float
    percent: float


LIMIT = Limit(accuracy=3, percent=2)
# The photographs of frost cannot be shipped; ours is drawn.
LIMITS = {"frost": Limit(accuracy=5, percent=10)}


@dataclass(frozen=True)
class Comparison:
    """One corruption, ours against theirs.

    Attributes:
        ours: Accuracy per model in percent, mean over seeds.
        theirs: Accuracy per model in percent.
        mean: Largest difference of the mean of a channel, in percent of theirs.
        deviation: Largest difference of the deviation of a channel, in percent of theirs.
        equal: Part of the bytes that are equal, in percent; near 100 where nothing is drawn at random.
    """

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    mean: float
    deviation: float
    equal: float

    def gap(self) -> float:
        """Largest difference of accuracy over the models, in points."""
        return max((abs(a - b) for a, b in zip(self.ours, self.theirs, strict=True)), default=0.0)

    def within(self, limit: Limit) -> bool:
        """Whether nothing differs by more than allowed."""
        return self.gap() <= limit.accuracy and max(self.mean, self.deviation) <= limit.percent


@torch.inference_mode()
def accuracy(network: nn.Module, images: Images, labels: Labels) -> float:
    """Percent of the images that a model labels right."""
    right = 0
    for start in range(0, len(images), BATCH):
        batch = torch.from_numpy(images[start : start + BATCH]).permute(0, 3, 1, 2).float() / 255
        right += int((network(batch).argmax(1).numpy() == labels[start : start + BATCH]).sum())
    return 100 * right / len(labels)


def channel_statistics(images: Images) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of red, green and blue."""
    pixels = images.reshape(-1, 3).astype(np.float64)
    return pixels.mean(0), pixels.std(0)


def compare(
    ours: Sequence[Images], theirs: Images, labels: Labels, networks: Mapping[str, nn.Module]
) -> Comparison:
    """Compare several draws of ours with one of theirs."""
    means, deviations = zip(*map(channel_statistics, ours), strict=True)
    mean, deviation = channel_statistics(theirs)
    return Comparison(
        ours=tuple(
            float(np.mean([accuracy(network, draw, labels) for draw in ours])) for network in networks.values()
        ),
        theirs=tuple(accuracy(network, theirs, labels) for network in networks.values()),
        mean=100 * float(np.abs(np.mean(means, 0) / mean - 1).max()),
        deviation=100 * float(np.abs(np.mean(deviations, 0) / deviation - 1).max()),
        equal=100 * float((ours[0] == theirs).mean()),
    )


def load_networks(wanted: Sequence[str], num_classes: int) -> dict[str, nn.Module]:
    """Load models given as ``name`` or ``name=weights``."""
    networks: dict[str, nn.Module] = {}
    for text in wanted:
        name, _, weights = text.partition("=")
        networks[name] = (
            models.load(name, weights=weights, num_classes=num_classes, normalization=f"cifar{num_classes}")
            if weights
            else models.load(name)
        )
    return networks


def row(name: str, result: Comparison, limit: Limit) -> list[object]:
    """One line of the table."""
    accuracies = [f"{a:.1f} / {b:.1f}" for a, b in zip(result.ours, result.theirs, strict=True)]
    figures = [f"{result.gap():.1f}", f"{result.mean:.2f}", f"{result.deviation:.2f}", f"{result.equal:.2f}"]
    return [name, *accuracies, *figures, "ok" if result.within(limit) else "TOO FAR"]


def main() -> int:
    """Compare what the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="corrupted images by name, labels, index")
    parser.add_argument("--clean", type=Path, required=True, help="the clean images, as `images`")
    parser.add_argument("--model", action="append", default=[], metavar="NAME[=WEIGHTS]", help="may be repeated")
    parser.add_argument("--corruption", action="append", metavar="NAME", help="by default all in the reference")
    parser.add_argument("--severity", type=int, default=5, choices=range(1, 6))
    parser.add_argument("--seeds", type=int, default=4, help="how many draws of ours to average")
    parser.add_argument("--num-classes", type=int, default=10)
    arguments = parser.parse_args()
    reference = np.load(arguments.reference)
    index, labels = reference["index"], reference["labels"]
    clean = np.load(arguments.clean)["images"][index]
    networks = load_networks(arguments.model, arguments.num_classes)
    names = arguments.corruption or [name for name in reference.files if name in CORRUPTIONS]
    rows, passed = [], True
    for name in names:
        seeds = range(arguments.seeds)
        ours = [corrupt(clean, name, arguments.severity, seed=seed, index=index) for seed in seeds]
        result = compare(ours, reference[name], labels, networks)
        limit = LIMITS.get(name, LIMIT)
        rows.append(row(name, result, limit))
        passed &= result.within(limit)
    header = [f"{name}, ours / theirs" for name in networks]
    print(render(["corruption", *header, "gap", "mean %", "deviation %", "equal %", ""], rows))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
