"""Making a corrupted copy of a clean set on disk, in the layout the published ones have.

Small images become one .npy file per corruption with five blocks of rows, severity 1 first, and ``labels.npy``
(as CIFAR-10-C); large ones become corruption/severity/class/image.JPEG of quality 85 (as ImageNet-C). Files get
their names when they are complete, and the marker file says from the start that the folder was generated, and
how; so a run that is stopped, or killed, is continued by the same command.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from tqdm import tqdm

import findtta
from findtta._io import atomic_write
from findtta.data.arrays import LABELS_FILE
from findtta.data.corrupted import CorruptedDataset
from findtta.data.crew import Block, Work, crew
from findtta.data.dataset import (
    CLEAN,
    EXTRA_CORRUPTIONS,
    MAIN_CORRUPTIONS,
    SEVERITIES,
    DomainDataset,
    Images,
    domain_name,
)
from findtta.data.metadata import MARKER_FILE, Marker, read_marker, write_marker
from findtta.data.published import require_room
from findtta.errors import InputError, OptionError, UnknownNameError, close_matches

Layout = Literal["arrays", "folders"]


JPEG_QUALITY = 85


_FOLDERS_FROM = 128  # pixels; smaller images would suffer from JPEG and are small enough for arrays


_ROWS_AT_ONCE = 250


_CORRUPTIONS = (*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS)


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
    """Corrupt a clean set and keep the result; what a former run has finished is kept.

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
    _check(corruptions, severities, workers)
    dataset = CorruptedDataset(clean, seed=seed, constants=constants)
    chosen = layout or ("folders" if min(clean.image_size) >= _FOLDERS_FROM else "arrays")
    settings = _settings(clean, seed, constants, chosen)
    _prepare(out, name, settings, class_folders(clean) if chosen == "folders" else clean.classes)
    ordered = sorted(set(severities))
    make = _make_array if chosen == "arrays" else _make_folders
    rows = len(clean.labels(CLEAN)) * len(corruptions) * len(ordered)
    with tqdm(total=rows, disable=not progress, unit="image") as bar, crew(dataset, workers) as work:
        for corruption in corruptions:
            bar.set_description(corruption)
            make(out, dataset, corruption, ordered, work, bar)
    return out


def _check(corruptions: Sequence[str], severities: Sequence[int], workers: int) -> None:
    for corruption in corruptions:
        if corruption not in _CORRUPTIONS:
            raise UnknownNameError(
                f"corruptions must be among {', '.join(_CORRUPTIONS)}, but one is {corruption!r}."
                f"{close_matches(corruption, _CORRUPTIONS)}"
            )
    if not corruptions or not severities or not set(severities) <= set(SEVERITIES):
        raise OptionError(
            f"corruptions and severities must not be empty, and severities be among {SEVERITIES}, "
            f"but they are {tuple(corruptions)} and {tuple(severities)}."
        )
    if workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}.")


def _settings(clean: DomainDataset, seed: int, constants: str | None, layout: Layout) -> dict[str, Any]:
    """Return all that the content depends on; two runs with the same settings make the same files."""
    return {
        "version": findtta.__version__,
        "seed": seed,
        "constants": constants,
        "clean": clean.name,
        "clean_identity": clean.identity,
        "images": len(clean.labels(CLEAN)),
        "layout": layout,
    }


def _prepare(out: Path, name: str, settings: dict[str, Any], classes: Sequence[str]) -> None:
    """Make the folder and its marker, or check that the folder is one to continue in."""
    marker = read_marker(out)
    if marker is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(
                f"out must be a new folder, but {out} holds other files, perhaps published data. Name another one."
            )
        out.mkdir(parents=True, exist_ok=True)
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


def _finished(out: Path, corruption: str) -> list[int]:
    """Return the severities that the marker says are complete."""
    marker = read_marker(out)
    return list(marker.details["severities"].get(corruption, ())) if marker else []


def _record(out: Path, corruption: str, severities: Sequence[int]) -> None:
    marker = read_marker(out)
    if marker is None:
        raise InputError(f"{out / MARKER_FILE} has gone while the dataset was being made.")
    made = {**marker.details["severities"], corruption: sorted(severities)}
    write_marker(out, Marker(marker.name, marker.source, {**marker.details, "severities": made}))


