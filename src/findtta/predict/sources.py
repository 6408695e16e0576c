"""Where images come from: a folder, a list of paths, or Parquet files."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from findtta.errors import InputError, MissingExtraError, OptionError, UnknownNameError, close_matches
from findtta.predict.listing import Listing
from findtta.predict.walk import file_size, walk

#: Endings of the formats that ``decode_image`` reads.
IMAGES = frozenset((".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"))
PARQUET = frozenset((".parquet", ".pq"))
LISTS = frozenset((".txt", ".lst"))

_CELLS_AT_ONCE = 64  # of a Parquet column


@dataclass(frozen=True)
class Entry:
    """One image, not yet read.

    Attributes:
        row: Its position in the input.
        name: What it is called in the answers.
        content: Its bytes, or the file they are in; None if there is neither.
    """

    row: int
    name: str
    content: bytes | Path | None


class Part(Protocol):
    """A stretch of the input, small enough to be sent anywhere."""

    def entries(self) -> Iterator[Entry]:
        """Go through the images in order."""
        ...


class Source(Protocol):
    """All images of an input, in an order that is always the same.

    Attributes:
        kind: What it is, in a word or two.
        digest: Of what it lists, so that a changed input is noticed.
    """

    kind: str

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Part:
        """Return the images from one position to before another."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


def open_source(path: str | Path, image_column: str = "image") -> Source:
    """List the images of an input.

    Args:
        path: A folder of images or of Parquet files, taken with all folders in it; a Parquet file; or a text
            file with one path per line, relative to its own folder.
        image_column: The column of Parquet files that holds the images: bytes, paths, or both as
            ``{bytes, path}``.

    Returns:
        The images; leave its context to free what the listing takes.

    Raises:
        InputError: If there is no such input, or no image in it.
    """
    path = Path(path).absolute()
    suffix = path.suffix.lower()
    if path.is_dir():
        return _open_folder(path, image_column)
    if not path.is_file():
        raise InputError(f"input: {str(path)!r} does not exist; give a folder, a Parquet file or a list of paths.")
    if suffix in PARQUET:
        return ParquetSource(path.parent, [path.name], image_column)
    if suffix in LISTS:
        return _open_list(path)
    raise OptionError(
        f"input must be a folder, a Parquet file ({', '.join(sorted(PARQUET))}) or a list of paths "
        f"({', '.join(sorted(LISTS))}), got the file {path.name!r}."
    )


def import_pyarrow() -> Any:
    """Import pyarrow with its Parquet part."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError("Parquet files of images need the 'ray' extra: pip install \"findtta[ray]\"")
    importlib.import_module("pyarrow.parquet")
    return importlib.import_module("pyarrow")


@dataclass(frozen=True)
class FilePart:
    """Some image files, by their names below a folder."""

    start: int
    root: Path
    names: tuple[str, ...]

    def entries(self) -> Iterator[Entry]:
        for row, name in enumerate(self.names, self.start):
            yield Entry(row, name, self.root / name)


class FileSource:
    """Images that are files; see :class:`Source`."""

    def __init__(self, kind: str, root: Path, listing: Listing) -> None:
        self.kind, self.root, self._listing = kind, root, listing

    @property
    def digest(self) -> str:
        return self._listing.digest

    def __len__(self) -> int:
        return len(self._listing)

    def part(self, start: int, stop: int) -> FilePart:
        return FilePart(start, self.root, tuple(self._listing.names(start, stop)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listing.close()


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a Parquet file, by its name below a folder."""

    file: str
    first: int
    count: int


@dataclass(frozen=True)
class ParquetPart:
    """Some rows of Parquet files."""

    start: int
    root: Path
    rows: tuple[Rows, ...]
    column: str

    def entries(self) -> Iterator[Entry]:
        row = itertools.count(self.start)
        for rows in self.rows:
            folder = (self.root / rows.file).parent
            for position, cell in enumerate(_cells(self.root / rows.file, self.column, rows), rows.first):
                name, content = _image_of(cell, folder)
                yield Entry(next(row), name or f"{rows.file}#{position}", content)


