"""The small file that says where the data of a folder come from: published, or made by this package."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from findtta._io import atomic_write
from findtta.errors import InputError

MARKER_FILE = "findtta.json"


@dataclass(frozen=True)
class Marker:
    """What the marker file of a dataset folder says.

    Attributes:
        name: The name of the dataset, such as ``"cifar10-c"``.
        source: ``"published"`` for verified downloads, ``"generated"`` for data made by this package.
        details: Everything else: hashes of what was downloaded, or the settings of what was made.
    """

    name: str
    source: Literal["published", "generated"]
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
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _broken(path, f"cannot be read ({error})") from error
    if source not in ("published", "generated") or not isinstance(name, str):
        raise _broken(path, f"says source {source!r} and name {name!r}")
    return Marker(name, source, content)


def write_marker(folder: Path, marker: Marker) -> None:
    """Write the marker of a folder; a reader sees the old one or the new one, never a part."""
    path = folder / MARKER_FILE
    content = {"name": marker.name, "source": marker.source, **marker.details}
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _broken(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} must be a marker with a name and the source 'published' or 'generated', but {what}. "
        "Get or make the dataset again, or delete the file if you know where the data come from."
    )
