"""A clean set under every corruption: made on the fly, or written to disk in the layout the published sets have.

On disk, small images become one .npy file per corruption with five blocks of rows, severity 1 first, and
``labels.npy`` (as CIFAR-10-C); large ones become corruption/severity/class/image.JPEG of quality 85 (as
ImageNet-C). Files get their names when they are complete, and the marker file says from the start that the folder
was generated, and how; so a run that is stopped, or killed, is continued by the same command.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

import findtta
from findtta._processes import ignore_sigint
from findtta.data.arrays import LABELS_FILE
from findtta.data.corruptions import CORRUPTIONS, TABLES, corrupt
from findtta.data.dataset import (
    CLEAN,
    EXTRA_CORRUPTIONS,
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
from findtta.errors import FindTTAError, InputError, OptionError
from findtta.options import require_int, require_known

Layout = Literal["arrays", "folders"]

JPEG_QUALITY = 85
_FOLDERS_FROM = 128  # pixels; smaller images would suffer from JPEG and are small enough for arrays
_ROWS_AT_ONCE = {"arrays": 250, "folders": 25}


class CorruptedDataset(DomainDataset):
    """A clean set as ``"clean"`` and under 19 corruptions at 5 severities, made on the fly.

    The corruption of an image depends on the seed and on its row only, not on the batch it is asked for in.

    Args:
        clean: The set to corrupt; it must have the domain ``"clean"``.
        seed: Seed of everything random in the corruptions.
        constants: Strengths of the corruptions, ``"cifar"`` or ``"imagenet"``; by default by image size.
    """

    def __init__(self, clean: DomainDataset, seed: int = 0, constants: str | None = None) -> None:
        if CLEAN not in clean.domains:
            raise OptionError(
                f"clean must be a dataset with the domain {CLEAN!r}, but {clean.name} has "
                f"{', '.join(clean.domains[:5])}."
            )
        if constants is not None:
            require_known("constants", constants, TABLES)
        self.clean, self.seed, self.constants = clean, seed, constants
        self.name = f"{clean.name}-c (generated)"
        kinds = (*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS)
        self.domains = (CLEAN, *(domain_name(kind, severity) for kind in kinds for severity in SEVERITIES))
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
        return corrupt(images, kind, severity, seed=self.seed, index=rows, constants=self.constants)


class WorkerError(FindTTAError, RuntimeError):
    """A process that made images has failed."""


@dataclass(frozen=True)
class _Block:
    """Rows of one domain, and the file or folder that their images go to."""

    corruption: str
    severity: int
    start: int
    stop: int
    place: Path


_Write = Callable[[CorruptedDataset, _Block], None]
#: Does blocks of work by a function, in this process or in several.
_Work = Callable[[_Write, Sequence[_Block]], None]


def generate(
    name: str,
    clean: DomainDataset,
    out: Path,
    *,
    corruptions: Sequence[str] = MAIN_CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    constants: str | None = None,
    layout: Layout | None = None,
    workers: int = 1,
    progress: bool = True,
) -> Path:
    """Corrupt a clean set and write the result to disk; what a former run has finished is kept.

    Args:
        name: The name of the result, such as ``"cifar10-c"``; tables will say that it is generated.
        clean: The set, with the domain ``"clean"``.
        out: The folder to write to; it must be new, or one that this function has made with the same settings.
        corruptions: The corruptions to make.
        severities: The severities to make.
        seed: Seed of everything random in the corruptions.
        constants: Strengths of the corruptions, ``"cifar"`` or ``"imagenet"``; by default by image size.
        layout: ``"arrays"`` as CIFAR-10-C, or ``"folders"`` as ImageNet-C; by default the one that suits the
            image size.
        workers: How many processes share the work. The result does not depend on it.
        progress: Whether to show a progress bar.

    Returns:
        ``out``.
    """
    for corruption in corruptions:
        require_known("corruptions", corruption, CORRUPTIONS)
    if not corruptions or not severities or not set(severities) <= set(SEVERITIES):
        raise OptionError(
            f"corruptions and severities must not be empty, and severities must be among {SEVERITIES}, "
            f"got {tuple(corruptions)} and {tuple(severities)}."
        )
    require_int("workers", workers)
    dataset = CorruptedDataset(clean, seed=seed, constants=constants)
    chosen = layout or ("folders" if min(clean.image_size) >= _FOLDERS_FROM else "arrays")
    # All that the content depends on: two runs with the same settings make the same files.
    settings = {
        "version": findtta.__version__,
        "seed": seed,
        "constants": constants,
        "clean": clean.name,
        "clean_identity": clean.identity,
        "images": len(clean.labels(CLEAN)),
        "layout": chosen,
    }
    _prepare(out, name, settings, class_folders(clean) if chosen == "folders" else clean.classes)
    ordered = sorted(set(severities))
    make = _make_array if chosen == "arrays" else _make_folders
    rows = len(clean.labels(CLEAN)) * len(corruptions) * len(ordered)
    with tqdm(total=rows, disable=not progress, unit="image") as bar, _workers(dataset, workers, bar) as work:
        for corruption in corruptions:
            bar.set_description(corruption)
            make(out, dataset, corruption, ordered, work, bar)
    return out


def _prepare(out: Path, name: str, settings: dict[str, Any], classes: Sequence[str]) -> None:
    """Make the folder and its marker, or check that the folder is one to continue in."""
    marker = read_marker(out)
    if marker is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(
                f"out must be a new folder, but {out} holds other files, perhaps published data. Name another one."
            )
        write_marker(out, Marker(name, "generated", {**settings, "classes": list(classes), "severities": {}}))
        return
    if not marker.generated:
        raise InputError(
            f"out must be a new folder, but {out} holds the published {marker.name}. Name another one."
        )
    for key, value in {"name": name, **settings}.items():
        before = marker.name if key == "name" else marker.details.get(key)
        if before != value:
            raise InputError(
                f"out {str(out)!r} was begun with {key} {before!r}, but now it is {value!r}. "
                "Name another folder, or delete this one."
            )


def _recorded(out: Path, corruption: str, key: str = "severities") -> list[int] | None:
    """Return the severities that the marker says are complete, or those of an ``"unfinished"`` file."""
    marker = read_marker(out)
    return marker.details.get(key, {}).get(corruption) if marker else None


def _record(out: Path, corruption: str, severities: Sequence[int], key: str = "severities") -> None:
    marker = read_marker(out)
    if marker is None:
        raise InputError(f"{out} has lost its marker file while the dataset was being made.")
    unfinished = {name: made for name, made in marker.details.get("unfinished", {}).items() if name != corruption}
    details = {**marker.details, "unfinished": unfinished}
    details[key] = {**details.get(key, {}), corruption: sorted(severities)}
    write_marker(out, Marker(marker.name, marker.source, details))


def _make_array(
    out: Path, dataset: CorruptedDataset, corruption: str, severities: Sequence[int], work: _Work, bar: Any
) -> None:
    """Make or complete the file of a corruption; a block that a stopped run has finished is not made again."""
    count = len(dataset.labels(CLEAN))
    finished, partial = out / f"{corruption}.npy", out / f"{corruption}.npy.partial"
    before = (_recorded(out, corruption) if finished.exists() else None) or []
    if not (out / LABELS_FILE).exists():
        _write_labels(out, dataset)
    if set(severities) <= set(before):
        bar.update(count * len(severities))
        return
    shape = (len(SEVERITIES) * count, *dataset.image_size, 3)
    done = _recorded(out, corruption, "unfinished") if _has_shape(partial, shape) else None
    if done is None:
        require_room(out, int(np.prod(shape)), f"all severities of {corruption}")
        if before:
            shutil.copyfile(finished, partial)
        else:
            # A file with holes: blocks take room when they are made.
            np.lib.format.open_memmap(partial, "w+", np.uint8, shape).flush()
        done = before
    for severity in severities:
        if severity in done:
            bar.update(count)
            continue
        work(_write_rows, _blocks(corruption, severity, count, partial, "arrays"))
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        done = [*done, severity]
        _record(out, corruption, done, "unfinished")
    partial.replace(finished)
    _record(out, corruption, done)


def _has_shape(partial: Path, shape: tuple[int, ...]) -> bool:
    try:
        return bool(np.load(partial, mmap_mode="r", allow_pickle=False).shape == shape)
    except (OSError, ValueError, EOFError):
        return False


def _write_labels(out: Path, dataset: CorruptedDataset) -> None:
    labels = np.tile(dataset.labels(CLEAN), len(SEVERITIES))
    partial = out / f"{LABELS_FILE}.partial"
    with partial.open("wb") as file:
        np.save(file, labels.astype(np.uint8 if len(dataset.classes) <= 256 else np.int64))
    partial.replace(out / LABELS_FILE)


def _write_rows(dataset: CorruptedDataset, block: _Block) -> None:
    array: Images = np.load(block.place, mmap_mode="r+", allow_pickle=False)
    first = (block.severity - 1) * (len(array) // len(SEVERITIES))
    rows = np.arange(block.start, block.stop)
    array[first + rows] = dataset.images(domain_name(block.corruption, block.severity), rows)


def _make_folders(
    out: Path, dataset: CorruptedDataset, corruption: str, severities: Sequence[int], work: _Work, bar: Any
) -> None:
    """Make the folders of a corruption; an image that a stopped run has written is not made again."""
    count = len(dataset.labels(CLEAN))
    for severity in severities:
        finished, partial = out / corruption / str(severity), out / corruption / f".{severity}.partial"
        if finished.is_dir():
            bar.update(count)
            continue
        for name in class_folders(dataset):
            (partial / name).mkdir(parents=True, exist_ok=True)
        work(_write_files, _blocks(corruption, severity, count, partial, "folders"))
        partial.replace(finished)
        _record(out, corruption, [*(_recorded(out, corruption) or []), severity])


def class_folders(dataset: DomainDataset) -> tuple[str, ...]:
    """Return the names of the folders of the classes: their own, if all of them can be names of folders."""
    plain = all(name and Path(name).name == name and not name.startswith(".") for name in dataset.classes)
    return dataset.classes if plain else tuple(f"{label:04d}" for label in range(len(dataset.classes)))


def _write_files(dataset: CorruptedDataset, block: _Block) -> None:
    names, labels = class_folders(dataset), dataset.labels(CLEAN)
    files = {row: block.place / names[labels[row]] / f"{row:08d}.JPEG" for row in range(block.start, block.stop)}
    missing = np.array([row for row, file in files.items() if not file.exists()], np.int64)
    images = dataset.images(domain_name(block.corruption, block.severity), missing) if len(missing) else ()
    for row, image in zip(missing, images, strict=True):
        partial = files[row].with_suffix(".partial")
        Image.fromarray(image).save(partial, "JPEG", quality=JPEG_QUALITY)
        partial.replace(files[row])


def _blocks(corruption: str, severity: int, count: int, place: Path, layout: Layout) -> list[_Block]:
    rows = _ROWS_AT_ONCE[layout]
    return [
        _Block(corruption, severity, start, min(start + rows, count), place) for start in range(0, count, rows)
    ]


@contextmanager
def _workers(dataset: CorruptedDataset, count: int, bar: Any) -> Iterator[_Work]:
    """Give a function that does blocks of work, in this process or in several."""
    if count == 1:

        def work_here(write: _Write, blocks: Sequence[_Block]) -> None:
            for block in blocks:
                write(dataset, block)
                bar.update(block.stop - block.start)

        yield work_here
        return

    # Forking a process that has threads (torch has) can hang the new one.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_start_worker, initargs=(dataset,))

    def work_in_pool(write: _Write, blocks: Sequence[_Block]) -> None:
        with ignore_sigint():  # processes are started here
            futures = [pool.submit(_write_in_worker, write, block) for block in blocks]
        for block, future in zip(blocks, futures, strict=True):
            try:
                future.result()
            except BrokenProcessPool:
                raise WorkerError(
                    "A process that makes images has ended early; perhaps memory is short. Run the command again "
                    "to continue, with fewer workers."
                ) from None
            except Exception as error:
                raise WorkerError(
                    f"A process that makes images has failed: {type(error).__name__}: {error}"
                ) from error
            bar.update(block.stop - block.start)

    try:
        yield work_in_pool
    finally:
        pool.shutdown(cancel_futures=True)


_of_worker: list[CorruptedDataset] = []


def _start_worker(dataset: CorruptedDataset) -> None:
    torch.set_num_threads(1)  # the processes are the threads
    _of_worker.append(dataset)


def _write_in_worker(write: _Write, block: _Block) -> None:
    write(_of_worker[0], block)