class ParquetSource:
    """Images in a column of Parquet files; see :class:`Source`."""

    kind = "Parquet"

    def __init__(self, root: Path, names: list[str], column: str) -> None:
        self.root, self.column = root, column
        self._files: list[tuple[str, int]] = []
        with Listing() as listing:
            for name in names:
                rows = _count_rows(root / name, column)
                self._files.append((name, rows))
                listing.add(name, file_size(root / name))
                listing.add(column, rows)
            self.digest = listing.digest
        if len(self) == 0:
            raise InputError(f"input: the Parquet files in {str(root)!r} have no rows.")

    def __len__(self) -> int:
        return sum(rows for _, rows in self._files)

    def part(self, start: int, stop: int) -> ParquetPart:
        chosen, begin = [], 0
        for name, rows in self._files:
            first, last = max(start - begin, 0), min(stop - begin, rows)
            if first < last:
                chosen.append(Rows(name, first, last - first))
            begin += rows
        return ParquetPart(start, self.root, tuple(chosen), self.column)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is kept open."""


def _open_folder(root: Path, image_column: str) -> Source:
    listing = Listing()
    try:
        tables: list[str] = []
        for name, size in walk(root, IMAGES | PARQUET):
            if Path(name).suffix.lower() in PARQUET:
                tables.append(name)
            else:
                listing.add(name, size)
            if tables and len(listing):
                raise InputError(
                    f"input: {str(root)!r} holds both Parquet files ({tables[0]!r}) and images "
                    f"({listing.names(0, 1)[0]!r}); give the folder of one kind."
                )
        if not tables and not len(listing):
            raise InputError(
                f"input: {str(root)!r} has no image in it ({', '.join(sorted(IMAGES))}), nor a Parquet file."
            )
    except BaseException:
        listing.close()
        raise
    if tables:
        listing.close()
        return ParquetSource(root, tables, image_column)
    return FileSource("folder", root, listing)


def _open_list(path: Path) -> FileSource:
    listing = Listing()
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                name = line.rstrip("\r\n")
                if name:
                    listing.add(name, file_size(path.parent / name))
        if not len(listing):
            raise InputError(f"input: the list {str(path)!r} is empty; it must have one path per line.")
    except OSError as error:
        listing.close()
        raise InputError(f"input: the list {str(path)!r} cannot be read ({error.strerror}).") from error
    except BaseException:
        listing.close()
        raise
    return FileSource("list", path.parent, listing)


def _count_rows(path: Path, column: str) -> int:
    """Return how many rows a Parquet file has, if its column can hold images."""
    arrow = import_pyarrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, int(file.metadata.num_rows)
    except (OSError, ValueError) as error:  # what pyarrow raises on broken files is a ValueError
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(f"input: {str(path)!r} is not a Parquet file that can be read ({reason}).") from error
    if column not in schema.names:
        raise UnknownNameError(
            f"image_column: {path.name!r} has no column {column!r}.{close_matches(column, schema.names)} "
            f"It has {', '.join(schema.names)}."
        )
    kind = schema.field(column).type
    types = arrow.types
    fields = {kind.field(i).name for i in range(kind.num_fields)} if types.is_struct(kind) else set()
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind)
    is_path = types.is_string(kind) or types.is_large_string(kind)
    if not (is_bytes or is_path or "bytes" in fields):
        raise InputError(
            f"image_column: column {column!r} of {path.name!r} must hold bytes, paths or structs of bytes and "
            f"path, but holds {kind}."
        )
    return rows


def _cells(path: Path, column: str, rows: Rows) -> Iterator[Any]:
    """Read some cells of a column; no more than a few at once are in memory."""
    arrow = import_pyarrow()
    try:
        with arrow.parquet.ParquetFile(path, buffer_size=2**20) as file:
            groups: list[int] = []
            skip = begin = 0
            for group in range(file.num_row_groups):
                end = begin + file.metadata.row_group(group).num_rows
                if begin < rows.first + rows.count and rows.first < end:
                    if not groups:
                        skip = rows.first - begin
                    groups.append(group)
                begin = end
            batches = file.iter_batches(_CELLS_AT_ONCE, row_groups=groups, columns=[column])
            read = 0
            for batch in batches:
                wanted = batch.column(0)[max(skip - read, 0) : skip + rows.count - read]
                read += len(batch)
                for cell in wanted:
                    yield cell.as_py()
                if read >= skip + rows.count:
                    return
    except (OSError, ValueError) as error:
        raise InputError(f"input: {str(path)!r} cannot be read any more ({error}).") from error


def _image_of(cell: Any, folder: Path) -> tuple[str | None, bytes | Path | None]:
    """Return name and content of a cell: bytes, a path, or both in a struct."""
    if isinstance(cell, dict):
        data, path = cell.get("bytes"), cell.get("path")
        return path, data if data is not None else folder / path if path else None
    if isinstance(cell, str):
        return cell, folder / cell
    return None, cell


def shown(name: str) -> str:
    """Return a name as text that any file can hold: bytes that are no UTF-8 are spelled out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
