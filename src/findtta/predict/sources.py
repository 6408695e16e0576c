"""Where images come from: a folder, a list of paths, or Parquet files."""

import contextlib
import hashlib
import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from findtta._extras import require
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError, close_matches, first_line
from findtta.images import SUFFIXES

PARQUET = frozenset({".parquet", ".pq"})
LISTS = frozenset({".txt", ".lst"})

_CELLS_AT_ONCE = 64  # of a Parquet column

#: The name of an image in the predictions, and its bytes, which may be none, or the file that holds them.
Entry = tuple[str, bytes | Path]
#: What identifies a file of the input, its name first, and the number of its images.
File = tuple[tuple[Any, ...], int]
#: The name of a file, and its images from the first up to, but without, the second number.
Span = tuple[str, int, int]


@dataclass(frozen=True)
class Part:
    """A range of an input, small enough to be sent to a worker: where it starts, and its images."""

    start: int
    entries: Callable[[], Iterator[Entry]]


class Source:
    """The files of an input in order, and how their images are read; close it when done.

    Millions of names take little memory: SQLite keeps them in a temporary file. By ``digest``, of what identifies
    the files, a changed input is noticed.
    """

    def __init__(
        self, kind: str, files: Iterable[File], read: Callable[[Sequence[Span]], Iterator[Entry]]
    ) -> None:
        self.kind, self._read, self._count = kind, read, 0
        self._files = sqlite3.connect("")
        self._files.execute("CREATE TABLE files (start INTEGER PRIMARY KEY, name BLOB, images INTEGER)")
        digest = hashlib.sha256()
        try:
            for facts, images in files:
                digest.update(json.dumps(facts).encode())
                if images:
                    row = (self._count, os.fsencode(facts[0]), images)
                    self._files.execute("INSERT INTO files VALUES (?, ?, ?)", row)
                self._count += images
        except BaseException:
            self.close()
            raise
        self.digest = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return self._count

    def part(self, start: int, stop: int) -> Part:
        """Return the images from position ``start`` up to, but without, ``stop``."""
        query = (
            "SELECT name, start, images FROM files WHERE start < ? AND start >= "
            "(SELECT MAX(start) FROM files WHERE start <= ?) ORDER BY start"
        )
        spans = [
            (os.fsdecode(name), max(start - begin, 0), min(stop - begin, images))
            for name, begin, images in self._files.execute(query, (stop, start))
        ]
        return Part(start, partial(self._read, [span for span in spans if span[1] < span[2]]))

    def close(self) -> None:
        """Delete the listing."""
        self._files.close()


def open_source(path: str | Path, image_column: str = "image") -> Source:
    """List the images of an input, in an order that depends on their names only; close it when done.

    Args:
        path: A folder of images or of Parquet files, with its subfolders; a Parquet file; a text file with one
            path per line, relative to its own folder; or a URI of Parquet files, such as ``s3://bucket/folder``.
        image_column: The column of Parquet files that holds the images: bytes, paths, or both as
            ``{bytes, path}``.
    """
    if "://" in str(path):
        return _open_parquet(str(path), (), image_column)
    path = Path(path).absolute()
    if path.is_dir():
        names = _walk(path)
        first = next(names, None)
        if first and _is_parquet(first):
            return _open_parquet(str(path), [first, *names], image_column)
        source = open_files("folder", path, itertools.chain([first] if first else [], names))
    elif not path.is_file():
        raise InputError(f"input: {str(path)!r} does not exist; give a folder, a Parquet file or a list of paths.")
    elif _is_parquet(path.name):
        return _open_parquet(str(path), (), image_column)
    elif path.suffix.lower() in LISTS:
        source = open_files("list", path.parent, _listed(path))
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


def open_files(kind: str, root: Path, names: Iterable[str]) -> Source:
    """Return the source of images that are files, with names relative to a folder."""
    return Source(kind, (((name, _file_size(root / name)), 1) for name in names), partial(_file_entries, root))


def _file_entries(root: Path, spans: Sequence[Span]) -> Iterator[Entry]:
    return ((name, root / name) for name, _, _ in spans)


def _is_parquet(name: str) -> bool:
    return Path(name).suffix.lower() in PARQUET


