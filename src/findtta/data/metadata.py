"""What readers of datasets share: labels, names of classes, the marker file of a folder, errors about files."""

import json
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from findtta._io import write_file
from findtta.data.dataset import Labels, describe
from findtta.errors import InputError, OptionError

#: What the option ``classes`` of a dataset accepts: the names, or a file that lists them.
Classes = Sequence[str] | str | Path

MARKER_FILE = "findtta.json"
#: What reading a missing or damaged file, archive or array may raise.
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)
_UNREADABLE = (OSError, ValueError, SyntaxError, RuntimeError, MemoryError, *_DAMAGED)
_WORDNET_ID = re.compile(r"n\d{8}")


def class_list(classes: Classes | None, *, distinct: bool = True) -> tuple[str, ...] | None:
    """Return the names that the option ``classes`` gives, in the order of the labels; None if it was not given.

    It is the names themselves; or a text file with one per line (of lines that begin with a WordNet id, the id);
    or a JSON file with a list of names, a list of (folder, name) pairs, or a table from label to such a pair.
    Unless they need not be ``distinct``, a name that appears twice is refused.
    """
    if classes is None:
        return None
    if not isinstance(classes, str | Path | Sequence):
        raise OptionError(f"classes must be names, or a file with names, got {classes!r}.")
    names = _from_file(Path(classes)) if isinstance(classes, str | Path) else [str(name) for name in classes]
    repeated = sorted(name for name, count in Counter(names).items() if distinct and count > 1)
    if repeated or not names:
        what = f"{repeated[0]!r} appears more than once" if repeated else "the list is empty"
        raise OptionError(f"classes must name every class once, but {what}.")
    return tuple(names)


def _from_file(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".json":
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return [found[0] if (found := _WORDNET_ID.match(line)) else line for line in lines]
        content = json.loads(text)
        if isinstance(content, dict):
            content = [content[str(label)] for label in range(len(content))]
        return [entry if isinstance(entry, str) else str(entry[0]) for entry in content]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OptionError(
            f"classes must be a list of names, a text file with one name per line or a JSON list, "
            f"but {str(path)!r} cannot be read as one: {error!r}."
        ) from error


def checked_labels(labels: Any, classes: Sequence[str] | None, where: str) -> tuple[Labels, tuple[str, ...]]:
    """Return labels as int64 of shape (n,) and the names of their classes: numbers, if those are not known.

    Errors call the place that the labels come from ``where``.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{where} must be a list of whole numbers, got {describe(array)}.")
    least, most = int(array.min(initial=0)), int(array.max(initial=0))
    names = tuple(classes or (str(label) for label in range(most + 1)))
    if len(array) and (least < 0 or most >= len(names)):
        raise InputError(
            f"{where} must lie between 0 and {len(names) - 1}, one per class, but go from {least} to {most}. "
            "If the list of classes is incomplete, give all of them with the option classes."
        )
    return array.astype(np.int64), names


@contextmanager
def reading(where: object, what: str) -> Iterator[None]:
    """Turn what a missing or damaged file raises into an error that says what it must be."""
    try:
        yield
    except InputError:
        raise
    except _UNREADABLE as error:
        raise InputError(f"{where} must be {what}, but it cannot be read: {error}.") from error


@dataclass(frozen=True)
class Marker:
    """What the marker file of a dataset folder says."""

    name: str  # the name of the dataset, such as ``"cifar10-c"``
    source: Literal["published", "generated"]  # a verified download, or made by this package
    # Everything else: hashes of what was downloaded, or the settings of what was made.
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def generated(self) -> bool:
        """Whether the data were made by this package."""
        return self.source == "generated"

    @property
    def title(self) -> str:
        """The name for tables, which tells generated data from published ones."""
        return f"{self.name} (generated)" if self.generated else self.name

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes in the order of the labels, if the marker has them."""
        names = self.details.get("classes")
        return tuple(str(name) for name in names) if isinstance(names, list) else None


def read_marker(folder: Path) -> Marker | None:
    """Return the marker of a folder, or None if it has none."""
    path = folder / MARKER_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        name, source = content.pop("name"), content.pop("source")
        if source not in ("published", "generated") or not isinstance(name, str):
            raise ValueError(f"it says source {source!r} and name {name!r}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path} must be a marker with a name and the source 'published' or 'generated', but cannot be read "
            f"as one ({error}). Get or make the dataset again, or delete the file if you know where the data "
            "come from."
        ) from error
    return Marker(name, source, content)


def marked(folder: Path) -> Marker:
    """Return the marker of a folder; one without a marker counts as published under the name of the folder."""
    return read_marker(folder) or Marker(folder.resolve().name, "published")


def write_marker(folder: Path, marker: Marker) -> None:
    """Write the marker of a folder atomically."""
    content = {"name": marker.name, "source": marker.source, **marker.details}
    write_file(folder / MARKER_FILE, f"{json.dumps(content, indent=1)}\n".encode())
