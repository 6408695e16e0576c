"""One .npz file: an array per domain, a clean set, or a clean set as JPEG bytes.

Members that are stored as they are get memory-mapped inside the archive. Compressed ones cannot be: those of a
file of at most 256 MB are unpacked into memory, those of a larger one into a temporary file that is
memory-mapped and that the system removes; either way when a domain is first used.
"""

from __future__ import annotations

import math
import shutil
import struct
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from findtta.data.dataset import CLEAN, DomainDataset, Images, Labels, Rows
from findtta.data.readers.arrays import ArrayDataset, ArraySource, benchmark_order, checked_images
from findtta.data.readers.classes import Classes, checked_labels, class_list, numbered
from findtta.data.readers.pixels import read_image, size_of
from findtta.errors import InputError

LAYOUT = (
    ".npz file with labels and one uint8 array (n, height, width, 3) per domain, or with images and labels, "
    "or with jpeg, offsets and labels; perhaps with classes"
)

IN_MEMORY = 256 * 2**20
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, ..., lengths of the name and of the extra field
_COPIED_AT_ONCE = 2**20


def matches(path: Path) -> bool:
    """Whether the name ends in .npz."""
    return path.is_file() and path.suffix.lower() == ".npz"


def read(path: Path, *, classes: Classes | None = None) -> DomainDataset:
    """Open the file.

    Args:
        path: The file.
        classes: Names of the classes; by default those of the array ``classes``, else numbers.

    Returns:
        A dataset with the domain ``"clean"`` if the file has ``images`` or ``jpeg``, else with one domain
        for every array of images.
    """
    members = _members(path)
    if "labels" not in members:
        raise InputError(f"{path} must hold an array 'labels', but holds {', '.join(sorted(members)) or 'none'}.")
    labels = checked_labels(members["labels"].load(), None, f"{path}: labels")
    names = class_list(classes) or _class_names(members) or numbered(labels)
    labels = checked_labels(labels, names, f"{path}: labels")
    if "jpeg" in members:
        return JpegBytes(path.stem, members["jpeg"], _offsets(members, len(labels)), labels, names)
    images = {name: member for name, member in members.items() if member.holds_images}
    if "images" in members:
        images = {CLEAN: members["images"]}
    if not images:
        raise InputError(
            f"{path} must hold uint8 images of shape (n, height, width, 3), got only "
            + ", ".join(f"{name} {member.shape} {member.dtype}" for name, member in sorted(members.items()))
            + "."
        )
    sources: dict[str, ArraySource] = {name: images[name] for name in sorted(images, key=benchmark_order)}
    size = next(iter(images.values())).shape[1:3]
    for member in images.values():
        if not member.holds_images or member.shape[:3] != (len(labels), *size):
            raise InputError(
                f"{path}: {member.entry} must hold {len(labels)} uint8 images (one per label) of the size of "
                f"the others, {size}, got shape {member.shape} and type {member.dtype}."
            )
    return ArrayDataset(path.stem, sources, labels, names, (size[0], size[1]))


class JpegBytes(DomainDataset):
    """A clean set whose images are encoded one after another in an array of bytes."""

    def __init__(
        self, name: str, encoded: Member, offsets: Rows, labels: Labels, classes: tuple[str, ...]
    ) -> None:
        self.name, self.domains, self.classes = name, (CLEAN,), classes
        self._encoded, self._offsets, self._labels = encoded, offsets, labels
        self._opened: np.ndarray[Any, Any] | None = None
        if encoded.dtype != np.uint8 or len(encoded.shape) != 1 or offsets[-1] > encoded.shape[0]:
            raise InputError(
                f"{encoded.path}: jpeg must be one uint8 array of at least {offsets[-1]} bytes, "
                f"got shape {encoded.shape} and type {encoded.dtype}."
            )
        self.image_size = size_of(self._bytes(0), self._where(0))

    def labels(self, domain: str) -> Labels:
        self.check_domain(domain)
        return self._labels

    def images(self, domain: str, rows: Rows) -> Images:
        self.check_domain(domain)
        images = np.empty((len(rows), *self.image_size, 3), np.uint8)
        for position, row in enumerate(rows):
            image = read_image(self._bytes(int(row)), self._where(row))
            if image.shape[:2] != self.image_size:
                raise InputError(
                    f"{self._where(row)} must be of the size of the first one, {self.image_size}, "
                    f"got {image.shape[:2]}."
                )
            images[position] = image
        return images

    def _bytes(self, row: int) -> bytes:
        if self._opened is None:
            self._opened = self._encoded.load()
        return self._opened[self._offsets[row] : self._offsets[row + 1]].tobytes()

    def _where(self, row: int) -> str:
        return f"{self._encoded.path}: image {row}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


