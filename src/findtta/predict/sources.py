"""Where images come from: a folder, a list of paths, or Parquet files."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from findtta._extras import require
from findtta.errors import InputError, OptionError, UnknownNameError, close_matches
from findtta.images import SUFFIXES

PARQUET = frozenset({".parquet", ".pq"})
LISTS = frozenset({".txt", ".lst"})

_CELLS_AT_ONCE = 64  # of a Parquet column

#: The name of an image in the predictions, and its bytes or the file that holds them; None if there is neither.
Entry = tuple[str, bytes | Path | None]


@dataclass(frozen=True)
class Part:
    """A range of an input, small enough to be sent to a worker: where it starts, and its images."""

    start: int
    entries: Callable[[], Iterator[Entry]]


class FileSource:
    """Images that are files: name, relative to ``root``, and size of each, in order.

    Millions of names take little memory: SQLite keeps them in a temporary file. By ``digest``, of names and
    sizes, a changed input is noticed.
    """

    def __init__(self, kind: str, root: Path, files: Iterable[tuple[str, int]]) -> None:
        self.kind, self.root = kind, root
        self._names = sqlite3.connect("")
        self._names.execute("CREATE TABLE names (name BLOB)")
        digest = hashlib.sha256()

        def stored() -> Iterator[tuple[bytes]]:
            for name, size in files:
                digest.update(json.dumps([name, size]).encode())
                yield (os.fsencode(name),)

        try:
            self._names.executemany("INSERT INTO names VALUES (?)", stored())
        except BaseException:
            self.close()
            raise
        self.digest = digest.hexdigest()[:16]
        self._count: int = self._names.execute("SELECT COUNT(*) FROM names").fetchone()[0]

    def __len__(self) -> int:
        return self._count

    def part(self, start: int, stop: int) -> Part:
        """Return the images from position ``start`` up to, but without, ``stop``."""
        query = "SELECT name FROM names WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
        names = [os.fsdecode(name) for (name,) in self._names.execute(query, (start, stop))]
        return Part(start, partial(_file_entries, self.root, names))

    def close(self) -> None:
        """Delete the listing."""
        self._names.close()


def _file_entries(root: Path, names: Sequence[str]) -> Iterator[Entry]:
    return ((name, root / name) for name in names)


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a Parquet file."""

    fragment: Any  # the file, as pyarrow.dataset describes it
    name: str
    first: int
    count: int


class ParquetSource:
    """Images in a column of Parquet files; by ``digest``, of names, sizes and rows, a changed input is noticed.

    The place is a file or a folder, as an absolute path or as a URI that pyarrow knows. Of a folder ``names`` are
    taken, or if there are none, all files that are not hidden.
    """

    kind = "Parquet"

    def __init__(self, place: str, names: Sequence[str], column: str) -> None:
        self.column = column
        self._files: list[Rows] = []
        digest = hashlib.sha256()
        for rows, size, schema in _parquet_files(place, names):
            _require_images(schema, rows.name, column)
            digest.update(json.dumps([rows.name, size, column, rows.count]).encode())
            self._files.append(rows)
        self.digest = digest.hexdigest()[:16]
        if len(self) == 0:
            raise InputError(f"input: the Parquet files in {place!r} have no rows.")

    def __len__(self) -> int:
        return sum(rows.count for rows in self._files)

    def part(self, start: int, stop: int) -> Part:
        """Return the images from position ``start`` up to, but without, ``stop``."""
        chosen, begin = [], 0
        for rows in self._files:
            first, last = max(start - begin, 0), min(stop - begin, rows.count)
            if first < last:
                chosen.append(replace(rows, first=first, count=last - first))
            begin += rows.count
        return Part(start, partial(_parquet_entries, chosen, self.column))

    def close(self) -> None:
        """Do nothing, since nothing is kept open."""


Source = FileSource | ParquetSource


def open_source(path: str | Path, image_column: str = "image") -> Source:
    """List the images of an input, in an order that depends on their names only; close it when done.

    Args:
        path: A folder of images or of Parquet files, with its subfolders; a Parquet file; a text file with one
            path per line, relative to its own folder; or a URI of Parquet files, such as ``s3://bucket/folder``.
        image_column: The column of Parquet files that holds the images: bytes, paths, or both as
            ``{bytes, path}``.
    """
    if "://" in str(path):
        return ParquetSource(str(path), (), image_column)
    path = Path(path).absolute()
    if path.is_dir():
        tables: list[str] = []
        source = FileSource("folder", path, _images(path, tables))
        if tables:
            source.close()
            return ParquetSource(str(path), tables, image_column)
    elif not path.is_file():
        raise InputError(f"input: {str(path)!r} does not exist; give a folder, a Parquet file or a list of paths.")
    elif path.suffix.lower() in PARQUET:
        return ParquetSource(str(path), (), image_column)
    elif path.suffix.lower() in LISTS:
        source = FileSource("list", path.parent, _listed(path))
    else:
        raise OptionError(
            f"input must be a folder, a Parquet file ({', '.join(sorted(PARQUET))}) or a list of paths "
            f"({', '.join(sorted(LISTS))}), got the file {path.name!r}."
        )
    if not len(source):
        source.close()
        raise InputError(
            f"input: {str(path)!r} holds no images ({', '.join(sorted(SUFFIXES))}) and no Parquet files."
        )
    return source


