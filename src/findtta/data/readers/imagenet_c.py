"""The layout ImageNet-C is published in: corruption/severity/class/image.

Images are used as they are (the published ones are 224x224). Classes are the names of the class folders, in
order; that is the order of ImageNet's labels when all 1000 are there. For a part of them, give the full list
with the option ``classes`` so that labels keep their meaning.
"""

from __future__ import annotations

from pathlib import Path

from findtta.data.dataset import EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, SEVERITIES, DomainDataset, domain_name
from findtta.data.readers.classes import Classes, class_list
from findtta.data.readers.image_files import ImageFiles, folders_in
from findtta.data.readers.marker import read_marker

LAYOUT = "folder corruption/severity/class/image.JPEG (ImageNet-C)"

_CORRUPTIONS = (*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS)
#: The archives of ImageNet-C; their folders may stand between the root and the corruptions.
GROUPS = ("noise", "blur", "weather", "digital", "extra")


def matches(path: Path) -> bool:
    """Whether the folder holds corruptions with severities in them."""
    return path.is_dir() and bool(_domains(path))


def read(path: Path, *, classes: Classes | None = None) -> DomainDataset:
    """Open the folder.

    Args:
        path: The folder.
        classes: Names of all class folders in the order of the labels, or a file that lists them; by default
            those that are there, by name.

    Returns:
        A dataset with one domain per corruption and severity.
    """
    marker = read_marker(path)
    folders = _domains(path)
    names = class_list(classes) or (marker and marker.classes) or _class_folders(folders)
    return ImageFiles(
        marker.title if marker else path.resolve().name,
        folders,
        names,
        size_advice=" Images of this layout are not resized.",
        generated=bool(marker and marker.generated),
    )


def _domains(path: Path) -> dict[str, Path]:
    domains: dict[str, Path] = {}
    for corruption in _CORRUPTIONS:
        for parent in (path, *(path / group for group in GROUPS)):
            for severity in SEVERITIES:
                folder = parent / corruption / str(severity)
                if folder.is_dir():
                    domains.setdefault(domain_name(corruption, severity), folder)
    return domains


def _class_folders(domains: dict[str, Path]) -> tuple[str, ...]:
    return tuple(sorted({folder.name for domain in domains.values() for folder in folders_in(domain)}))