@dataclass(frozen=True)
class Member:
    """An array in an .npz file, as its header describes it.

    Attributes:
        path: The file.
        entry: The name in the archive.
        shape: The shape of the array.
        dtype: The type of its elements.
        fortran: Whether it is stored column by column.
        header: The length of the array's own header.
        start: Where the entry begins in the file, or None if it is compressed.
        in_memory: Whether to unpack it into memory rather than into a temporary file.
    """

    path: Path
    entry: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header: int
    start: int | None
    in_memory: bool

    @property
    def holds_images(self) -> bool:
        """Whether the array has the shape and type of images."""
        return self.dtype == np.uint8 and len(self.shape) == 4 and self.shape[3] == 3

    def open(self) -> Images:
        """Return the images."""
        return checked_images(self.load(), f"{self.path}: {self.entry}")

    def load(self) -> np.ndarray[Any, Any]:
        """Return the array: a memory map where that can be."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        try:
            if self.start is not None:
                return self._map(self.path, self.start + self.header)
            with zipfile.ZipFile(self.path) as archive, archive.open(self.entry) as stored:
                if self.in_memory:
                    content = stored.read()
                    flat = np.frombuffer(content, self.dtype, offset=self.header)
                    return flat.reshape(self.shape, order="F" if self.fortran else "C")
                # Nothing to clean up: the file has no name, or loses it when the map is dropped.
                with tempfile.TemporaryFile(prefix="findtta-") as unpacked:
                    shutil.copyfileobj(stored, unpacked, _COPIED_AT_ONCE)
                    unpacked.flush()
                    return self._map(unpacked, self.header)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
            raise InputError(f"{self.path}: {self.entry} cannot be unpacked: {error}.") from error

    def _map(self, file: Any, offset: int) -> np.ndarray[Any, Any]:
        return np.memmap(file, self.dtype, "r", offset, self.shape, "F" if self.fortran else "C")


def _members(path: Path) -> dict[str, Member]:
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            in_memory = sum(info.file_size for info in entries) <= IN_MEMORY
            return {info.filename[:-4]: _member(path, file, archive, info, in_memory) for info in entries}
    except (OSError, zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} must be an .npz file, but it cannot be read: {error}.") from error


def _member(
    path: Path, file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo, in_memory: bool
) -> Member:
    with archive.open(info) as stored:
        version = np.lib.format.read_magic(stored)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stored)
        header = stored.tell()
    if dtype.hasobject:
        raise InputError(f"{path}: {info.filename} holds Python objects, which are not read from files.")
    if header + math.prod(shape) * dtype.itemsize != info.file_size:
        raise InputError(f"{path}: {info.filename} is not as long as its header says; the file is damaged.")
    start = _content_start(file, info) if info.compress_type == zipfile.ZIP_STORED else None
    return Member(path, info.filename, shape, dtype, fortran, header, start, in_memory)


def _content_start(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Return where a stored entry begins: after its local header, whose length only it knows."""
    file.seek(info.header_offset)
    signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("an entry has no local header")
    return info.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)


def _class_names(members: dict[str, Member]) -> tuple[str, ...] | None:
    if "classes" not in members:
        return None
    names = members["classes"].load()
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise InputError(f"{members['classes'].path}: classes must be an array of names, got {names.dtype}.")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())


def _offsets(members: dict[str, Member], count: int) -> Rows:
    path = members["jpeg"].path
    if "offsets" not in members:
        raise InputError(f"{path} must hold 'offsets' beside 'jpeg', which say where each image begins.")
    offsets = members["offsets"].load()
    if offsets.shape != (count + 1,) or offsets.dtype.kind not in "iu" or count == 0:
        raise InputError(
            f"{path}: offsets must be {count + 1} whole numbers, one more than there are labels, "
            f"got shape {offsets.shape} and type {offsets.dtype}."
        )
    offsets = offsets.astype(np.int64)
    if offsets[0] < 0 or (np.diff(offsets) < 0).any():
        raise InputError(f"{path}: offsets must not be negative and must not decrease, but do.")
    return offsets
