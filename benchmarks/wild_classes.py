"""How many classes a batch of the stream ``wild`` has, for domains of several sizes.

    python benchmarks/wild_classes.py

Fifteen domains with as many images of every class, batches of 64; each number is a mean over all batches of the
streams of seeds 0 to 4. Beside them is the mean if no domain ever lacked an image of the classes drawn: what a
Dirichlet distribution and 64 draws give.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from findtta.data.dataset import MAIN_CORRUPTIONS, DomainDataset, Images, Labels, Rows
from findtta.streams import make, summarize

COUNTS = (128, 500, 2_000, 10_000)
BATCH = 64
SEEDS = range(5)


class Balanced(DomainDataset):
    """Labels that go round through the classes, the same in every domain, and black images."""

    name = "balanced"
    domains = MAIN_CORRUPTIONS
    image_size = (1, 1)

    def __init__(self, count: int, classes: int) -> None:
        self.classes = tuple(map(str, range(classes)))
        self._labels = np.arange(count) % classes

    def labels(self, domain: str) -> Labels:
        return self._labels

    def images(self, domain: str, rows: Rows) -> Images:
        return np.zeros((len(rows), 1, 1, 3), np.uint8)


def main() -> None:
    """Print the table as Markdown."""
    header = ["classes", "variant", "delta", *(f"{count:,} images" for count in COUNTS), "without limit"]
    print("| " + " | ".join(header) + " |", "|---" * len(header) + "|", sep="\n")
    for classes in (10, 100):
        datasets = [Balanced(count, classes) for count in COUNTS]
        for variant in ("text", "paper"):
            for delta in (0.1, 0.01, 0.005):
                settings = {"delta": delta, "variant": variant}
                means = [mean_classes(dataset, settings) for dataset in datasets]
                numbers = [f"{mean:.1f}" for mean in (*means, without_limit(classes, delta))]
                print("| " + " | ".join([str(classes), f"`{variant}`", str(delta), *numbers]) + " |", flush=True)


def mean_classes(dataset: DomainDataset, settings: dict[str, Any]) -> float:
    """Return the mean number of classes of a batch over all seeds."""
    streams = [make("wild", dataset, batch_size=BATCH, seed=seed, **settings) for seed in SEEDS]
    return statistics.fmean(summarize(stream, dataset).classes for stream in streams)


def without_limit(classes: int, delta: float) -> float:
    """Return the expected number of classes in a batch if every class never ends."""
    drawn = np.arange(BATCH)
    absent = np.prod((delta * (classes - 1) + drawn) / (delta * classes + drawn))
    return float(classes * (1 - absent))


if __name__ == "__main__":
    main()
