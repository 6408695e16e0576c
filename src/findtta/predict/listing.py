"""Names of images, in order: any number of them in little memory."""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from array import array
from typing import Self

_IN_MEMORY = 2**24  # bytes; longer listings go to a file
_STRIDE = 256  # names between two that can be jumped to


class Listing:
    """Names that are added one by one, and read again by position; close it when done.

    Attributes:
        digest: Of all names and sizes added so far.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - close() closes it
        self._places = array("q")
        self._count = 0
        self._digest = hashlib.sha256()

    def __len__(self) -> int:
        return self._count

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:16]

    def add(self, name: str, size: int) -> None:
        """Add a name to the end.

        Args:
            name: Any text, lines and bytes that are no text included.
            size: Of the file; it counts for the digest only.
        """
        if self._count % _STRIDE == 0:
            self._places.append(self._file.tell())
        line = json.dumps(name).encode() + b"\n"  # one line, whatever characters are in it
        self._file.write(line)
        self._digest.update(line + b"%d\n" % size)
        self._count += 1

    def names(self, start: int, stop: int) -> list[str]:
        """Return the names from one position to before another; nothing can be added afterwards."""
        if start >= min(stop, self._count):
            return []
        self._file.seek(self._places[start // _STRIDE])
        skip = start % _STRIDE
        lines = itertools.islice(self._file, skip, skip + stop - start)
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Forget the names."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