def _make_array(
    out: Path, dataset: CorruptedDataset, corruption: str, severities: Sequence[int], work: Work, bar: Any
) -> None:
    """Make or complete the file of a corruption; a block that a stopped run has finished is not made again."""
    count = len(dataset.labels(CLEAN))
    finished = out / f"{corruption}.npy"
    partial, progress = out / f"{corruption}.npy.partial", out / f"{corruption}.progress.partial"
    before = _finished(out, corruption) if finished.exists() else []
    if not (out / LABELS_FILE).exists():
        _write_labels(out, dataset)
    if set(severities) <= set(before):
        bar.update(count * len(severities))
        return
    shape = (len(SEVERITIES) * count, *dataset.image_size, 3)
    done = _continue(partial, progress, shape)
    if done is None:
        require_room(out, int(np.prod(shape)), f"all severities of {corruption}")
        progress.unlink(missing_ok=True)
        if before:
            shutil.copyfile(finished, partial)
        else:
            # A file with holes: blocks take room when they are made.
            np.lib.format.open_memmap(partial, "w+", np.uint8, shape).flush()
        done = list(before)
    for severity in severities:
        if severity in done:
            bar.update(count)
            continue
        work(_write_rows, _blocks(corruption, severity, count, partial), bar)
        _flush(partial)
        done.append(severity)
        _replace_text(progress, json.dumps({"done": done}))
    partial.replace(finished)
    _record(out, corruption, done)
    progress.unlink(missing_ok=True)


def _continue(partial: Path, progress: Path, shape: tuple[int, ...]) -> list[int] | None:
    """Return the blocks that are complete in a partial file, or None if it must be begun anew."""
    try:
        if np.load(partial, mmap_mode="r", allow_pickle=False).shape != shape:
            return None
        return [int(severity) for severity in json.loads(progress.read_text())["done"]]
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None


def _write_rows(dataset: CorruptedDataset, block: Block) -> None:
    array: Images = np.load(block.place, mmap_mode="r+", allow_pickle=False)
    first = (block.severity - 1) * (len(array) // len(SEVERITIES))
    array[first + block.start : first + block.stop] = _images(dataset, block)


def _write_labels(out: Path, dataset: CorruptedDataset) -> None:
    labels = np.tile(dataset.labels(CLEAN), len(SEVERITIES))
    partial = out / f"{LABELS_FILE}.partial"
    with partial.open("wb") as file:
        np.save(file, labels.astype(np.uint8 if len(dataset.classes) <= 256 else np.int64))
    partial.replace(out / LABELS_FILE)


def _make_folders(
    out: Path, dataset: CorruptedDataset, corruption: str, severities: Sequence[int], work: Work, bar: Any
) -> None:
    """Make the folders of a corruption; an image that a stopped run has written is not made again."""
    count = len(dataset.labels(CLEAN))
    names = class_folders(dataset)
    for severity in severities:
        finished = out / corruption / str(severity)
        if finished.is_dir():
            bar.update(count)
            continue
        partial = out / corruption / f".{severity}.partial"
        for name in names:
            (partial / name).mkdir(parents=True, exist_ok=True)
        work(_write_files, _blocks(corruption, severity, count, partial, rows=_ROWS_AT_ONCE // 10), bar)
        partial.replace(finished)
        _record(out, corruption, [*_finished(out, corruption), severity])


def class_folders(dataset: DomainDataset) -> tuple[str, ...]:
    """Return the names of the folders of the classes: their own, if all of them can be names of folders."""
    plain = all(name and Path(name).name == name and not name.startswith(".") for name in dataset.classes)
    return dataset.classes if plain else tuple(f"{label:04d}" for label in range(len(dataset.classes)))


def _write_files(dataset: CorruptedDataset, block: Block) -> None:
    names, labels = class_folders(dataset), dataset.labels(CLEAN)
    rows = np.arange(block.start, block.stop)
    files = [block.place / names[labels[row]] / f"{row:08d}.JPEG" for row in rows]
    missing = [position for position, file in enumerate(files) if not file.exists()]
    if not missing:
        return
    images = dataset.images(domain_name(block.corruption, block.severity), rows[missing])
    for position, image in zip(missing, images, strict=True):
        partial = files[position].with_suffix(".partial")
        Image.fromarray(image).save(partial, "JPEG", quality=JPEG_QUALITY)
        partial.replace(files[position])


def _blocks(corruption: str, severity: int, count: int, place: Path, rows: int = _ROWS_AT_ONCE) -> list[Block]:
    return [Block(corruption, severity, start, min(start + rows, count), place) for start in range(0, count, rows)]


def _images(dataset: CorruptedDataset, block: Block) -> Images:
    return dataset.images(domain_name(block.corruption, block.severity), np.arange(block.start, block.stop))


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _replace_text(path: Path, text: str) -> None:
    with atomic_write(path) as partial:
        partial.write_text(text)
