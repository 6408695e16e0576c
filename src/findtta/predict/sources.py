"""Where images come from: a folder, a list of paths, or Parquet files, on this machine or at a URL."""

import contextlib
import hashlib
import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from findtta._extras import require
from findtta._prefetch import in_order
from findtta.errors import InputError, OptionError, UnknownNameError, close_matches
from findtta.images import SUFFIXES
from findtta.predict.remote import Place, Remote, locate, readable

PARQUET = frozenset({".parquet", ".pq"})
LISTS = frozenset({".txt", ".lst"})

_CELLS_AT_ONCE = 64  # of a Parquet column

#: The name of an image in the predictions, and its bytes, which may be none, or the file that holds them.
Entry = tuple[str, bytes | Place]
#: What identifies a file of the input: its name, its size, and what changes with its content.
Facts = tuple[Any, ...]
#: The name of a file, and its images from the first up to, but without, the second number.
Span = tuple[str, int, int]


@dataclass(frozen=True)
class Part:
    """A range of an input, small enough to be sent to a worker: where it starts, and its images."""

    start: int
    entries: Callable[[], Iterator[Entry]]


class Source:
    """The files of an input in order, with their numbers of images, and how they are read; close it when done.

    Millions of names take little memory: SQLite keeps them in a temporary file. By ``digest``, of what identifies
    the files, a changed input is noticed.
    """

    def __init__(
        self, kind: str, files: Iterable[tuple[Facts, int]], read: Callable[[Sequence[Span]], Iterator[Entry]]
    ) -> None:
        self.kind, self._read, self._count = kind, read, 0
        self._files = sqlite3.connect("", check_same_thread=False)  # a thread reads ahead
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


def open_source(path: str | Path, image_column: str = "image", leave_out: Path | None = None) -> Source:
    """List the images of an input, in an order that depends on their names only; close it when done.

    Args:
        path: The path or URL (such as ``s3://bucket/folder``) of a folder of images or of Parquet files, with its
            subfolders; of a Parquet file; or of a text file with one path or URL per line, relative to its own
            folder.
        image_column: The column of Parquet files that holds the images: bytes, paths, or both as
            ``{bytes, path}``.
        leave_out: A folder whose files do not count, such as that of the predictions.
    """
    place = locate(path)
    with readable(place):
        is_folder = place.is_dir()
        is_file = not is_folder and place.is_file()
    if is_folder:
        files = _one_kind(place, _walk(place, leave_out))
        first = next(files, None)
        every = itertools.chain([first] if first else [], files)
        if first and _suffix(first[0]) in PARQUET:
            return _open_parquet(place, every, image_column)
        source = Source("folder", ((facts, 1) for facts in every), partial(_folder_entries, place))
    elif not is_file:
        raise InputError(
            f"input: {str(place)!r} does not exist; give a folder, a Parquet file or a list of paths."
        )
    elif _suffix(place.name) in PARQUET:
        return _open_parquet(place.parent, [(place.name, *_status(place))], image_column)
    elif _suffix(place.name) in LISTS:
        source = open_list(place.parent, _listed(place))
    else:
        raise OptionError(
            f"input must be a folder, a Parquet file ({', '.join(sorted(PARQUET))}) or a list of paths "
            f"({', '.join(sorted(LISTS))}), got the file {place.name!r}."
        )
    if not len(source):
        source.close()
        raise InputError(
            f"input: {str(place)!r} holds no images ({', '.join(sorted(SUFFIXES))}) and no Parquet files."
        )
    return source


def open_list(root: Place, names: Iterable[str]) -> Source:
    """Return the source of images with the given URLs, or paths relative to a folder."""
    facts = in_order(lambda name: (name, *_status(locate(name, root))), names)
    return Source("list", ((file, 1) for file in facts), partial(_file_entries, root))


def _file_entries(root: Place, spans: Sequence[Span]) -> Iterator[Entry]:
    return ((name, locate(name, root)) for name, _, _ in spans)


def _folder_entries(root: Place, spans: Sequence[Span]) -> Iterator[Entry]:
    for name, place in _file_entries(root, spans):
        # A drive that is gone must not make all its images unreadable for ever.
        if isinstance(place, Path) and not os.path.lexists(place):
            raise InputError(
                f"input: {name!r} was listed, but is gone. Finished blocks are kept: run the same command again "
                "when the folder is complete."
            )
        yield name, place


def _suffix(name: str) -> str:
    return PurePath(name).suffix.lower()


def _is_wanted(name: str) -> bool:
    """Tell whether a file is an image or a Parquet file, and not hidden."""
    return _suffix(name) in SUFFIXES | PARQUET and not PurePath(name).name.startswith(".")


