"""Files of object stores and other filesystems that fsspec knows, used like paths."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from findtta.errors import FindTTAError, InputError, first_line
from findtta.images import ImageError

_BLOCK_BYTES = 2**23  # that an open file reads at once; stores have up to 50 MB by default
# What filesystems call a tag that changes with the content of a file, or else the time of its last change.
_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified", "created")


@dataclass(frozen=True)
class Remote:
    """A file or folder on a filesystem of fsspec, with those methods of ``pathlib.Path`` that are used here."""

    filesystem: Any
    path: str

    def __str__(self) -> str:
        return str(self.filesystem.unstrip_protocol(self.path))

    def __truediv__(self, name: str) -> Remote:
        return Remote(self.filesystem, f"{self.path.rstrip('/')}/{name}")

    @property
    def parent(self) -> Remote:
        """The folder that holds it."""
        return Remote(self.filesystem, self.path.rpartition("/")[0])

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.path).name

    def is_dir(self) -> bool:
        """Tell whether it is a folder."""
        return self._type() == "directory"

    def is_file(self) -> bool:
        """Tell whether it is a file."""
        return self._type() == "file"

    def _type(self) -> str | None:
        # Methods of fsspec with the names of the two above say no where access is denied.
        with readable(self):
            try:
                kind = str(self.filesystem.info(self.path)["type"])
            except FileNotFoundError:
                return None
            # To HTTP a folder is a file, too: the page that lists it.
            return "directory" if kind == "file" and self.filesystem.isdir(self.path) else kind

    def open(self, mode: str = "r", **text: Any) -> IO[Any]:
        """Open the file for reading."""
        return self.filesystem.open(self.path, mode, block_size=_BLOCK_BYTES, **text)

    def status(self) -> tuple[int | None, str | None]:
        """Return its size and what changes with its content, as far as they are known; -1 if it does not exist."""
        with readable(self):
            try:
                return _status(self.filesystem.info(self.path))
            except FileNotFoundError:
                return -1, None

    def walk(self, prefix: str = "") -> Iterator[tuple[str, int | None, str | None]]:
        """Yield name and status of all files below a folder: its own by name, then those of its subfolders."""
        with readable(self):
            listing = self.filesystem.ls(self.path, detail=True)
            self.filesystem.invalidate_cache(self.path)  # or it would keep all names of all folders in memory
        # Not fsspec's own walk, which leaves out subfolders that cannot be listed.
        named = sorted(((PurePosixPath(info["name"]).name, info) for info in listing), key=lambda named: named[0])
        for name, info in named:
            if (
                info["type"] != "directory" and info["name"] != self.path
            ):  # a store may have an object of that name
                yield prefix + name, *_status(info)
        for name, info in named:
            if info["type"] == "directory" and not name.startswith("."):
                yield from Remote(self.filesystem, info["name"]).walk(f"{prefix}{name}/")

    def read_bytes(self, most: int) -> bytes:
        """Return the content, or one byte more than ``most`` of it.

        Raises:
            ImageError: If there is no such file.
            InputError: If the filesystem fails, which is not the fault of this file.
        """
        with readable(self, " Finished blocks are kept: run the same command again to continue."):
            try:
                try:
                    return bytes(self.filesystem.cat_file(self.path, start=0, end=most + 1))
                except Exception:  # stores refuse to give a range of an empty file
                    if self.filesystem.info(self.path)["size"] == 0:
                        return b""
                    raise
            except FileNotFoundError:
                raise ImageError("unreadable", "image: cannot be read (there is no such file).") from None


Place = Path | Remote


def locate(text: str | Path, root: Place | None = None) -> Place:
    """Return the place of a URL, or of a path relative to ``root``."""
    if "://" not in str(text):
        return root / str(text) if root else Path(text).absolute()
    with readable(text):
        filesystem, path = fsspec.core.url_to_fs(str(text))
        if root is None:
            filesystem.invalidate_cache()  # listings from earlier in this process may be old
    return Path(unquote(path)) if isinstance(filesystem, LocalFileSystem) else Remote(filesystem, path)


@contextlib.contextmanager
def readable(place: str | Place, hint: str = "", *, kind: str = "") -> Iterator[None]:
    """Name the file or folder in errors of the libraries that read it: one line, whatever they raise."""
    try:
        yield
    except FindTTAError:
        raise
    except Exception as error:  # each filesystem has errors of its own
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else first_line(error)
        raise InputError(f"input: {str(place)!r} cannot be read{kind} ({reason}).{hint}") from error


def _status(info: dict[str, Any]) -> tuple[int | None, str | None]:
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), None)
    return info.get("size"), version
