"""Readers, one file per layout, and the ordered list of them that a path is held against."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Protocol

from findtta.data.dataset import DomainDataset
from findtta.data.readers import cifar, cifar_c, image_folder, imagenet_c, npz
from findtta.errors import InputError, OptionError, close_matches


class Reader(Protocol):
    """What a module of this package offers."""

    @property
    def __name__(self) -> str: ...

    @property
    def LAYOUT(self) -> str:
        """One line for the user about what it reads."""

    @property
    def matches(self) -> Any:
        """Function of a path: whether this reader is the one for it."""

    @property
    def read(self) -> Any:
        """Function of a path and of options: the dataset."""


#: The first that matches reads; the most particular layouts come first.
READERS: tuple[Reader, ...] = (npz, cifar, cifar_c, imagenet_c, image_folder)


def read(path: Path, **options: Any) -> DomainDataset:
    """Open the dataset at a path.

    Args:
        path: A file or folder in one of the layouts of ``READERS``.
        **options: Options of the reader that fits, such as ``classes`` or ``image_size``.

    Returns:
        The dataset.
    """
    for reader in READERS:
        if reader.matches(path):
            _check_options(reader, path, options)
            dataset: DomainDataset = reader.read(path, **options)
            return dataset
    layouts = "".join(f"\n  - {reader.LAYOUT}" for reader in READERS)
    raise InputError(f"source {str(path)!r} is not a dataset of a known layout. Known are:{layouts}")


def _check_options(reader: Reader, path: Path, options: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(reader.read).parameters if name != "path"]
    for name in options:
        if name not in known:
            raise OptionError(
                f"{name} is not an option for {str(path)!r}, which is a {reader.LAYOUT}."
                f"{close_matches(name, known)} Its options are {', '.join(known)}."
            )