def _status(place: Place) -> tuple[int | None, int | str | None]:
    """Return the size of a file and what changes with its content; the size is -1 if it cannot be seen."""
    if isinstance(place, Remote):
        return place.status()
    try:
        status = place.stat()
    except (OSError, ValueError):  # a link to nowhere; a name with a null byte in it is a ValueError
        return -1, None
    return status.st_size, status.st_mtime_ns


def _one_kind(root: Place, files: Iterable[Facts]) -> Iterator[Facts]:
    """Yield files that are all images or all Parquet files; refuse a mixture."""
    first = None
    for name, *status in files:
        first = first or name
        if (_suffix(name) in PARQUET) != (_suffix(first) in PARQUET):
            raise InputError(
                f"input: {str(root)!r} holds both Parquet files and images ({first!r}, {name!r}); give a "
                "folder of one kind."
            )
        yield name, *status


def _walk(root: Place, leave_out: Path | None = None) -> Iterator[Facts]:
    """Yield images and Parquet files below a folder, its own by name, then those of its subfolders.

    Hidden files and folders are left out. Links are followed; a folder that several of them lead to is listed
    once, under the first of its names, so that a link to a parent folder ends there.
    """
    if isinstance(root, Remote):
        yield from (facts for facts in root.walk() if _is_wanted(facts[0]))
        return

    def refuse(error: OSError) -> None:
        # Continuing without the folder would silently leave images out.
        raise InputError(
            f"input: the folder {error.filename!r} cannot be listed ({error.strerror}); make it readable, or move "
            "it elsewhere."
        ) from error

    out = leave_out and leave_out.resolve()
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, followlinks=True, onerror=refuse):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and Path(folder, name).resolve() != out
        )
        for path in (Path(folder, name) for name in sorted(files) if _is_wanted(name)):
            yield path.relative_to(root).as_posix(), *_status(path)


def _listed(place: Place) -> Iterator[str]:
    """Yield the names in a list."""
    with readable(place), place.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for line in lines:
            if name := line.rstrip("\r\n"):
                yield name


def _open_parquet(root: Place, files: Iterable[Facts], column: str) -> Source:
    """Return the source of images in a column of Parquet files, with names relative to a folder."""

    def count(facts: Facts) -> tuple[Facts, int]:
        with _opened(root / facts[0]) as file:
            _require_images(file.schema_arrow, facts[0], column)
            rows = int(file.metadata.num_rows)
        return (*facts, column, rows), rows

    source = Source("Parquet", in_order(count, files), partial(_parquet_entries, root, column))
    if not len(source):
        source.close()
        raise InputError(f"input: the Parquet files in {str(root)!r} have no rows.")
    return source


@contextlib.contextmanager
def _opened(place: Place) -> Iterator[Any]:
    """Open a Parquet file; only a few cells of it at once will be in memory."""
    parquet = require("pyarrow.parquet", "ray", "reading Parquet files")
    # A scanner of pyarrow.dataset, and a file without these two options, keep whole row groups in memory.
    streamed = {"pre_buffer": False, "buffer_size": 2**20}
    with (
        readable(place, kind=" as Parquet"),
        place.open("rb") as raw,
        parquet.ParquetFile(raw, **streamed) as file,
    ):
        yield file


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


def _parquet_entries(root: Place, column: str, spans: Sequence[Span]) -> Iterator[Entry]:
    for name, first, stop in spans:
        file = root / name
        for position, cell in enumerate(_cells(file, column, first, stop), first):
            # Bytes, a path relative to the folder of the file, or both in a struct.
            path, data = (cell.get("path"), cell.get("bytes")) if isinstance(cell, dict) else (None, cell)
            if isinstance(data, str):
                path, data = data, None
            yield path or f"{name}#{position}", locate(path, file.parent) if data is None and path else data or b""


def _cells(place: Place, column: str, first: int, stop: int) -> Iterator[Any]:
    """Read consecutive cells of a column."""
    with _opened(place) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        begins = list(itertools.accumulate(sizes, initial=0))
        spans = enumerate(itertools.pairwise(begins))
        groups = [group for group, (begin, end) in spans if begin < stop and first < end]
        skipped = begins[min(groups, default=0)]
        batches = file.iter_batches(_CELLS_AT_ONCE, row_groups=groups, columns=[column])
        cells = itertools.chain.from_iterable(batch.column(0) for batch in batches)
        for cell in itertools.islice(cells, first - skipped, stop - skipped):
            yield cell.as_py()
