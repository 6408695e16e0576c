"""Datasets whose images are arrays: folders of .npy files in the layout of CIFAR-10-C, and .npz files."""

import math
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from findtta.data.dataset import (
    ALL_CORRUPTIONS,
    CLEAN,
    SEVERITIES,
    DomainDataset,
    Images,
    Labels,
    Rows,
    are_images,
    describe,
    domain_name,
    split_domain,
)
from findtta.data.folders import EncodedDataset
from findtta.data.metadata import Classes, checked_labels, class_list, marked, reading
from findtta.errors import InputError, few
from findtta.images import Preprocessing

LABELS_FILE = "labels.npy"


class ArrayDataset(DomainDataset):
    """Domains that are arrays of images with the same labels; an array is opened when its domain is asked for.

    The sources give the array of each domain, (n, height, width, 3), without reading all of it if possible.
    """

    def __init__(
        self,
        name: str,
        sources: Mapping[str, Callable[[], Images]],
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
            self._opened[domain] = self._sources[domain]()
        return np.ascontiguousarray(np.asarray(self._opened[domain])[rows])

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the files itself: pickling a memory map would read all of it.
        return {**self.__dict__, "_opened": {}}


def map_npy(path: Path, rows: slice = slice(None)) -> Images:
    """Map a .npy file of images, or some rows of it, into memory."""
    with reading(path, "a complete .npy file"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray) or not are_images(array):
        raise InputError(f"{path} must hold uint8 images of shape (n, height, width, 3), got {describe(array)}.")
    return array[rows]


def benchmark_order(name: str) -> tuple[int, int, str]:
    """Sort key of domains: corruptions in the order of the benchmark, then everything else by name."""
    kind, severity = split_domain(name)
    return (*ALL_CORRUPTIONS, kind).index(kind), severity or 0, name


def is_cifar_c(path: Path) -> bool:
    """Tell whether a folder holds .npy files."""
    return path.is_dir() and any(path.glob("*.npy"))


def read_cifar_c(path: Path, *, classes: Classes | None = None) -> DomainDataset:
    """Open a folder in the layout of CIFAR-10-C and CIFAR-100-C: one .npy file per corruption.

    A file holds five blocks of rows, severity 1 first, all in the order of ``labels.npy``. The dataset has one
    domain per corruption and severity, memory-mapped.
    """
    marker = marked(path)
    files = [file for file in path.glob("*.npy") if file.name != LABELS_FILE]
    files.sort(key=lambda file: benchmark_order(file.stem))
    if not files:
        raise InputError(f"{path} must hold <corruption>.npy files beside {LABELS_FILE}, got none.")
    first = map_npy(files[0]).shape
    for file in files:
        shape = map_npy(file).shape
        if shape != first or shape[0] % len(SEVERITIES):
            raise InputError(
                f"{file} must hold as many images as {files[0].name} in {len(SEVERITIES)} equal blocks, "
                f"but their shapes are {shape} and {first}."
            )
    count = first[0] // len(SEVERITIES)
    labels, names = _cifar_c_labels(path / LABELS_FILE, count, class_list(classes) or marker.classes)
    # A generated set may have been made at some severities only; the other blocks of its files are empty.
    made = marker.details.get("severities", {}) if marker.generated else {}
    sources = {
        domain_name(file.stem, severity): partial(map_npy, file, slice((severity - 1) * count, severity * count))
        for file in files
        for severity in made.get(file.stem, () if marker.generated else SEVERITIES)
    }
    return ArrayDataset(marker.title, sources, labels, names, (first[1], first[2]), generated=marker.generated)


def _cifar_c_labels(path: Path, count: int, classes: Sequence[str] | None) -> tuple[Labels, tuple[str, ...]]:
    """Return the labels of one block, and the classes; the file has them for one block or for all five."""
    with reading(path, "a .npy file of labels"):
        labels = np.load(path, allow_pickle=False)
    blocks = len(SEVERITIES)
    if labels.shape not in ((count,), (blocks * count,)):
        raise InputError(
            f"{path} must hold {blocks * count} labels, or {count} for one block, got shape {labels.shape}."
        )
    if len(labels) > count and (labels.reshape(blocks, count) != labels[:count]).any():
        raise InputError(f"{path} must repeat the same labels for every severity, but its five blocks differ.")
    return checked_labels(labels[:count], classes, str(path))


@dataclass(frozen=True)
class Member:
    """An array in an .npz file, as its header describes it; ``header`` is the length of the header."""

    path: Path
    entry: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header: int

    def load(self) -> np.ndarray[Any, Any]:
        """Unpack the array into a temporary file and map that into memory."""
        with (
            reading(f"{self.path}: {self.entry}", "a complete array"),
            zipfile.ZipFile(self.path) as archive,
            archive.open(self.entry) as stored,
            # The file has no name, or loses it with the map: the system removes it.
            tempfile.TemporaryFile(prefix="findtta-") as unpacked,
        ):
            shutil.copyfileobj(stored, unpacked, 2**20)
            unpacked.flush()
            order: Any = "F" if self.fortran else "C"
            return np.memmap(unpacked, self.dtype, "r", self.header, self.shape, order)


def is_npz(path: Path) -> bool:
    """Tell whether a path is a file whose name ends in .npz."""
    return path.is_file() and path.suffix.lower() == ".npz"


def read_npz(
    path: Path,
    *,
    classes: Classes | None = None,
    image_size: int | tuple[int, int] | None = None,
    resize: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> DomainDataset:
    """Open an .npz file: an array per domain, a clean set, or a clean set of encoded images.

    The dataset has the domain ``"clean"`` if the file has ``images`` or ``jpeg``, else one domain for every array
    of images.
    """
    with reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        entries = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        members = {info.filename[:-4]: _member(path, archive, info) for info in entries}
    if "labels" not in members:
        raise InputError(f"{path} must hold an array 'labels', but holds {', '.join(sorted(members)) or 'none'}.")
    labels, names = checked_labels(
        members["labels"].load(), class_list(classes) or _class_names(members), f"{path}: labels"
    )
    asked = Preprocessing.from_options(image_size, resize)
    if "jpeg" in members:
        return EncodedArray(path, members, labels, names, asked or preprocessing)
    if asked is not None:
        raise InputError(f"image_size: {path} holds arrays, which are used as they are; only files are resized.")
    images = {name: member for name, member in members.items() if are_images(member)}
    if "images" in members:
        images = {CLEAN: members["images"]}
    elif images and (
        odd := [name for name, member in members.items() if len(member.shape) == 4 and name not in images]
    ):
        raise InputError(
            f"{path}: {few(odd)} must be uint8 of shape (n, height, width, 3), as other arrays in it are."
        )
    if not images:
        raise InputError(
            f"{path} must hold uint8 images of shape (n, height, width, 3), got only "
            + ", ".join(f"{name} with {describe(member)}" for name, member in sorted(members.items()))
            + "."
        )
    size = next(iter(images.values())).shape[1:3]
    for member in images.values():
        if not are_images(member) or member.shape[:3] != (len(labels), *size):
            raise InputError(
                f"{path}: {member.entry} must hold {len(labels)} uint8 images (one per label) of the size of "
                f"the others, {size}, got {describe(member)}."
            )
    ordered = {name: images[name].load for name in sorted(images, key=benchmark_order)}
    return ArrayDataset(path.stem, ordered, labels, names, (size[0], size[1]))


class EncodedArray(EncodedDataset):
    """A clean set whose encoded images stand one after another in an array of bytes."""

    def __init__(
        self,
        path: Path,
        members: Mapping[str, Member],
        labels: Labels,
        classes: tuple[str, ...],
        preprocessing: Preprocessing | None,
    ) -> None:
        self.name, self.domains, self.classes = path.stem, (CLEAN,), classes
        self._encoded, self._labels = members["jpeg"], labels
        self._offsets = _offsets(path, members, len(labels))
        needed = self._offsets[-1]
        if self._encoded.dtype != np.uint8 or len(self._encoded.shape) != 1 or needed > self._encoded.shape[0]:
            raise InputError(
                f"{path}: jpeg must be one uint8 array of at least {needed} bytes, got {describe(self._encoded)}."
            )
        self._choose_size(preprocessing)

    def labels(self, domain: str) -> Labels:
        self.check_domain(domain)
        return self._labels

    @cached_property
    def _opened(self) -> np.ndarray[Any, Any]:
        return self._encoded.load()

    def _source(self, domain: str, row: int) -> tuple[Path | bytes, str]:
        content = self._opened[self._offsets[row] : self._offsets[row + 1]].tobytes()
        return content, f"{self._encoded.path}: image {row}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    with archive.open(info) as stored:
        version = np.lib.format.read_magic(stored)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stored)
        header = stored.tell()
    if dtype.hasobject:
        raise InputError(f"{path}: {info.filename} holds Python objects, which are not read from files.")
    if header + math.prod(shape) * dtype.itemsize != info.file_size:
        raise InputError(f"{path}: {info.filename} is not as long as its header says; the file is damaged.")
    return Member(path, info.filename, shape, dtype, fortran, header)


def _class_names(members: Mapping[str, Member]) -> tuple[str, ...] | None:
    if "classes" not in members:
        return None
    names = members["classes"].load()
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise InputError(f"{members['classes'].path}: classes must be an array of names, got {names.dtype}.")
    with reading(members["classes"].path, "a file whose class names are UTF-8"):
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())


def _offsets(path: Path, members: Mapping[str, Member], count: int) -> Rows:
    """Return where each encoded image begins, and where the last one ends."""
    if "offsets" not in members:
        raise InputError(f"{path} must hold 'offsets' beside 'jpeg', which say where each image begins.")
    offsets = members["offsets"].load()
    if offsets.shape != (count + 1,) or offsets.dtype.kind not in "iu" or count == 0:
        raise InputError(
            f"{path}: offsets must be {count + 1} whole numbers, one more than there are labels, got "
            f"{describe(offsets)}."
        )
    offsets = offsets.astype(np.int64)
    if offsets[0] < 0 or (np.diff(offsets) < 0).any():
        raise InputError(f"{path}: offsets must not be negative and must not decrease, but do.")
    return offsets
