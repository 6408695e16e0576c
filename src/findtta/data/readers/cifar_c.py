"""The layout CIFAR-10-C and CIFAR-100-C are published in: one .npy file per corruption.

A file holds five blocks of rows, severity 1 first, all in the order of ``labels.npy``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from findtta.data.dataset import SEVERITIES, DomainDataset, Labels, domain_name
from findtta.data.readers.arrays import ArrayDataset, ArraySource, NpyRows, benchmark_order, map_npy
from findtta.data.readers.classes import Classes, checked_labels, class_list, numbered
from findtta.data.readers.marker import Marker, read_marker
from findtta.errors import InputError

LAYOUT = "folder with <corruption>.npy files of five severity blocks and labels.npy (CIFAR-10-C, CIFAR-100-C)"
LABELS_FILE = "labels.npy"


def matches(path: Path) -> bool:
    """Whether the folder holds .npy files."""
    return path.is_dir() and any(path.glob("*.npy"))


def read(path: Path, *, classes: Classes | None = None) -> DomainDataset:
    """Open the folder.

    Args:
        path: The folder.
        classes: Names of the classes; by default those the marker file has, else numbers.

    Returns:
        A dataset with one domain per corruption and severity, memory-mapped.
    """
    marker = read_marker(path)
    files = sorted((file for file in path.glob("*.npy") if file.name != LABELS_FILE), key=_by_corruption)
    if not files:
        raise InputError(f"{path} must hold <corruption>.npy files beside {LABELS_FILE}, got none.")
    shapes = {file: map_npy(file).shape for file in files}
    first = shapes[files[0]]
    for file, shape in shapes.items():
        if shape != first or shape[0] % len(SEVERITIES):
            raise InputError(
                f"{file} must hold as many images as {files[0].name} in {len(SEVERITIES)} equal blocks, "
                f"but their shapes are {shape} and {first}."
            )
    count = first[0] // len(SEVERITIES)
    labels = _labels(path / LABELS_FILE, count)
    names = class_list(classes) or (marker and marker.classes) or numbered(labels)
    labels = checked_labels(labels, names, str(path / LABELS_FILE))
    sources: dict[str, ArraySource] = {}
    for file in files:
        for severity in _severities(marker, file.stem):
            sources[domain_name(file.stem, severity)] = NpyRows(file, (severity - 1) * count, severity * count)
    return ArrayDataset(
        marker.title if marker else path.resolve().name,
        sources,
        labels,
        names,
        (first[1], first[2]),
        generated=bool(marker and marker.generated),
    )


def _by_corruption(file: Path) -> tuple[int, int, str]:
    return benchmark_order(file.stem)


def _severities(marker: Marker | None, corruption: str) -> tuple[int, ...]:
    if marker is None or not marker.generated:
        return SEVERITIES
    # A generated set may have been made at some severities only; the other blocks of its files are empty.
    return tuple(marker.details.get("severities", {}).get(corruption, ()))


def _labels(path: Path, count: int) -> Labels:
    """Return the labels of one block; the file has them for one block or for all five."""
    try:
        labels = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path.parent} must hold {LABELS_FILE} beside the corruptions, got none.") from None
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise InputError(f"{path} must be a .npy file of labels, but it cannot be read: {error}.") from error
    blocks = len(SEVERITIES)
    if labels.shape not in ((count,), (blocks * count,)):
        raise InputError(
            f"{path} must hold {blocks * count} labels, or {count} for one block, got shape {labels.shape}."
        )
    if len(labels) > count and (labels.reshape(blocks, count) != labels[:count]).any():
        raise InputError(f"{path} must repeat the same labels for every severity, but its five blocks differ.")
    return checked_labels(labels[:count], None, str(path))
