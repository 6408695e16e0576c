"""Datasets whose images are files: domain/class/image, class/image, and the layout of ImageNet-C."""

import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from findtta.data.corruptions import are_known
from findtta.data.dataset import (
    ALL_CORRUPTIONS,
    CLEAN,
    SEVERITIES,
    DomainDataset,
    Images,
    Labels,
    Rows,
    domain_name,
)
from findtta.data.metadata import Classes, class_list, marked, reading
from findtta.errors import InputError, few
from findtta.images import SUFFIXES, ImageLimits, Preprocessing, image_size, read_image
from findtta.options import require_choice

#: Names of files as bytes: ImageNet-C has millions, and as objects they would fill the memory.
Names = NDArray[np.bytes_]

#: Files of the user's own may be large; more pixels than this Pillow refuses to decode.
LIMITS = ImageLimits(max_bytes=2**31, max_pixels=178_956_970)
#: Folders of these names are parts of one clean set, not domains.
SPLITS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}
#: The archives of ImageNet-C; their folders may stand between the root and the corruptions.
GROUPS = ("noise", "blur", "weather", "digital", "extra")


class EncodedDataset(DomainDataset):
    """Images that are stored as files or as their bytes, decoded when asked for and brought to one size."""

    encoded = True

    @abstractmethod
    def _source(self, domain: str, row: int) -> tuple[Path | bytes, str]:
        """Return the encoded image of a row, and what errors call it."""

    def _sources(self) -> Iterator[tuple[Path | bytes, str]]:
        """Go through all encoded images and what errors call them."""
        for domain in self.domains:
            yield from (self._source(domain, row) for row in range(len(self.labels(domain))))

    def _choose_size(self, preprocessing: Preprocessing | None) -> None:
        """Decide on the size of images: that of the preprocessing, or of the first image if there is none."""
        self.preprocessing = preprocessing
        if preprocessing is not None:
            self.image_size = preprocessing.size
        else:
            source, name = next(self._sources())
            self.image_size = image_size(source, LIMITS, name=name)

    def images(self, domain: str, rows: Rows) -> Images:
        self.check_domain(domain)
        images = np.empty((len(rows), *self.image_size, 3), np.uint8)
        for position, row in enumerate(rows):
            source, name = self._source(domain, int(row))
            image = read_image(source, LIMITS, self.preprocessing, name=name)
            if image.shape[:2] != self.image_size:
                raise InputError(
                    f"{name} must be {self.image_size[0]}x{self.image_size[1]} as the first image is, "
                    f"got {image.shape[0]}x{image.shape[1]}. Give the option image_size (--image-size, "
                    "or --data-option image_size=N) to resize and crop all images to one size (the layout of "
                    "ImageNet-C does not have it)."
                )
            images[position] = image
        return images


class ImageFiles(EncodedDataset):
    """Domains that are folders with one folder of images per class, named as the classes.

    Files are listed when a domain is first asked for, and read when their images are. They are brought to size by
    the preprocessing; without one they must be of one size.
    """

    def __init__(
        self,
        name: str,
        folders: Mapping[str, Path],
        classes: tuple[str, ...],
        *,
        preprocessing: Preprocessing | None = None,
        generated: bool = False,
    ) -> None:
        self.name, self.domains, self.classes = name, tuple(folders), classes
        self.generated = generated
        self._folders = dict(folders)
        self._listed: dict[str, tuple[Names, Labels]] = {}
        if next(self._sources(), None) is None:
            raise InputError(f"{self.name} must hold images ({', '.join(sorted(SUFFIXES))}), got none.")
        self._choose_size(preprocessing)

    def labels(self, domain: str) -> Labels:
        return self._list(domain)[1]

    def _source(self, domain: str, row: int) -> tuple[Path | bytes, str]:
        names, labels = self._list(domain)
        file = self._folders[domain] / self.classes[labels[row]] / os.fsdecode(names[row])
        return file, str(file)

    def _list(self, domain: str) -> tuple[Names, Labels]:
        self.check_domain(domain)
        if domain not in self._listed:
            label_of = {name: label for label, name in enumerate(self.classes)}
            names: list[bytes] = []
            labels: list[int] = []
            left_out = [entry for entry in _entries(self._folders[domain]) if _is_image(entry)]
            for folder in folders_in(self._folders[domain]):
                if folder.name not in label_of:
                    raise InputError(
                        f"{folder} must be the folder of a class, but {folder.name!r} is not among the "
                        f"{len(self.classes)} classes. Give all of them with the option classes."
                    )
                entries = _entries(folder)
                found = sorted(filter(_is_image, entries))
                names += [os.fsencode(file.name) for file in found]
                labels += [label_of[folder.name]] * len(found)
                left_out += [entry for entry in entries if not _is_image(entry)]
            if shown := few([str(entry) for entry in sorted(left_out) if not entry.name.startswith(".")]):
                warnings.warn(
                    f"left out of the data, which has files ending in {', '.join(sorted(SUFFIXES))} in folders of "
                    f"classes only: {shown}",
                    stacklevel=2,
                )
            self._listed[domain] = np.array(names, np.bytes_), np.array(labels, np.int64)
        return self._listed[domain]