def _walk(root: Path) -> Iterator[str]:
    """Yield the images or Parquet files below a folder, its files by name, then its subfolders; refuse a mixture.

    Hidden files are left out. Links are followed; a folder that several of them lead to is listed once, under the
    first of its names, so that a link to a parent folder ends there.
    """

    def refuse(error: OSError) -> None:
        # Continuing without the folder would silently leave images out.
        raise InputError(
            f"input: the folder {error.filename!r} cannot be listed ({error.strerror}); make it readable, or move "
            "it elsewhere."
        ) from error

    first = None
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, followlinks=True, onerror=refuse):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(folder, name) for name in sorted(files) if not name.startswith(".")):
            if path.suffix.lower() not in SUFFIXES | PARQUET:
                continue
            name = path.relative_to(root).as_posix()
            first = first or name
            if _is_parquet(name) != _is_parquet(first):
                raise InputError(
                    f"input: {str(root)!r} holds both Parquet files and images ({first!r}, {name!r}); give a "
                    "folder of one kind."
                )
            yield name


def _listed(path: Path) -> Iterator[str]:
    """Yield the names in a list."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                if name := line.rstrip("\r\n"):
                    yield name
    except OSError as error:
        raise InputError(f"input: the list {str(path)!r} cannot be read ({error.strerror}).") from error


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):  # a link to nowhere; a name with a null byte in it is a ValueError
        return -1


def _open_parquet(place: str, names: Sequence[str], column: str) -> Source:
    """Return the source of images in a column of Parquet files.

    The place is a file or a folder, as an absolute path or as a URI that pyarrow knows. Of a folder ``names`` are
    taken, or if there are none, all files that are not hidden.
    """
    filesystems = require("pyarrow.fs", "ray", "reading Parquet files")
    datasets = require("pyarrow.dataset", "ray", "reading Parquet files")
    files = []
    with _readable(place):
        filesystem, root = filesystems.FileSystem.from_uri(place)
        chosen = [f"{root}/{name}" for name in names] or root
        dataset = datasets.dataset(chosen, filesystem=filesystem, format="parquet")
        fragments = sorted(dataset.get_fragments(), key=lambda fragment: fragment.path)
        folder = Path(root).parent if [fragment.path for fragment in fragments] == [root] else Path(root)
        for fragment in fragments:
            name = Path(fragment.path).relative_to(folder).as_posix()
            _require_images(fragment.physical_schema, name, column)
            size, rows = filesystem.get_file_info(fragment.path).size, fragment.count_rows()
            files.append(((name, size, column, rows), rows))
    source = Source("Parquet", files, partial(_parquet_entries, filesystem, folder, column))
    if not len(source):
        source.close()
        raise InputError(f"input: the Parquet files in {place!r} have no rows.")
    return source


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


def _parquet_entries(filesystem: Any, folder: Path, column: str, spans: Sequence[Span]) -> Iterator[Entry]:
    for name, first, stop in spans:
        file = folder / name
        for position, cell in enumerate(_cells(filesystem, file.as_posix(), column, first, stop), first):
            # Bytes, a path relative to the folder of the file, or both in a struct.
            path, data = (cell.get("path"), cell.get("bytes")) if isinstance(cell, dict) else (None, cell)
            if isinstance(data, str):
                path, data = data, None
            yield path or f"{name}#{position}", file.parent / path if data is None and path else data or b""


def _cells(filesystem: Any, path: str, column: str, first: int, stop: int) -> Iterator[Any]:
    """Read consecutive cells of a column; only a few at once are in memory."""
    parquet = require("pyarrow.parquet", "ray", "reading Parquet files")
    # A scanner of pyarrow.dataset, and a file without these two options, keep whole row groups in memory.
    streamed = {"pre_buffer": False, "buffer_size": 2**20}
    with _readable(path), parquet.ParquetFile(path, filesystem=filesystem, **streamed) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        begins = list(itertools.accumulate(sizes, initial=0))
        spans = enumerate(itertools.pairwise(begins))
        groups = [group for group, (begin, end) in spans if begin < stop and first < end]
        skipped = begins[min(groups, default=0)]
        batches = file.iter_batches(_CELLS_AT_ONCE, row_groups=groups, columns=[column])
        cells = itertools.chain.from_iterable(batch.column(0) for batch in batches)
        for cell in itertools.islice(cells, first - skipped, stop - skipped):
            yield cell.as_py()


@contextlib.contextmanager
def _readable(place: str) -> Iterator[None]:
    """Name the Parquet files in errors of pyarrow."""
    try:
        yield
    except FindTTAError:
        raise
    except (OSError, ValueError) as error:  # what pyarrow raises on broken files is a ValueError
        raise InputError(f"input: {place!r} cannot be read as Parquet ({first_line(error)}).") from error
