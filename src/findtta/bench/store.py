"""A folder of results: one JSON file per run, whole or not there."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from findtta._io import UNFINISHED, atomic_write
from findtta.bench.result import Result
from findtta.errors import InputError, OptionError, UnknownNameError

DEFAULT_FOLDER = "findtta-runs"
FOLDER_VARIABLE = "FINDTTA_RUNS"
SHORTEST_PREFIX = 4

_STALE_SECONDS = 3600.0
_DIGEST = re.compile(r"[0-9A-Za-z_-]{1,64}")


def default_folder() -> Path:
    """Return where results are kept unless a folder is named: ``$FINDTTA_RUNS``, or ``findtta-runs`` here."""
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)


class Store:
    """A folder of results that several processes may write to and read from at once.

    A result appears in one step, so that nobody ever reads half of it; a kill leaves a hidden temporary file
    at most. Reading never changes the folder, and a missing folder reads as an empty one.

    Args:
        folder: Where the results are; by default :func:`default_folder`.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> store.put(Result(digest="0a1b", status="failed", spec={}, error={"type": "OSError", "message": "no"}))
        True
        >>> store.has("0a1b"), store.is_done("0a1b")
        (True, False)
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """What was wrong with files that were read so far, a line for each; they are left as they are."""
        return [f"{name}: {reason}" for name, reason in sorted(self._problems.items())]

    def require_writable(self) -> None:
        """Make the folder if need be, and raise ``OptionError`` unless results can be written into it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe.{secrets.token_hex(4)}.part"
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            raise self._unusable("a folder that can be written to", error) from error
        self._remove_stale_files()

    def digests(self) -> list[str]:
        """Return the digests that there are files for, without reading them."""
        try:
            names = [entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".json")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable("a folder that can be read", error) from error
        return sorted(name.removesuffix(".json") for name in names if not name.startswith("."))

    def has(self, digest: str) -> bool:
        """Return whether there is a readable result of this run, done or failed."""
        return self._read(digest) is not None

    def is_done(self, digest: str) -> bool:
        """Return whether this run is done, so that there is nothing left to compute."""
        result = self._read(digest)
        return result is not None and result.status == "done"

    def get(self, digest: str) -> Result:
        """Return the result of a run.

        Args:
            digest: The whole digest.

        Returns:
            The result, done or failed.

        Raises:
            UnknownNameError: If there is none.
            InputError: If there is a file that holds none.
        """
        result = self._read(digest)
        if result is not None:
            return result
        name = f"{digest}.json"
        if name in self._problems:
            raise InputError(f"the file {str(self.folder / name)!r} is of no use: {self._problems[name]}")
        raise UnknownNameError(f"digest: there is no result {digest!r} in {str(self.folder)!r}.")

    def find(self, prefix: str) -> Result:
        """Return the result whose digest begins so.

        Args:
            prefix: At least four characters, unless it is the whole digest.

        Returns:
            The result.
        """
        known = self.digests()
        matches = [prefix] if prefix in known else [digest for digest in known if digest.startswith(prefix)]
        if not matches or (len(prefix) < SHORTEST_PREFIX and prefix not in known):
            raise UnknownNameError(
                f"digest must be {SHORTEST_PREFIX} or more first characters of one of the {len(known)} results "
                f"in {str(self.folder)!r}, got {prefix!r}: see 'findtta results' for their digests."
            )
        if len(matches) > 1:
            shown = ", ".join(matches[:5]) + (", ..." if len(matches) > 5 else "")
            raise UnknownNameError(
                f"digest: {len(matches)} results begin with {prefix!r} ({shown}): give more of the digest."
            )
        return self.get(matches[0])

    def all(self) -> Iterator[Result]:
        """Yield every result, in the order of the digests; files that hold none go into ``problems``."""
        digests = self.digests()
        there = {f"{digest}.json" for digest in digests}
        self._problems = {name: reason for name, reason in self._problems.items() if name in there}
        for digest in digests:
            result = self._read(digest)
            if result is not None:
                yield result

    def done(self) -> Iterator[Result]:
        """Yield the results of the runs that are done."""
        return (result for result in self.all() if result.status == "done")

    def put(self, result: Result) -> bool:
        """Keep a result, in the place of an earlier one of the same run.

        Args:
            result: What a run gave. A failed one never takes the place of one that is done.

        Returns:
            Whether it was kept.
        """
        if not _DIGEST.fullmatch(result.digest):
            raise InputError(f"digest must be letters and digits, got {result.digest!r}.")
        content = result.to_json().encode()
        if result.status != "done" and self.is_done(result.digest):
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._path(result.digest)) as partial:
                partial.write_bytes(content)
            self._sync_folder()
        except OSError as error:
            raise self._unusable("a folder that can be written to", error) from error
        self._problems.pop(f"{result.digest}.json", None)
        return True

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.json"

    def _read(self, digest: str) -> Result | None:
        """Return a result, or None if there is none, with a note in ``problems`` if there should be one."""
        name = f"{digest}.json"
        try:
            result = Result.from_json(self._path(digest).read_bytes().decode())
            reason = _what_is_wrong(result, digest)
        except FileNotFoundError:
            self._problems.pop(name, None)
            return None
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})."
        except UnicodeDecodeError:
            reason = "it is no text."
        except RecursionError:
            reason = "it is nested too deeply to be a result."
        except InputError as error:
            reason = str(error)
        if reason is None:
            self._problems.pop(name, None)
            return result
        self._problems[name] = reason
        return None

    def _sync_folder(self) -> None:
        """Make the new name last through a power cut too, where the system can."""
        with suppress(OSError):  # Windows cannot open folders, some network drives cannot sync them
            handle = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _remove_stale_files(self) -> None:
        """Remove what killed processes left; a young file may be one that is being written right now."""
        for path in self.folder.iterdir():
            if UNFINISHED.fullmatch(path.name):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                        path.unlink()

    def _unusable(self, expected: str, error: OSError) -> OptionError:
        return OptionError(
            f"runs must be {expected}, but {str(self.folder)!r} is not ({error.strerror or error}): name another, "
            f"or set {FOLDER_VARIABLE}."
        )


def _what_is_wrong(result: Result, digest: str) -> str | None:
    """Return why a document with the right fields is no result, or None if it is one."""
    if result.digest != digest:
        return f"it holds the result {result.digest!r}, which belongs into a file of that name."
    for name in ("spec", "config", "metrics", "per_domain", "per_class", "running", "cost", "environment"):
        if not isinstance(getattr(result, name), dict):
            return f"its {name!r} is no object."
    for name in ("collapse", "error"):
        if not isinstance(getattr(result, name), dict | None):
            return f"its {name!r} is neither an object nor null."
    for name in ("layers", "per_round"):
        if not isinstance(getattr(result, name), list):
            return f"its {name!r} is no list."
    if result.status not in ("done", "failed"):
        return f"its status is {result.status!r}, neither 'done' nor 'failed'."
    if result.status == "done" and "accuracy" not in result.metrics:
        return "it says that the run is done, but has no accuracy."
    return None