def is_imagenet_c(path: Path) -> bool:
    """Tell whether a folder holds corruptions with severities in them."""
    return path.is_dir() and bool(_severity_folders(path))


def read_imagenet_c(path: Path, *, classes: Classes | None = None) -> DomainDataset:
    """Open a folder in the layout of ImageNet-C: corruption/severity/class/image, used as they are."""
    marker, folders = marked(path), _severity_folders(path)
    names = class_list(classes) or marker.classes or _class_folders(folders)
    return ImageFiles(marker.title, folders, names, generated=marker.generated)


def is_folder(path: Path) -> bool:
    """Tell whether a folder holds folders that hold images, or folders of such folders."""
    return path.is_dir() and (_holds_images(path) or any(_holds_images(folder) for folder in folders_in(path)))


def read_folder(
    path: Path,
    *,
    split: str = "test",
    classes: Classes | None = None,
    image_size: int | tuple[int, int] | None = None,
    resize: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> DomainDataset:
    """Open a folder of images: domain/class/image, split/class/image or class/image (domain ``"clean"``)."""
    folders = _domain_folders(path, split)
    names = class_list(classes) or _class_folders(folders)
    asked = Preprocessing.from_options(image_size, resize) or preprocessing
    return ImageFiles(path.resolve().name, folders, names, preprocessing=asked)


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder by name, without hidden ones."""
    return sorted(entry for entry in _entries(folder) if not entry.name.startswith(".") and entry.is_dir())


def images_in(folder: Path) -> list[Path]:
    """Return the image files in a folder by name, without hidden ones."""
    return sorted(filter(_is_image, _entries(folder)))


def _is_image(entry: Path) -> bool:
    return entry.suffix.lower() in SUFFIXES and not entry.name.startswith(".")


def _entries(folder: Path) -> list[Path]:
    with reading(folder, "a readable folder"):
        return list(folder.iterdir())


def _severity_folders(path: Path) -> dict[str, Path]:
    domains: dict[str, Path] = {}
    names = [folder.name for folder in folders_in(path)]
    more = [name for name in names if name not in ALL_CORRUPTIONS and are_known(name)]
    for corruption in (*ALL_CORRUPTIONS, *more):
        for parent in (path, *(path / group for group in GROUPS)):
            for severity in SEVERITIES:
                folder = parent / corruption / str(severity)
                if folder.is_dir() and not images_in(folder):  # with images it is a class called 1 to 5
                    domains.setdefault(domain_name(corruption, severity), folder)
    return domains


def _domain_folders(path: Path, split: str) -> dict[str, Path]:
    require_choice("split", split, *SPLITS)
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
    """Tell whether a folder holds folders that hold images."""
    return any(images_in(child) for child in folders_in(folder))


def _class_folders(domains: Mapping[str, Path]) -> tuple[str, ...]:
    return tuple(sorted({folder.name for domain in domains.values() for folder in folders_in(domain)}))