def _images(root: Path, tables: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the images below a folder, and add the names of Parquet files to ``tables``; refuse a mixture."""
    image = None
    for name, size in _walk(root):
        if Path(name).suffix.lower() in PARQUET:
            tables.append(name)
        else:
            image = name
            yield name, size
        if tables and image:
            raise InputError(
                f"input: {str(root)!r} holds both Parquet files ({tables[0]!r}) and images ({image!r}); give a "
                "folder of one kind."
            )


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """Yield name and size of images and Parquet files below a folder: its files by name, then its subfolders.

    Hidden files are left out. Links are followed; a folder that several of them lead to is listed once, under the
    first of its names, so that a link to a parent folder ends there.
    """

    def refuse(error: OSError) -> None:
        # Continuing without the folder would silently leave images out.
        raise InputError(
            f"input: the folder {error.filename!r} cannot be listed ({error.strerror}); make it readable, or move "
            "it elsewhere."
        ) from error

    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, followlinks=True, onerror=refuse):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(folder, name) for name in sorted(files) if not name.startswith(".")):
            if path.suffix.lower() in SUFFIXES | PARQUET:
                yield path.relative_to(root).as_posix(), _file_size(path)


def _listed(path: Path) -> Iterator[tuple[str, int]]:
    """Yield name and size of the files of a list."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                if name := line.rstrip("\r\n"):
                    yield name, _file_size(path.parent / name)
    except OSError as error:
        raise InputError(f"input: the list {str(path)!r} cannot be read ({error.strerror}).") from error


def _file_size(path: Path) -> int:
    """Return the size of a file, or -1 if it cannot be had, as for a link to nowhere."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):  # a name with a null byte in it is a ValueError
        return -1


def _parquet_files(place: str, names: Sequence[str]) -> list[tuple[Rows, int, Any]]:
    """Return all rows, the size in bytes and the schema of each Parquet file, sorted by name."""
    filesystems = require("pyarrow.fs", "ray", "reading Parquet files")
    datasets = require("pyarrow.dataset", "ray", "reading Parquet files")
    found = []
    try:
        filesystem, root = filesystems.FileSystem.from_uri(place)
        chosen = [f"{root}/{name}" for name in names] or root
        dataset = datasets.dataset(chosen, filesystem=filesystem, format="parquet")
        for fragment in sorted(dataset.get_fragments(), key=lambda fragment: fragment.path):
            name = fragment.path.removeprefix(f"{root}/") if fragment.path != root else Path(root).name
            rows = Rows(fragment, name, 0, fragment.count_rows())
            found.append((rows, filesystem.get_file_info(fragment.path).size, fragment.physical_schema))
    except (OSError, ValueError) as error:  # what pyarrow raises on broken files is a ValueError
        raise _unreadable(place, error) from error
    return found


def _require_images(schema: Any, name: str, column: str) -> None:
    """Raise unless a column of a Parquet file can hold images."""
    if column not in schema.names:
        raise UnknownNameError(
            f"image_column: {name!r} has no column {column!r}.{close_matches(column, schema.names)} "
            f"It has {', '.join(schema.names)}."
        )
    kind = schema.field(column).type
    fields = [kind.field(index).name for index in range(kind.num_fields)]  # of a struct
    if "bytes" not in fields and str(kind) not in ("binary", "large_binary", "string", "large_string"):
        raise InputError(
            f"image_column: column {column!r} of {name!r} must hold bytes, paths or structs of bytes and path, "
            f"but holds {kind}."
        )


def _parquet_entries(chosen: Sequence[Rows], column: str) -> Iterator[Entry]:
    for rows in chosen:
        folder = Path(rows.fragment.path).parent
        for position, cell in enumerate(_cells(rows, column), rows.first):
            # Bytes, a path relative to the folder of the file, or both in a struct.
            path, data = (cell.get("path"), cell.get("bytes")) if isinstance(cell, dict) else (None, cell)
            if isinstance(data, str):
                path, data = data, None
            yield path or f"{rows.name}#{position}", folder / path if data is None and path else data


def _cells(rows: Rows, column: str) -> Iterator[Any]:
    """Read consecutive cells of a column; only a few at once are in memory."""
    parquet = require("pyarrow.parquet", "ray", "reading Parquet files")
    # A scanner of pyarrow.dataset, and a file without these two options, keep whole row groups in memory.
    streamed = {"pre_buffer": False, "buffer_size": 2**20}
    last = rows.first + rows.count
    try:
        with parquet.ParquetFile(rows.fragment.path, filesystem=rows.fragment.filesystem, **streamed) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            begins = list(itertools.accumulate(sizes, initial=0))
            spans = enumerate(itertools.pairwise(begins))
            groups = [group for group, (begin, end) in spans if begin < last and rows.first < end]
            skip = rows.first - begins[min(groups, default=0)]
            batches = file.iter_batches(_CELLS_AT_ONCE, row_groups=groups, columns=[column])
            cells = itertools.chain.from_iterable(batch.column(0) for batch in batches)
            for cell in itertools.islice(cells, skip, skip + rows.count):
                yield cell.as_py()
    except (OSError, ValueError) as error:
        raise _unreadable(rows.fragment.path, error) from error


def _unreadable(place: str, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(f"input: {place!r} cannot be read as Parquet ({reason}).")
