"""Datasets whose images are files, in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from findtta.data.dataset import DomainDataset, Images, Labels, Rows
from findtta.data.readers.pixels import SUFFIXES, Fit, read_image, size_of
from findtta.errors import InputError

#: Names of files as bytes: ImageNet-C has millions, and as objects they would fill the memory.
Names = NDArray[np.bytes_]


class ImageFiles(DomainDataset):
    """Domains that are folders with one folder of images per class.

    Files are listed when a domain is first asked for, and read when their images are.
    """

    def __init__(
        self,
        name: str,
        folders: Mapping[str, Path],
        classes: tuple[str, ...],
        *,
        fit: Fit | None = None,
        size_advice: str = "",
        generated: bool = False,
    ) -> None:
        self.name, self.domains, self.classes = name, tuple(folders), classes
        self.generated = generated
        self._folders, self._fit, self._size_advice = dict(folders), fit, size_advice
        self._listed: dict[str, tuple[Names, Labels]] = {}
        self._first = self._first_file()
        self.image_size = fit.size if fit else size_of(self._first, str(self._first))

    def labels(self, domain: str) -> Labels:
        return self._list(domain)[1]

    def images(self, domain: str, rows: Rows) -> Images:
        names, labels = self._list(domain)
        images = np.empty((len(rows), *self.image_size, 3), np.uint8)
        for position, row in enumerate(rows):
            file = self._folders[domain] / self.classes[labels[row]] / os.fsdecode(names[row])
            image = read_image(file, str(file), self._fit)
            if image.shape[:2] != self.image_size:
                raise InputError(
                    f"{file} must be {_size(self.image_size)} like {self._first}, "
                    f"got {_size(image.shape[:2])}.{self._size_advice}"
                )
            images[position] = image
        return images

    def _list(self, domain: str) -> tuple[Names, Labels]:
        self.check_domain(domain)
        if domain not in self._listed:
            label_of = {name: label for label, name in enumerate(self.classes)}
            names: list[bytes] = []
            labels: list[int] = []
            for folder in folders_in(self._folders[domain]):
                if folder.name not in label_of:
                    raise InputError(
                        f"{folder} must be the folder of a class, but {folder.name!r} is not among the "
                        f"{len(self.classes)} classes. Give all of them with the option classes."
                    )
                found = images_in(folder)
                names += [os.fsencode(file.name) for file in found]
                labels += [label_of[folder.name]] * len(found)
            self._listed[domain] = np.array(names, np.bytes_), np.array(labels, np.int64)
        return self._listed[domain]

    def _first_file(self) -> Path:
        for domain in self.domains:
            for folder in folders_in(self._folders[domain]):
                for file in images_in(folder):
                    return file
        raise InputError(f"{self.name} must hold images ({', '.join(sorted(SUFFIXES))}), got none.")


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder by name, without hidden ones."""
    return sorted(entry for entry in _entries(folder) if not entry.name.startswith(".") and entry.is_dir())


def images_in(folder: Path) -> list[Path]:
    """Return the image files in a folder by name, without hidden ones."""
    return sorted(
        entry for entry in _entries(folder) if entry.suffix.lower() in SUFFIXES and not entry.name.startswith(".")
    )


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError as error:
        raise InputError(f"{folder} must be a readable folder, but it is not: {error}.") from error


def _size(size: tuple[int, ...]) -> str:
    return f"{size[0]}x{size[1]}"
