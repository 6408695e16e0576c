"""The random numbers of one corruption of some images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from findtta.data import randomness


@dataclass(frozen=True)
class Draws:
    """Random numbers that depend on the image index, the corruption and what they are for, and nothing else.

    Attributes:
        seed: Any integer.
        index: The index of each image, (n,).
        corruption: Name of the corruption.
        severity: Its severity.
    """

    seed: int
    index: NDArray[np.int64]
    corruption: str
    severity: int

    def keys(self, purpose: str) -> randomness.Words:
        """Return one key per image."""
        return randomness.sample_keys(self.seed, self.index, self.corruption, self.severity, purpose)

    def uniform(self, purpose: str, *shape: int) -> NDArray[np.float32]:
        """Return numbers in [0, 1), (n, *shape)."""
        return randomness.uniform(self.keys(purpose), *shape)

    def normal(self, purpose: str, *shape: int) -> NDArray[np.float32]:
        """Return standard normal numbers, (n, *shape)."""
        return randomness.normal(self.keys(purpose), *shape)

    def shorts(self, purpose: str, *shape: int) -> NDArray[np.uint16]:
        """Return integers in [0, 2**16), (n, *shape)."""
        return randomness.shorts(self.keys(purpose), *shape)

    def integers(self, purpose: str, low: int, high: int, *shape: int) -> NDArray[np.int64]:
        """Return integers in [low, high), (n, *shape)."""
        return randomness.integers(self.keys(purpose), low, high, *shape)


def to_unit(images: NDArray[np.uint8], dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
    """Return images on the scale from 0 to 1."""
    return images.astype(dtype) / dtype(255)


def to_bytes(unit: NDArray[Any]) -> NDArray[np.uint8]:
    """Clip to [0, 1] and cut off to 8 bits; not rounded, as in the published data."""
    return (np.clip(unit, 0, 1) * 255).astype(np.uint8)
