"""The files below a folder, in an order that depends on nothing but their names."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from findtta.errors import InputError

_Found = tuple[str, bool, int]


def walk(root: Path, suffixes: Collection[str]) -> Iterator[tuple[str, int]]:
    """List the files below a folder, folder by folder in the order of names; hidden ones are left out.

    Links are followed, and each folder is listed once, under the first name it is met by: a link that leads
    back up ends there. Only the entries of the folders on the way down are in memory.

    Args:
        root: The folder.
        suffixes: Endings of the files to list, in lower case, with the dot.

    Yields:
        Name below the root, with slashes, and size in bytes; -1 if it has none, as links to nowhere.
    """
    seen: set[tuple[int, int]] = set()
    # A stack rather than recursion: folders may be nested deeper than Python calls may be.
    open_folders = [("", iter(_entries(root, suffixes, seen)))]
    while open_folders:
        prefix, entries = open_folders[-1]
        entry = next(entries, None)
        if entry is None:
            open_folders.pop()
            continue
        name, is_folder, size = entry
        if is_folder:
            below = _entries(root / prefix / name, suffixes, seen)
            open_folders.append((f"{prefix}{name}/", iter(below)))
        else:
            yield prefix + name, size


def _entries(folder: Path, suffixes: Collection[str], seen: set[tuple[int, int]]) -> list[_Found]:
    try:
        status = folder.stat()
        identity = status.st_dev, status.st_ino
        if identity in seen:
            return []
        seen.add(identity)
        with os.scandir(folder) as entries:
            found = [
                (entry.name, is_folder, -1 if is_folder else file_size(entry.path))
                for entry in entries
                if not entry.name.startswith(".")
                and ((is_folder := _is_folder(entry)) or Path(entry.name).suffix.lower() in suffixes)
            ]
    except OSError as error:
        # Going on without it would leave images out, and nobody would know.
        raise InputError(
            f"input: the folder {str(folder)!r} cannot be listed ({error.strerror}); make it readable, or move "
            "it elsewhere."
        ) from error
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def file_size(path: str | Path) -> int:
    """Return the size of a file, or -1 if there is none to be had."""
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):  # a name with a null byte in it is a ValueError
        return -1
