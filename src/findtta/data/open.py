"""``load``: from a name or a path to a dataset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from findtta.data.corrupted import CorruptedDataset
from findtta.data.dataset import CLEAN, DomainDataset
from findtta.data.published import GENERATED_SUFFIX, PUBLISHED, data_root
from findtta.data.readers import READERS, read
from findtta.data.shapes import shapes
from findtta.errors import InputError, OptionError, UnknownNameError, close_matches

SHAPES = "shapes"
_SHAPES_OPTIONS = ("count", "split")


def load(
    source: str | Path,
    *,
    root: str | Path | None = None,
    seed: int | None = None,
    constants: str | None = None,
    **options: Any,
) -> DomainDataset:
    """Open a dataset of several domains.

    A clean set (shapes, CIFAR, a folder of images without domains) gets its drift made on the fly: every
    corruption at every severity.

    Args:
        source: ``"shapes"``, which needs no files; the name of a dataset that ``findtta data get`` fetched or
            ``findtta data make`` made, such as ``"cifar10-c"`` or ``"cifar10-c-generated"``; or the path of a
            file or folder. A ``Path`` is never taken for a name.
        root: Where fetched datasets are; by default the folder ``findtta data`` uses.
        seed: For clean sets: the seed of the corruptions (and of the shapes); 0 by default.
        constants: For clean sets: strengths of the corruptions, ``"cifar"`` or ``"imagenet"``; by default by
            image size.
        **options: Options of the layout, such as ``classes``, ``image_size``, ``split``, or ``count`` for shapes.

    Returns:
        The dataset.

    Example:
        >>> load("shapes", count=100).pick(["fog", "snow"]).domains
        ('fog@5', 'snow@5')
    """
    dataset = load_as_is(source, root=root, seed=seed, **options)
    if dataset.domains == (CLEAN,):
        return CorruptedDataset(dataset, seed=seed or 0, constants=constants)
    for name, value in (("seed", seed), ("constants", constants)):
        if value is not None:
            raise OptionError(
                f"{name} is for drift made on the fly, but {dataset.name} comes with its own domains."
            )
    return dataset


def load_as_is(
    source: str | Path, *, root: str | Path | None = None, seed: int | None = None, **options: Any
) -> DomainDataset:
    """Open a dataset like :func:`load`, but leave clean sets clean.

    Args:
        source: As for :func:`load`.
        root: As for :func:`load`.
        seed: The seed of the shapes; other sets have none.
        **options: As for :func:`load`.

    Returns:
        The dataset; a clean set has the single domain ``"clean"``.
    """
    if source == SHAPES:
        _check_shapes_options(options)
        return shapes(seed=seed or 0, **options)
    path = _find(source, data_root(root))
    return read(path, **options)


def _check_shapes_options(options: dict[str, Any]) -> None:
    for name in options:
        if name not in _SHAPES_OPTIONS:
            raise OptionError(
                f"{name} is not an option of shapes.{close_matches(name, _SHAPES_OPTIONS)} "
                f"Its options are seed, {', '.join(_SHAPES_OPTIONS)}."
            )


def _find(source: str | Path, root: Path) -> Path:
    if isinstance(source, str):
        if source in PUBLISHED:
            return _find_published(source, root)
        if source.endswith(GENERATED_SUFFIX) and (root / source).is_dir():
            return root / source
    path = Path(source).expanduser()
    if path.exists():
        return path
    if isinstance(source, str) and _looks_like_a_name(source):
        names = [SHAPES, *PUBLISHED, *_generated(root)]
        raise UnknownNameError(
            f"source must be a path or one of {', '.join(names)}, but {source!r} is neither."
            f"{close_matches(source, names)}"
        )
    layouts = "".join(f"\n  - {reader.LAYOUT}" for reader in READERS)
    raise InputError(f"source {str(source)!r} does not exist. It can be a name, or the path of a:{layouts}")


def _find_published(name: str, root: Path) -> Path:
    for folder in (root / name, root / PUBLISHED[name].alias):
        if folder.is_dir():
            return folder
    generated = name + GENERATED_SUFFIX
    instead = f" There is {generated!r}, made by this package." if (root / generated).is_dir() else ""
    raise InputError(
        f"source {name!r} is not in {root}. Fetch it with: findtta data get {name}{instead} "
        "(a copy elsewhere is opened by its path)"
    )


def _generated(root: Path) -> list[str]:
    return sorted(folder.name for folder in root.glob(f"*{GENERATED_SUFFIX}") if folder.is_dir())


def _looks_like_a_name(source: str) -> bool:
    separators = {os.sep, os.altsep or os.sep, "/"}
    return not any(separator in source for separator in separators) and not Path(source).suffix
