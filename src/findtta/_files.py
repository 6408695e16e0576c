"""Writing files that are whole or not there."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: The names of files that are being written; a kill can leave one behind.
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.part")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a hidden path to write to, which takes the place of ``path`` once the block has ended without an error.

    A reader finds the old file or the new one, never a part, whatever happens in between.

    Args:
        path: The file to write; its folder must exist.

    Yields:
        Where to write.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
