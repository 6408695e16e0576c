"""CIFAR-10 and CIFAR-100 as published for Python: pickles in a folder, or in a tar archive.

The images of the split asked for are kept in memory as bytes: 31 MB for the test images, 154 MB for the
training images.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from findtta.data.dataset import CLEAN, DomainDataset, Images, Labels, Rows
from findtta.data.readers.classes import checked_labels
from findtta.data.readers.marker import read_marker
from findtta.data.readers.safe_pickle import load_pickle
from findtta.errors import InputError, OptionError

LAYOUT = (
    "CIFAR-10 or CIFAR-100 for Python: the tar archive, or the folder of its pickles (test_batch or test, ...)"
)

Split = Literal["test", "train"]
SIDE = 32
_LARGEST_PICKLE = 512 * 2**20  # CIFAR-100's training images are 155 MB


@dataclass(frozen=True)
class _Variant:
    """Where one of the two sets keeps things."""

    name: str
    folder: str
    files: dict[str, tuple[str, ...]]
    labels: str
    meta: str
    class_names: str


_VARIANTS = (
    _Variant(
        "cifar10",
        "cifar-10-batches-py",
        {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))},
        "labels",
        "batches.meta",
        "label_names",
    ),
    _Variant(
        "cifar100",
        "cifar-100-python",
        {"test": ("test",), "train": ("train",)},
        "fine_labels",
        "meta",
        "fine_label_names",
    ),
)


def matches(path: Path) -> bool:
    """Whether the path is a tar archive, or a folder with the pickles or with the folder of them."""
    if path.is_dir():
        return _find_folder(path) is not None
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def read(path: Path, *, split: Split = "test") -> DomainDataset:
    """Open the set.

    Args:
        path: The archive or the folder.
        split: ``"test"`` or ``"train"``.

    Returns:
        A dataset with the domain ``"clean"``.
    """
    if split not in ("test", "train"):
        raise OptionError(f"split must be 'test' or 'train', got {split!r}.")
    return _read_folder(path, split) if path.is_dir() else _read_archive(path, split)


class Cifar(DomainDataset):
    """CIFAR images in memory, in the order of their bytes in the pickles: channel, row, column."""

    def __init__(self, name: str, pixels: Images, labels: Labels, classes: tuple[str, ...]) -> None:
        self.name, self.domains, self.classes = name, (CLEAN,), classes
        self.image_size = (SIDE, SIDE)
        self._pixels, self._labels = pixels, labels

    def labels(self, domain: str) -> Labels:
        self.check_domain(domain)
        return self._labels

    def images(self, domain: str, rows: Rows) -> Images:
        self.check_domain(domain)
        return np.ascontiguousarray(self._pixels[rows].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def _find_folder(path: Path) -> tuple[_Variant, Path] | None:
    for variant in _VARIANTS:
        for folder in (path, path / variant.folder):
            # CIFAR-100's names are so plain that they could be folders of images.
            if (folder / variant.meta).is_file() and (folder / variant.files["test"][0]).is_file():
                return variant, folder
    return None


def _read_folder(path: Path, split: Split) -> Cifar:
    found = _find_folder(path)
    if found is None:
        raise InputError(f"{path} must hold the pickles of CIFAR-10 or CIFAR-100, but does not.")
    variant, folder = found

    def content(name: str) -> bytes:
        file = folder / name
        try:
            _check_size(file.stat().st_size, file)
            return file.read_bytes()
        except OSError as error:
            raise InputError(f"{file} is needed for the {split} images, but cannot be read: {error}.") from error

    marker = read_marker(folder)
    return _assemble(variant, split, content, folder, marker.title if marker else variant.name)


def _read_archive(path: Path, split: Split) -> Cifar:
    """Read the few members that are needed; nothing is written anywhere."""
    wanted = {
        f"{variant.folder}/{name}": variant
        for variant in _VARIANTS
        for name in (variant.meta, *variant.files[split])
    }
    contents: dict[str, bytes] = {}
    variants = set()
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = str(PurePosixPath(member.name))
                if name in wanted and member.isreg():
                    _check_size(member.size, path / member.name)
                    file = archive.extractfile(member)
                    assert file is not None  # it is a regular file
                    contents[PurePosixPath(name).name] = file.read()
                    variants.add(wanted[name].name)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path} must be a complete tar archive, but it cannot be read: {error}.") from error
    if len(variants) != 1:
        raise InputError(
            f"{path} must hold CIFAR-10 or CIFAR-100 for Python (with {' or '.join(sorted(wanted))}), "
            "but does not. Extract other archives first, and give the folder."
        )
    variant = next(variant for variant in _VARIANTS if variant.name in variants)

    def content(name: str) -> bytes:
        if name not in contents:
            raise InputError(f"{path} must hold {variant.folder}/{name}, but does not: it is incomplete.")
        return contents[name]

    return _assemble(variant, split, content, path, variant.name)


def _assemble(variant: _Variant, split: Split, content: Callable[[str], bytes], path: Path, name: str) -> Cifar:
    meta = _Table(content(variant.meta), path / variant.meta)
    classes = meta.names(variant.class_names)
    pixels, labels = [], []
    for file in variant.files[split]:
        table = _Table(content(file), path / file)
        data, block = (
            table.pixels("data"),
            checked_labels(table.numbers(variant.labels), classes, str(path / file)),
        )
        if len(block) != len(data):
            raise InputError(f"{path / file} must have one label per image, got {len(block)} for {len(data)}.")
        pixels.append(data)
        labels.append(block)
    return Cifar(
        name if split == "test" else f"{name} ({split})",
        pixels[0] if len(pixels) == 1 else np.concatenate(pixels),
        np.concatenate(labels),
        classes,
    )


class _Table:
    """A pickled table whose entries are taken only for what they must be."""

    def __init__(self, pickled: bytes, where: Path) -> None:
        table = load_pickle(pickled, str(where))
        entries = table.items() if isinstance(table, dict) else ()
        self.where, self.fields = where, {_text(key): value for key, value in entries}

    def pixels(self, name: str) -> Images:
        data, width = self.fields.get(name), 3 * SIDE * SIDE
        if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (width,):
            return data
        raise self._unexpected(name, f"uint8 images of shape (n, {width})")

    def numbers(self, name: str) -> Any:
        numbers = self.fields.get(name)
        # Looked at one by one: numpy would follow nested lists, which a hostile file can make endless.
        if isinstance(numbers, np.ndarray) or (
            isinstance(numbers, list) and all(type(number) is int for number in numbers)
        ):
            return numbers
        raise self._unexpected(name, "a list of whole numbers")

    def names(self, name: str) -> tuple[str, ...]:
        names = self.fields.get(name)
        if isinstance(names, list) and all(isinstance(entry, (str, bytes)) for entry in names):
            return tuple(_text(entry) for entry in names)
        raise self._unexpected(name, "a list of names")

    def _unexpected(self, name: str, expected: str) -> InputError:
        return InputError(f"{self.where} must hold {name!r}, {expected}, as CIFAR is published, but does not.")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _check_size(size: int, where: Path) -> None:
    if size > _LARGEST_PICKLE:
        raise InputError(f"{where} is {size / 2**20:.0f} MB, more than any file of CIFAR; it was not read.")
