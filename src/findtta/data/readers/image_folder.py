"""Folders of images: domain/class/image, split/class/image or class/image."""

from __future__ import annotations

from pathlib import Path

from findtta.data.dataset import CLEAN, DomainDataset
from findtta.data.readers.classes import Classes, class_list
from findtta.data.readers.image_files import ImageFiles, folders_in, images_in
from findtta.data.readers.pixels import Fit
from findtta.errors import InputError, OptionError

LAYOUT = "folder domain/class/image, or for a clean set test/class/image, train/class/image or class/image"

#: Folders of these names are parts of one clean set, not domains.
SPLITS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}
_SIZE_ADVICE = " Give the option image_size to scale and cut all images to one size."


def matches(path: Path) -> bool:
    """Whether the folder holds folders that hold images, or folders of images."""
    return path.is_dir() and (_holds_images(path) or any(_holds_images(folder) for folder in folders_in(path)))


def read(
    path: Path,
    *,
    split: str = "test",
    classes: Classes | None = None,
    image_size: int | tuple[int, int] | None = None,
    resize: int | None = None,
) -> DomainDataset:
    """Open the folder.

    Args:
        path: The folder.
        split: ``"test"`` or ``"train"``, of a folder that has such folders.
        classes: Names of all class folders in the order of the labels, or a file that lists them; by default
            those of all domains, by name.
        image_size: Side, or (height, width), to bring all images to: the shorter side is scaled, bilinear, and
            the centre cut. By default images are used as they are, and must be of one size.
        resize: Length the shorter side is scaled to before the cut; by default just enough.

    Returns:
        A dataset with one domain per folder, or with the domain ``"clean"``.
    """
    folders = _domains(path, split)
    names = class_list(classes) or tuple(
        sorted({folder.name for domain in folders.values() for folder in folders_in(domain)})
    )
    fit = Fit.from_options(image_size, resize)
    return ImageFiles(path.resolve().name, folders, names, fit=fit, size_advice=_SIZE_ADVICE)


def _domains(path: Path, split: str) -> dict[str, Path]:
    if split not in SPLITS:
        raise OptionError(f"split must be 'test' or 'train', got {split!r}.")
    if _holds_images(path):
        return {CLEAN: path}
    domains = {folder.name: folder for folder in folders_in(path) if _holds_images(folder)}
    splits = {name for names in SPLITS.values() for name in names}
    if not splits.issuperset(domains):
        return domains
    for name in SPLITS[split]:
        if name in domains:
            return {CLEAN: domains[name]}
    raise InputError(
        f"{path} must hold a folder of the {split} images, but holds only {', '.join(sorted(domains))}."
    )


def _holds_images(folder: Path) -> bool:
    """Whether the folder holds folders that hold images."""
    return any(images_in(child) for child in folders_in(folder))
