"""Files: written whole or not at all, TOML, JSON without NaN, and the one writer of Parquet."""

import math
import os
import re
import secrets
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from findtta._extras import require
from findtta.errors import InputError, OptionError

#: Names of files that are being written; a killed process can leave one behind.
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.part")


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache."""
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        cache = "~/Library/Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "findtta"


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a hidden path to write to, which replaces ``path`` once the block ends without an error.

    A reader finds the old file or the new one, never a part of it. The folder must exist. The file has the
    permissions of any new file, also if what writes it (as safetensors does) makes it readable by its owner only.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        partial.unlink()
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(mode)
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power failure, where the system can."""
    with suppress(OSError):  # Windows cannot open folders, some network drives cannot sync them
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, with its folder; raise ``OptionError`` if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise OptionError(
            f"{str(path)!r} cannot be written ({error.strerror or error}): name another folder."
        ) from error


def remove_unfinished(folder: Path, older_than_s: float = -math.inf) -> None:
    """Remove files that killed processes were writing; a young one may be one that is being written now."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > older_than_s:
                    path.unlink()


def read_toml(path: Path, name: str = "file") -> dict[str, Any]:
    """Read a TOML file; if that is not possible, an ``InputError`` that begins with ``name`` says why."""
    return _parsed(path, name, "TOML", tomllib.loads)


def read_toml_or_yaml(path: Path, name: str = "file") -> dict[str, Any]:
    """Read a file as its suffix says: YAML if it is ``.yaml`` or ``.yml``, otherwise TOML; see ``read_toml``."""
    if path.suffix not in (".yaml", ".yml"):
        return read_toml(path, name)
    yaml = require("yaml", "yaml", "a file in YAML")

    def parse(text: str) -> dict[str, Any]:
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from error
        if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
            raise ValueError("at its top there must be names with values")
        return document

    return _parsed(path, name, "YAML", parse)


def _parsed(path: Path, name: str, kind: str, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        return parse(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"{name}: {str(path)!r} cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise InputError(f"{name}: {str(path)!r} must be {kind} in UTF-8: {error}.") from error


def write_parquet(path: Path, schema: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, whose values may be None, as a Parquet file.

    The schema gives the type of each column: ``str``, ``int``, ``float``, ``bool``, or a pyarrow type.
    """
    arrow = require("pyarrow", "results", "writing Parquet files")
    parquet = require("pyarrow.parquet", "results", "writing Parquet files")
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    fields = arrow.schema([(name, types.get(kind, kind)) for name, kind in schema.items()])
    parquet.write_table(
        arrow.Table.from_pylist([dict(row) for row in rows], schema=fields), path, compression="zstd"
    )


def finite(value: Any) -> Any:
    """Return plain values with None for NaN and infinity, which JSON cannot represent, and lists for tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
