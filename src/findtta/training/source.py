"""Where training images come from: drawn by code, or from a dataset with crops and flips."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from findtta.data.dataset import CLEAN, DomainDataset, Images, Labels, Rows
from findtta.data.randomness import integers, sample_keys
from findtta.data.shapes import draw, draw_labels


class TrainingSource(Protocol):
    """Gives the images of an epoch; the same for the same seed, epoch and position."""

    def __len__(self) -> int:
        """Return the images per epoch."""
        ...

    def batch(self, epoch: int, positions: Rows) -> tuple[Images, Labels]:
        """Return the images at these positions of an epoch."""
        ...


class DrawnShapes:
    """Shapes that no epoch shows twice, so that there is nothing to learn by heart.

    Clutter grows to its full strength over the first epochs: among textures and bars alone, a network does
    not find out for a long time what it is to look at.
    """

    def __init__(self, images_per_epoch: int, seed: int, easy_epochs: int) -> None:
        self._count, self._seed, self._easy = images_per_epoch, seed, easy_epochs

    def __len__(self) -> int:
        return self._count

    def batch(self, epoch: int, positions: Rows) -> tuple[Images, Labels]:
        """Draw the images at these positions of an epoch."""
        index = epoch * self._count + positions
        clutter = min(epoch / self._easy, 1.0) if self._easy else 1.0
        return draw(index, seed=self._seed, split="train", clutter=clutter), draw_labels(
            index, self._seed, "train"
        )


class Augmented:
    """The clean images of a dataset, moved by up to four pixels and mirrored at random."""

    def __init__(self, dataset: DomainDataset, seed: int, pad: int = 4) -> None:
        self._dataset, self._seed, self._pad = dataset, seed, pad
        self._labels = dataset.labels(CLEAN)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, epoch: int, positions: Rows) -> tuple[Images, Labels]:
        """Read the images at these positions, in the crop and orientation of an epoch."""
        images = self._dataset.images(CLEAN, positions)
        keys = sample_keys(self._seed, positions, "augment", epoch)
        top, left, mirrored = integers(keys, 0, 2 * self._pad + 1, 3).T
        return crop(images, top, left, mirrored % 2 == 1, self._pad), self._labels[positions]


def crop(images: Images, top: Rows, left: Rows, mirrored: np.ndarray, pad: int) -> Images:
    """Cut each image out of its zero-padded self, ``top`` and ``left`` pixels in, and mirror some."""
    _, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = top[:, None] + np.arange(height)
    columns = left[:, None] + np.arange(width)
    columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    return padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]
