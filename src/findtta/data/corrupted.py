"""A clean set under every corruption: made on the fly, or written to disk in the layout the published sets have.

On disk, small images become one .npy file per corruption with five blocks of rows, severity 1 first, and
``labels.npy`` (as CIFAR-10-C); large ones become corruption/severity/class/image.JPEG of quality 85 (as
ImageNet-C). Files get their names when they are complete, and the marker file says from the start that the folder
was generated, how, and which severities are complete; so a run that is stopped, or killed, is continued by the
same command.
"""

import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image

import findtta
from findtta._io import atomic_write
from findtta._processes import ignore_sigint
from findtta._progress import progress_bar
from findtta.data.arrays import LABELS_FILE
from findtta.data.corruptions import TABLES, apply, are_known, steps
from findtta.data.dataset import (
    ALL_CORRUPTIONS,
    CLEAN,
    MAIN_CORRUPTIONS,
    SEVERITIES,
    DomainDataset,
    Images,
    Labels,
    Rows,
    domain_name,
    split_domain,
)
from findtta.data.metadata import Marker, read_marker, write_marker
from findtta.data.published import require_room
from findtta.errors import InputError, OptionError, WorkerError, few
from findtta.options import Count, Options, Seed, option, require_int, require_known
from findtta.plugins import public_name

Layout = Literal["arrays", "folders"]

JPEG_QUALITY = 85
_JPEG_BYTES = 0.4  # per pixel at this quality, about; ImageNet-C has as many
_FOLDERS_FROM = 128  # pixels; smaller images would suffer from JPEG and are small enough for arrays
_ROWS_AT_ONCE = {"arrays": 250, "folders": 25}


class CorruptedDataset(DomainDataset):
    """A set with the domain ``"clean"``, as it is and under 19 corruptions at 5 severities, made on the fly.

    The corruption of an image depends on the seed and on its row only, not on the batch it is asked for in. The
    constants, ``"cifar"`` or ``"imagenet"``, are the strengths of the corruptions; by default by image size. More
    corruptions are those of other packages or files, and several on one image, such as ``"fog+gaussian_noise"``.
    """

    def __init__(
        self, clean: DomainDataset, seed: int = 0, constants: str | None = None, more: Iterable[str] = ()
    ) -> None:
        if CLEAN not in clean.domains:
            raise OptionError(
                f"clean must be a dataset with the domain {CLEAN!r}, but {clean.name} has {few(clean.domains)}."
            )
        if constants is not None:
            require_known("constants", constants, TABLES)
        self.clean, self.seed, self.constants = clean, seed, constants
        self.name = f"{clean.name}-c (generated)"
        self._more = tuple(more)
        self.functions = {kind: steps(kind) for kind in ALL_CORRUPTIONS}
        for kind in self._more:
            functions = steps(kind)
            if self.functions.setdefault(public_name(kind), functions) != functions:
                raise OptionError(f"corruption: {kind!r} and another one are both called {public_name(kind)!r}.")
        self.domains = (
            CLEAN,
            *(domain_name(kind, severity) for kind in self.functions for severity in SEVERITIES),
        )
        self.classes, self.image_size = clean.classes, clean.image_size
        self.generated, self.preprocessing = True, clean.preprocessing

    def labels(self, domain: str) -> Labels:
        self.check_domain(domain)
        return self.clean.labels(CLEAN)

    def images(self, domain: str, rows: Rows) -> Images:
        self.check_domain(domain)
        images = self.clean.images(CLEAN, rows)
        kind, severity = split_domain(domain)
        if severity is None:
            return images
        functions = self.functions[kind]
        return apply(functions, images, severity, seed=self.seed, index=rows, constants=self.constants)

    def extended(self, kinds: Iterable[str]) -> DomainDataset:
        more = [kind for kind in kinds if are_known(kind)]
        return CorruptedDataset(self.clean, self.seed, self.constants, (*self._more, *more)) if more else self


def require_corruption(name: str, value: str) -> None:
    """Raise unless a value is the name of a corruption, or of several as in ``"fog+gaussian_noise"``."""
    steps(value)


#: Makes some rows of a domain and writes them to a place; returns how many.
_Write = Callable[[str, Path, Rows], int]
#: Makes all images of a domain, shared out over the workers.
_Make = Callable[[str, Path], None]


