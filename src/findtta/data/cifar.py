"""CIFAR-10 and CIFAR-100 as published for Python: pickles in a folder, or in a tar archive.

The images of the split asked for are kept in memory as bytes: 31 MB for the test images, 154 MB for the
training images.
"""

import io
import pickle
import pickletools
import re
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from findtta.data.arrays import ArrayDataset
from findtta.data.dataset import CLEAN, DomainDataset
from findtta.data.metadata import checked_labels, read_marker, reading
from findtta.errors import InputError
from findtta.options import require_choice

Split = Literal["test", "train"]
SIDE = 32
_LARGEST_PICKLE = 512 * 2**20  # CIFAR-100's training images are 155 MB
_NUMERIC = re.compile(r"[|<>=]?[biuf][1248]")


class _Variant(NamedTuple):
    """Where one of the two sets keeps things: its folder, its files, and the entries of the pickles."""

    name: str
    folder: str
    meta: str
    class_names: str
    labels: str
    files: Mapping[str, tuple[str, ...]]

    def needed(self, split: Split) -> tuple[str, ...]:
        """Return the names of the files that a split is read from."""
        return (self.meta, *self.files[split])


_BATCHES = {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))}
_VARIANTS = (
    _Variant("cifar10", "cifar-10-batches-py", "batches.meta", "label_names", "labels", _BATCHES),
    _Variant(
        "cifar100", "cifar-100-python", "meta", "fine_label_names", "fine_labels",
        {"test": ("test",), "train": ("train",)},
    ),
)  # fmt: skip


def is_cifar(path: Path) -> bool:
    """Tell whether a path is a tar archive, or a folder with the pickles or with the folder of them."""
    if path.is_dir():
        return _find_folder(path) is not None
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def read_cifar(path: Path, *, split: Split = "test") -> DomainDataset:
    """Open one of the splits of CIFAR-10 or CIFAR-100, with the domain ``"clean"``."""
    require_choice("split", split, "test", "train")
    variant, contents = _read_folder(path, split) if path.is_dir() else _read_archive(path, split)
    meta = _table(contents[variant.meta], path / variant.meta)
    classes = tuple(map(_text, meta(variant.class_names, "a list of names", _are_names)))
    pixels, labels = [], []
    for file in variant.files[split]:
        take = _table(contents[file], path / file)
        pixels.append(take("data", f"uint8 images of shape (n, {3 * SIDE * SIDE})", _are_pixels))
        numbers = take(variant.labels, "a list of whole numbers", _are_numbers)
        labels.append(checked_labels(numbers, classes, str(path / file))[0])
        if len(labels[-1]) != len(pixels[-1]):
            raise InputError(
                f"{path / file} must have one label per image, got {len(labels[-1])} for {len(pixels[-1])}."
            )
    marker = read_marker(path) or read_marker(path / variant.folder)
    name = marker.title if marker else variant.name
    # In the pickles the order of an image's bytes is channel, row, column; this is a view that stays so.
    images = np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return ArrayDataset(
        name if split == "test" else f"{name} ({split})",
        {CLEAN: partial(np.asarray, images)},
        np.concatenate(labels),
        classes,
        (SIDE, SIDE),
    )


def _find_folder(path: Path) -> tuple[_Variant, Path] | None:
    for variant in _VARIANTS:
        for folder in (path, path / variant.folder):
            # CIFAR-100's names are so plain that they could be folders of images.
            if (folder / variant.meta).is_file() and (folder / variant.files["test"][0]).is_file():
                return variant, folder
    return None


def _read_folder(path: Path, split: Split) -> tuple[_Variant, dict[str, bytes]]:
    found = _find_folder(path)
    assert found is not None, "is_cifar was asked first"
    variant, folder = found
    contents = {}
    for name in variant.needed(split):
        file = folder / name
        with reading(file, f"there for the {split} images of CIFAR"):
            contents[name] = _read(file.open("rb"), file.stat().st_size, file)
    return variant, contents


