"""Datasets whose images lie in arrays of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from findtta.data.dataset import (
    EXTRA_CORRUPTIONS,
    MAIN_CORRUPTIONS,
    DomainDataset,
    Images,
    Labels,
    Rows,
    split_domain,
)
from findtta.errors import InputError

_ORDER = {name: position for position, name in enumerate((*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS))}


class ArraySource(Protocol):
    """Something that gives an array of images when it is needed."""

    def open(self) -> Images:
        """Return the images, of shape (n, height, width, 3), without reading all of them if possible."""


@dataclass(frozen=True)
class NpyRows:
    """Some consecutive rows of a .npy file, memory-mapped."""

    path: Path
    start: int
    stop: int

    def open(self) -> Images:
        """Map the rows into memory."""
        return map_npy(self.path)[self.start : self.stop]


class ArrayDataset(DomainDataset):
    """Domains that are arrays of images with the same labels."""

    def __init__(
        self,
        name: str,
        sources: Mapping[str, ArraySource],
        labels: Labels,
        classes: Sequence[str],
        image_size: tuple[int, int],
        generated: bool = False,
    ) -> None:
        self.name, self.domains, self.classes = name, tuple(sources), tuple(classes)
        self.image_size, self.generated = image_size, generated
        self._sources, self._labels = dict(sources), labels
        self._opened: dict[str, Images] = {}

    def labels(self, domain: str) -> Labels:
        self.check_domain(domain)
        return self._labels

    def images(self, domain: str, rows: Rows) -> Images:
        self.check_domain(domain)
        if domain not in self._opened:
            self._opened[domain] = self._sources[domain].open()
        return np.ascontiguousarray(np.asarray(self._opened[domain])[rows])

    def __getstate__(self) -> dict[str, Any]:
        # A process that gets a copy opens the files itself: pickling a memory map would read all of it.
        return {**self.__dict__, "_opened": {}}


def map_npy(path: Path) -> Images:
    """Map a .npy file of images into memory."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise InputError(f"{path} must be a complete .npy file, but it cannot be read: {error}.") from error
    return checked_images(array, str(path))


def checked_images(array: Any, where: str) -> Images:
    """Return the array if it holds images, or say what it holds instead."""
    if not (isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3):
        what = (
            f"shape {array.shape} and type {array.dtype}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        raise InputError(f"{where} must hold uint8 images of shape (n, height, width, 3), but holds {what}.")
    return array


def benchmark_order(name: str) -> tuple[int, int, str]:
    """Sort key of domains: corruptions as the benchmark has them, then everything else by name."""
    kind, severity = split_domain(name)
    return _ORDER.get(kind, len(_ORDER)), severity or 0, name