@dataclass(frozen=True, kw_only=True)
class Generation(Options):
    """How a clean set is corrupted and written."""

    corruptions: tuple[Annotated[str, require_corruption], ...] = option(
        MAIN_CORRUPTIONS, "corruptions", metavar="NAME", nargs="+", shown="the fifteen of the benchmark"
    )
    severities: tuple[Annotated[int, partial(require_int, low=1, high=5)], ...] = option(
        SEVERITIES, "severities", metavar="N", nargs="+", parse=int, shown="1 to 5"
    )
    seed: Seed = option(0, "seed of the corruptions")
    constants: str | None = option(None, "strengths: cifar or imagenet", shown="by image size")
    layout: Layout | None = option(None, "as CIFAR-10-C or as ImageNet-C", shown="by image size")
    workers: Count = option(1, "processes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.corruptions or not self.severities:
            raise OptionError(
                f"corruptions and severities must not be empty, got {self.corruptions} and {self.severities}."
            )

    def layout_for(self, clean: DomainDataset) -> Layout:
        """Return the layout in which a clean set is written."""
        return self.layout or ("folders" if min(clean.image_size) >= _FOLDERS_FROM else "arrays")

    def images(self, clean: DomainDataset) -> int:
        """Return the number of images that are written."""
        return len(clean.labels(CLEAN)) * len(set(self.severities)) * len(self.corruptions)

    def size(self, clean: DomainDataset) -> int:
        """Return the number of bytes that are written; for JPEG files it is an estimate."""
        each = math.prod(clean.image_size) * (3 if self.layout_for(clean) == "arrays" else _JPEG_BYTES)
        return int(self.images(clean) * each)


def generate(
    name: str, clean: DomainDataset, out: Path, how: Generation | None = None, *, progress: bool = True
) -> Path:
    """Corrupt a set with the domain ``"clean"``, and write the result to the folder ``out``, which is returned.

    The folder must be new, or one that this function has made with the same settings: what a former run has
    finished is kept. Tables will show the name, such as ``"cifar10-c"``, and that the set is generated.
    """
    how = how or Generation()
    dataset = CorruptedDataset(clean, seed=how.seed, constants=how.constants, more=how.corruptions)
    count = len(clean.labels(CLEAN))
    layout = how.layout_for(clean)
    # All that the content depends on: two runs with the same settings make the same files.
    settings = {
        "version": findtta.__version__,
        "seed": how.seed,
        "constants": how.constants,
        "clean": clean.name,
        "clean_identity": clean.identity,
        "images": count,
        "layout": layout,
    }
    _prepare(out, name, settings, class_folders(clean) if layout == "folders" else clean.classes)
    make_corruption, write = (_make_array, _write_rows) if layout == "arrays" else (_make_folders, _write_files)
    size = _ROWS_AT_ONCE[layout]
    blocks = [np.arange(start, min(start + size, count)) for start in range(0, count, size)]
    severities = sorted(set(how.severities))
    each = count * len(severities)
    with (
        progress_bar(each * len(how.corruptions), "image", quiet=not progress) as bar,
        _mapping(partial(write, dataset), how.workers) as run,
    ):

        def make(domain: str, place: Path) -> None:
            for made in run(repeat(domain), repeat(place), blocks):
                bar.update(made)

        for position, corruption in enumerate(map(public_name, how.corruptions), start=1):
            bar.set_description(corruption)
            make_corruption(out, dataset, corruption, severities, make)
            bar.update(each * position - bar.n)  # what a former run had made
    return out


def _prepare(out: Path, name: str, settings: dict[str, Any], classes: Sequence[str]) -> None:
    """Make the folder and its marker, or check that the folder is one to continue in."""
    marker = read_marker(out)
    if marker is None and (not out.exists() or (out.is_dir() and not any(out.iterdir()))):
        write_marker(out, Marker(name, "generated", {**settings, "classes": list(classes), "severities": {}}))
        return
    if marker is None or not marker.generated:
        held = f"the published {marker.name}" if marker else "other files, perhaps published data"
        raise InputError(f"out must be a new folder, but {out} holds {held}. Name another one.")
    for key, value in {"name": name, **settings}.items():
        before = marker.name if key == "name" else marker.details.get(key)
        if before != value:
            raise InputError(
                f"out {str(out)!r} was begun with {key} {before!r}, but now it is {value!r}. "
                "Name another folder, or delete this one."
            )


def _marker(out: Path) -> Marker:
    marker = read_marker(out)
    if marker is None:
        raise InputError(f"{out} has lost its marker file while the dataset was being made.")
    return marker


def _record(out: Path, corruption: str, severities: Sequence[int]) -> None:
    """Say in the marker which severities in the file of a corruption are complete."""
    marker = _marker(out)
    marker.details["severities"] = {**marker.details["severities"], corruption: sorted(severities)}
    write_marker(out, marker)


def _make_array(
    out: Path, dataset: CorruptedDataset, corruption: str, severities: Sequence[int], make: _Make
) -> None:
    """Make or complete the file of a corruption; a severity that a stopped run has finished is not made again."""
    labels = np.tile(dataset.labels(CLEAN), len(SEVERITIES))
    if not (out / LABELS_FILE).exists():
        with atomic_write(out / LABELS_FILE) as unfinished, unfinished.open("wb") as file:
            np.save(file, labels.astype(np.uint8 if len(dataset.classes) <= 256 else np.int64))
    done = _marker(out).details["severities"].get(corruption, [])
    finished, partial = out / f"{corruption}.npy", out / f"{corruption}.npy.partial"
    if finished.exists():
        if set(severities) <= set(done):
            return
        finished.replace(partial)
    shape = (len(labels), *dataset.image_size, 3)
    if not _has_shape(partial, shape):
        require_room(out, math.prod(shape), f"all severities of {corruption}")
        done = []
        _record(out, corruption, done)
        # A file with holes: blocks take room when they are made.
        np.lib.format.open_memmap(partial, "w+", np.uint8, shape).flush()
    for severity in severities:
        if severity not in done:
            make(domain_name(corruption, severity), partial)
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            done = [*done, severity]
            _record(out, corruption, done)
    partial.replace(finished)


def _has_shape(partial: Path, shape: tuple[int, ...]) -> bool:
    try:
        return bool(np.load(partial, mmap_mode="r", allow_pickle=False).shape == shape)
    except (OSError, ValueError, EOFError):
        return False


def _write_rows(dataset: CorruptedDataset, domain: str, place: Path, rows: Rows) -> int:
    array: Images = np.load(place, mmap_mode="r+", allow_pickle=False)
    severity = split_domain(domain)[1] or 1
    array[(severity - 1) * (len(array) // len(SEVERITIES)) + rows] = dataset.images(domain, rows)
    return len(rows)


def _make_folders(
    out: Path, dataset: CorruptedDataset, corruption: str, severities: Sequence[int], make: _Make
) -> None:
    """Make the folders of a corruption; an image that a stopped run has written is not made again."""
    for severity in severities:
        finished, partial = out / corruption / str(severity), out / corruption / f".{severity}.partial"
        if not finished.is_dir():
            for name in class_folders(dataset):
                (partial / name).mkdir(parents=True, exist_ok=True)
            make(domain_name(corruption, severity), partial)
            partial.replace(finished)


def class_folders(dataset: DomainDataset) -> tuple[str, ...]:
    """Return the names of the folders of the classes: their own, if all of them can be names of folders."""
    plain = all(name and Path(name).name == name and not name.startswith(".") for name in dataset.classes)
    return dataset.classes if plain else tuple(f"{label:04d}" for label in range(len(dataset.classes)))


def _write_files(dataset: CorruptedDataset, domain: str, place: Path, rows: Rows) -> int:
    names, labels = class_folders(dataset), dataset.labels(CLEAN)
    files = {row: place / names[labels[row]] / f"{row:08d}.JPEG" for row in rows}
    missing = np.array([row for row, file in files.items() if not file.exists()], np.int64)
    for row, image in zip(missing, dataset.images(domain, missing), strict=True):
        partial = files[row].with_suffix(".partial")
        Image.fromarray(image).save(partial, "JPEG", quality=JPEG_QUALITY)
        partial.replace(files[row])
    return len(rows)


@contextmanager
def _mapping(write: _Write, workers: int) -> Iterator[Callable[..., Iterator[int]]]:
    """Give a ``map`` of ``write`` over its arguments, in this process or in several."""
    if workers == 1:
        yield partial(map, write)
        return

    # Forking a process that has threads (torch has) can hang the new one.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=(write,))

    def map_in_pool(*arguments: Iterable[Any]) -> Iterator[int]:
        with ignore_sigint():  # processes are started here
            return pool.map(_write_in_worker, *arguments)

    try:
        yield map_in_pool
    except BrokenProcessPool:
        raise WorkerError(
            "A process that makes images has ended early; perhaps memory is short. Run the command again to "
            "continue, with fewer workers."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_of_worker: list[_Write] = []


def _start_worker(write: _Write) -> None:
    import torch

    torch.set_num_threads(1)  # the processes are the threads
    _of_worker.append(write)  # sent once, since it holds the dataset


def _write_in_worker(domain: str, place: Path, rows: Rows) -> int:
    return _of_worker[0](domain, place, rows)
