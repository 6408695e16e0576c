"""A folder of results: one JSON file per run, which appears whole or not at all; or one archive of many."""

import functools
import json
import lzma
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from findtta._io import remove_unfinished, write_file
from findtta.bench.result import Result
from findtta.data.open import split_sources
from findtta.errors import InputError, OptionError, UnknownNameError, few

DEFAULT_FOLDER = "findtta-runs"
FOLDER_VARIABLE = "FINDTTA_RUNS"
SHORTEST_PREFIX = 4
#: What an archive of results is called: a line of JSON for each, compressed.
ARCHIVE = ".jsonl.xz"
#: The folder beside the results of runs that has what ``findtta paper`` measures.
MEASUREMENTS = "probes"

_STALE_SECONDS = 3600.0
_DIGEST = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Store:
    """A folder of results that several processes may write to and read from at once.

    A result appears in one step, so that no reader ever sees half of it; a killed process leaves at most a hidden
    temporary file. Reading never changes the folder, and a missing folder reads as an empty one. The folder is by
    default ``$FINDTTA_RUNS``, or ``findtta-runs`` in the working directory. In place of a folder it may be a
    ``.jsonl.xz`` file that :func:`archive` wrote, which is only read.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> store.put(Result(digest="0a1b", status="failed", spec={}, error={"type": "OSError", "message": "no"}))
        True
        >>> store.get("0a1b").status
        'failed'
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
        #: What was wrong with files when all were read last, one line each; the files are left as they are.
        self.problems: list[str] = []

    def require_writable(self) -> None:
        """Create the folder if necessary, and raise ``OptionError`` unless results can be written into it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise self._unusable("a folder that can be written to", error) from error
        remove_unfinished(self.folder, _STALE_SECONDS)

    @property
    def _is_archive(self) -> bool:
        return self.folder.name.endswith(ARCHIVE)

    @functools.cached_property
    def _documents(self) -> dict[str, dict[str, Any]]:
        """The results and measurements in an archive, by digest."""
        try:
            lines = lzma.decompress(self.folder.read_bytes()).splitlines()
            return {str(document["digest"]): document for document in map(json.loads, lines)}
        except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"the archive {str(self.folder)!r} of results cannot be read ({error}).") from error

    @functools.cached_property
    def _archived(self) -> dict[str, dict[str, Any]]:
        """The results of runs in an archive, by digest."""
        return {digest: each for digest, each in self._documents.items() if "probe" not in each}

    def measurements(self) -> Iterator[dict[str, Any]]:
        """Yield what ``findtta paper`` has measured beside the runs, as plain values."""
        if self._is_archive:
            yield from (each for each in self._documents.values() if "probe" in each)
        else:
            for path in sorted((self.folder / MEASUREMENTS).glob("*.json")):
                yield json.loads(path.read_text(encoding="utf-8"))

    def digests(self) -> list[str]:
        """Return the digests that there are files for, without reading the files."""
        if self._is_archive:
            return sorted(self._archived)
        try:
            names = [entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".json")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable("a folder that can be read", error) from error
        return sorted(name.removesuffix(".json") for name in names if not name.startswith("."))

    def look_up(self, digest: str) -> Result | None:
        """Return the result of a run, or None; a damaged file raises ``InputError``."""
        try:
            return self._read(digest)
        except InputError as error:
            raise InputError(
                f"the file {str(self.path(digest))!r} cannot be used: {error} Delete it to compute the run again."
            ) from error

    def get(self, digest: str) -> Result:
        """Return the result of a run; ``UnknownNameError`` if there is none, ``InputError`` if it is damaged."""
        result = self.look_up(digest)
        if result is None:
            raise UnknownNameError(f"digest: there is no result {digest!r} in {str(self.folder)!r}.")
        return result

    def find(self, prefix: str) -> Result:
        """Return the result whose digest starts with a prefix of at least four characters."""
        known = self.digests()
        matches = [prefix] if prefix in known else [digest for digest in known if digest.startswith(prefix)]
        if not matches or (len(prefix) < SHORTEST_PREFIX and prefix not in known):
            raise UnknownNameError(
                f"digest must be {SHORTEST_PREFIX} or more first characters of one of the {len(known)} results in "
                f"{str(self.folder)!r}, got {prefix!r}: 'findtta results' lists them."
            )
        if len(matches) > 1:
            raise UnknownNameError(
                f"digest: {len(matches)} results start with {prefix!r} ({few(matches)}): give more characters."
            )
        return self.get(matches[0])

    def all(self) -> Iterator[Result]:
        """Yield all results, in the order of the digests; files that cannot be used go into ``problems``."""
        self.problems = []
        for digest in self.digests():
            try:
                result = self._read(digest)
            except InputError as error:
                self.problems.append(f"{digest}.json: {error}")
            else:
                if result is not None:
                    yield result

    def put(self, result: Result) -> bool:
        """Store a result in place of an earlier one, but no failure in place of a success; return if it did."""
        if not _DIGEST.fullmatch(result.digest):
            raise InputError(f"digest must be letters and digits, got {result.digest!r}.")
        content = result.to_json().encode()
        with suppress(InputError):  # a damaged file may be replaced
            if not result.is_done and (stored := self._read(result.digest)) is not None and stored.is_done:
                return False
        write_file(self.path(result.digest), content)
        return True

    def remove(self, digest: str) -> None:
        """Delete a result, if there is one."""
        self.path(digest).unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Return the file of a run."""
        return self.folder / f"{digest}.json"

    def _read(self, digest: str) -> Result | None:
        """Return a result, or None if there is none; ``InputError`` if its file cannot be used."""
        if self._is_archive:
            return Result.from_document(self._archived[digest]) if digest in self._archived else None
        try:
            result = Result.from_json(self.path(digest).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"it cannot be read ({error.strerror}).") from error
        if result.digest != digest:
            raise InputError(f"it holds the result {result.digest!r}, which belongs into a file of that name.")
        return result

    def _unusable(self, expected: str, error: OSError) -> OptionError:
        return OptionError(
            f"runs must be {expected}, but {str(self.folder)!r} is not ({error.strerror or error}): name another, "
            f"or set {FOLDER_VARIABLE}."
        )


def without_folders(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a run with the names of files in place of their paths."""
    named = dict(spec)
    if str(spec.get("model")).endswith(".safetensors"):
        named["model"] = Path(spec["model"]).name
    if spec.get("weights"):
        named["weights"] = Path(spec["weights"]).name
    if spec.get("data"):
        named["data"] = "+".join(Path(part).name for part in split_sources(spec["data"]))
    return named


def archive(results: Iterable[Result], path: Path, measurements: Iterable[Mapping[str, Any]] = ()) -> None:
    """Write results into one small file, which a store can be read from; the same results give the same bytes.

    Paths of data and weights that were asked for become the names of the files, so that it can be given away.
    """
    documents = [json.loads(result.to_json()) for result in results]
    documents += json.loads(json.dumps(list(measurements)))
    for document in documents:
        asked = document.get("probe", document)
        asked["spec"] = without_folders(asked["spec"])
    # Runs that resemble each other next to each other: that compresses best.
    documents.sort(key=lambda each: (json.dumps(each["config"].get("stream")), each["digest"]))
    lines = [json.dumps(document, sort_keys=True, separators=(",", ":")) for document in documents]
    write_file(path, lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