def _read_archive(path: Path, split: Split) -> tuple[_Variant, dict[str, bytes]]:
    """Read the few members that are needed; nothing is written anywhere."""
    wanted = {f"{variant.folder}/{name}" for variant in _VARIANTS for name in variant.needed(split)}
    contents: dict[str, bytes] = {}
    with reading(path, "a complete tar archive"), tarfile.open(path) as archive:
        for member in archive:
            name = str(PurePosixPath(member.name))
            if name in wanted and member.isreg():
                contents[name] = _read(archive.extractfile(member), member.size, path / member.name)
    for variant in _VARIANTS:
        needed = {name: f"{variant.folder}/{name}" for name in variant.needed(split)}
        missing = [inside for inside in needed.values() if inside not in contents]
        if not missing:
            return variant, {name: contents[inside] for name, inside in needed.items()}
        if len(missing) < len(needed):
            raise InputError(f"{path} must hold {missing[0]}, but does not: it is incomplete.")
    raise InputError(
        f"{path} must hold CIFAR-10 or CIFAR-100 for Python (with {' or '.join(sorted(wanted))}), "
        "but does not. Extract other archives first, and give the folder."
    )


def _read(file: IO[bytes] | None, size: int, where: Path) -> bytes:
    assert file is not None, "it is a regular file"
    with file:
        if size > _LARGEST_PICKLE:
            raise InputError(f"{where} is {size / 2**20:.0f} MB, more than any file of CIFAR; it was not read.")
        return file.read()


def _table(pickled: bytes, where: Path) -> Callable[[str, str, Callable[[Any], bool]], Any]:
    """Return a function that takes entries of a pickled table, if they are what they must be."""
    table = load_pickle(pickled, str(where))
    fields = {_text(key): value for key, value in table.items()} if isinstance(table, dict) else {}

    def take(name: str, expected: str, fits: Callable[[Any], bool]) -> Any:
        if not fits(fields.get(name)):
            raise InputError(f"{where} must hold {name!r}, {expected}, as CIFAR is published, but does not.")
        return fields[name]

    return take


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str | bytes) for entry in value)


def _are_numbers(value: Any) -> bool:
    # Looked at one by one: numpy would follow nested lists, which a hostile file can make endless.
    return isinstance(value, np.ndarray) or (
        isinstance(value, list) and all(type(number) is int for number in value)
    )


def _are_pixels(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape[1:] == (3 * SIDE * SIDE,)


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def load_pickle(content: bytes, where: str) -> Any:
    """Return what a pickle of plain values and numeric arrays holds; nothing in it is executed.

    Text that Python 2 wrote comes as bytes. Errors call the pickle ``where``.
    """
    try:
        for opcode, argument, position in pickletools.genops(content):
            # A slot beyond what the file could have filled would be allocated before it is used.
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > (position or 0) + 1:
                raise pickle.UnpicklingError(f"it uses slot {argument} at byte {position}")
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:
        raise InputError(
            f"{where} must be a pickle of plain values and numeric arrays, as CIFAR is published, but: {error}. "
            "Nothing in it was run. Get the file again from where it is published."
        ) from error


class _Unpickler(pickle.Unpickler):
    """Knows the few names that numeric arrays need, from Python 2 and 3 and numpy 1 and 2, and imports none."""

    def find_class(self, module: str, name: str) -> Any:
        function = _NAMES.get((module.replace("numpy._core", "numpy.core"), name))
        if function is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return partial(function)  # a new one each time: a pickle can change the state of what it gets

    def persistent_load(self, _identity: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def _refuse(*_arguments: Any) -> Any:
    raise pickle.UnpicklingError("it makes an array of any size")


def _dtype(code: Any, *_flags: Any) -> np.dtype[Any]:
    if not _NUMERIC.fullmatch(_text(code)):
        raise pickle.UnpicklingError("it holds an array that is not numeric")
    return np.dtype(_text(code), copy=True)  # what a pickle changes about it must not change numpy's own


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("it encodes something other than bytes kept as latin1 text")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Callable[..., Any]] = {
    # An empty array, whose own __setstate__ takes shape and bytes if they agree.
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: np.empty(0, np.uint8),
    ("numpy.core.numeric", "_frombuffer"): lambda content, dtype, shape, order: np.frombuffer(
        content, dtype
    ).reshape(shape, order=order),
    ("numpy", "ndarray"): _refuse,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytes"): lambda: b"",
    ("__builtin__", "bytes"): lambda: b"",
}
