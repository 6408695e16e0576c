"""Published datasets: which there are, where they are kept here, and downloads that are verified.

What arrives is complete and as published, or nothing arrives.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.utils import CallbackIOWrapper

from findtta._extras import require
from findtta._io import cache_folder, read_toml
from findtta._progress import progress_bar
from findtta.data.metadata import Marker, read_marker, write_marker
from findtta.errors import FindTTAError, InputError, OptionError
from findtta.options import require_known

ROOT_VARIABLE = "FINDTTA_DATA"
GENERATED_SUFFIX = "-generated"

_WORTH_ANOTHER_TRY = (408, 425, 429)  # among the errors of a client
_STALE_AFTER = 24 * 3600.0  # seconds
_ROOM_TO_SPARE = 64 * 2**20
_IN_BYTES: dict[str, Any] = {"unit_scale": True, "unit_divisor": 1024}


class DownloadError(FindTTAError, OSError):
    """A file could not be fetched, or is not what was published."""


@dataclass(frozen=True)
class Archive:
    """One file of a published dataset; its landmark, a file or folder, stands in the folder worth keeping."""

    url: str
    md5: str
    landmark: str

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return self.url.partition("?")[0].rpartition("/")[2]


@dataclass(frozen=True)
class PublishedSet:
    """A dataset that can be fetched; of its archives, ``"extra"`` is only fetched when asked for."""

    archives: Mapping[str, Archive]
    alias: str
    classes: Sequence[str] = field(default=(), repr=False)


#: The datasets of ``published.toml`` by name.
PUBLISHED: Mapping[str, PublishedSet] = {
    name: PublishedSet(**{**table, "archives": {part: Archive(**one) for part, one in table["archives"].items()}})
    for name, table in read_toml(Path(__file__).with_suffix(".toml")).items()
}


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that datasets are kept in.

    That is ``root`` if it is given; else what the environment variable ``FINDTTA_DATA`` says; else ``findtta`` in
    the user's cache folder.
    """
    chosen = root or os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return cache_folder()


def get(
    name: str,
    *,
    root: str | Path | None = None,
    from_files: Sequence[str | Path] = (),
    parts: Sequence[str] | None = None,
    progress: bool = True,
) -> Path:
    """Fetch a dataset of ``PUBLISHED``, check it, unpack it below :func:`data_root`, and return its folder.

    What is there already is not fetched again. If ``from_files`` names archives that were downloaded by other
    means, only these are used, after the same checks. The parts are the archives of ImageNet-C; by default those
    of the fifteen corruptions.
    """
    require_known("name", name, PUBLISHED)
    archives = PUBLISHED[name].archives
    given = _assign_files(name, [Path(file).expanduser() for file in from_files])
    for part in parts or ():
        require_known(f"parts of {name}", part, archives)
        if given and part not in given:
            raise OptionError(f"parts names {part!r}, but none of the files given with --from-file is that part.")
    folder = data_root(root) / name
    done = _parts_there(name, folder)
    for part in parts or given or [part for part in archives if part != "extra"]:
        if part not in done:
            _get_part(name, part, folder, given.get(part), progress)
    return folder


def _assign_files(name: str, files: Sequence[Path]) -> dict[str, Path]:
    """Tell by their hash which parts the files are."""
    archives = PUBLISHED[name].archives
    part_of = {archive.md5: part for part, archive in archives.items()}
    given = {}
    for file in files:
        if not file.is_file():
            raise InputError(f"--from-file must name a file, but {str(file)!r} does not exist.")
        md5 = _md5(file)
        if md5 not in part_of:
            expected = ", ".join(f"{archive.file_name} {archive.md5}" for archive in archives.values())
            raise DownloadError(
                f"{file} has the md5 {md5}, none of those of the published {name} ({expected}). "
                "It is incomplete or another file; download it again."
            )
        given[part_of[md5]] = file
    return given


def _parts_there(name: str, folder: Path) -> list[str]:
    marker = read_marker(folder)
    if marker is None:
        if folder.exists() and any(folder.iterdir()):
            raise DownloadError(
                f"{folder} exists, but does not say that it is complete. Use it by its path, or move it away "
                "to have the dataset fetched."
            )
        return []
    if marker.generated:
        raise DownloadError(f"{folder} holds data made by this package. Move it away, or choose another --root.")
    hashes = marker.details.get("md5", {})
    return [part for part, archive in PUBLISHED[name].archives.items() if hashes.get(part) == archive.md5]


def _get_part(name: str, part: str, folder: Path, given: Path | None, progress: bool) -> None:
    archive = PUBLISHED[name].archives[part]
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}-partial-"
    for left in folder.parent.glob(f"{prefix}*"):  # by a run that was killed, not by one that works there now
        if time.time() - left.stat().st_mtime > _STALE_AFTER:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as temporary:
        packed = given or fetch(archive.url, archive.md5, Path(temporary, archive.file_name), progress=progress)
        extracted = extract(packed, Path(temporary, "content"), progress=progress)
        # Whichever folders the archive has around what is worth keeping.
        found = sorted(extracted.rglob(archive.landmark), key=lambda path: len(path.parts))
        if not found:
            raise DownloadError(
                f"{archive.file_name} must hold {archive.landmark}, but does not. Nothing was kept."
            )
        _install(name, part, found[0].parent, folder)


def _install(name: str, part: str, content: Path, folder: Path) -> None:
    """Put a part in its place by renaming, and say in the marker that it is there."""
    before = read_marker(folder)
    hashes = before.details.get("md5", {}) if before else {}
    details: dict[str, Any] = {"md5": {**hashes, part: PUBLISHED[name].archives[part].md5}}
    if PUBLISHED[name].classes:
        details["classes"] = PUBLISHED[name].classes
    marker = Marker(name, "published", details)
    if before is None:
        write_marker(content, marker)
        if folder.exists():
            folder.rmdir()  # it is empty
        content.replace(folder)
        return
    for entry in content.iterdir():
        if (folder / entry.name).is_dir():
            shutil.rmtree(folder / entry.name)  # left by a run that ended before it could say so
        entry.replace(folder / entry.name)
    write_marker(folder, marker)


def fetch(
    url: str, md5: str, target: Path, *, attempts: int = 4, timeout: float = 30.0, progress: bool = True
) -> Path:
    """Download a file; it appears under its name only when it is complete, and stays only with the right hash.

    When the connection or the server fails, or sends nothing for ``timeout`` seconds, there are more attempts.
    Proxies are taken from the environment (``https_proxy``, ``no_proxy``, ...).
    """
    pooch = require("pooch", "data", "downloading datasets")
    pooch.get_logger().setLevel("INFO" if progress else "WARNING")
    # Pooch is not told the hash: it would fetch a file with a wrong one again, and these files are large.
    store = pooch.create(
        target.parent, "", registry={target.name: None}, urls={target.name: url}, retry_if_failed=attempts - 1
    )
    responses: list[Any] = []

    def check(response: Any, **_options: Any) -> None:
        responses.append(response)
        bar.reset()  # another attempt begins at the start
        _check_response(response, url, target.parent)

    # Pooch knows the total.
    bar = progress_bar(1, "byte", quiet=not progress, desc=f"downloading {target.name}", **_IN_BYTES)
    downloader = pooch.HTTPDownloader(bar, 2**20, timeout=timeout, hooks={"response": check})
    try:
        with bar:
            store.fetch(target.name, downloader=downloader)
    except DownloadError:
        raise
    except OSError as error:  # of the disk, or of requests
        raise DownloadError(
            f"{url} could not be fetched in {attempts} attempts: {_innermost(error)}. Nothing was kept. If this "
            "machine needs a proxy, set https_proxy."
        ) from error
    finally:
        for response in responses:
            response.close()  # pooch leaves the connection of a failed download open
    if _md5(target) != md5:
        target.unlink()
        raise DownloadError(
            f"{url} gave a file other than the published one, whose md5 is {md5}. Something on the way "
            "changed it, or the source did; nothing was kept."
        )
    return target


def _md5(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _check_response(response: Any, url: str, folder: Path) -> None:
    """Refuse web pages, what will not come, and files for which there is no room, before anything is written."""
    if 400 <= response.status_code < 500 and response.status_code not in _WORTH_ANOTHER_TRY:
        raise DownloadError(f"{url} could not be fetched: {response.status_code} {response.reason}.")
    # Redirections, which come through here as well, often have a page as their body.
    if response.status_code == 200 and response.headers.get("Content-Type", "").startswith("text/html"):
        raise DownloadError(
            f"{url} gave a web page, not the file. Open it in a browser to see what it says: often a login, a "
            "proxy's notice or an outage."
        )
    # The archive and what is in it lie side by side for a while.
    require_room(folder, 2 * int(response.headers.get("Content-Length", 0)), "the download and its content")


def _innermost(error: BaseException) -> str:
    """Return the innermost cause, which says what happened; the outer ones say which layers it went through."""
    inner = getattr(error, "reason", None) or (error.args[-1] if error.args else None)
    return _innermost(inner) if isinstance(inner, BaseException) else str(error)


def extract(archive: Path, folder: Path, *, progress: bool = True) -> Path:
    """Unpack a tar archive into a new folder, and return it; members that point outside of it are refused."""
    if not hasattr(tarfile, "data_filter"):
        raise DownloadError("Archives are unpacked safely by Python 3.11.4 or later; this one is older.")
    size = archive.stat().st_size
    folder.mkdir(parents=True)
    require_room(folder, size, f"the content of {archive.name}")
    bar = progress_bar(size, "byte", quiet=not progress, desc=f"unpacking {archive.name}", **_IN_BYTES)
    try:
        with (
            archive.open("rb") as packed,
            bar,
            tarfile.open(fileobj=CallbackIOWrapper(bar.update, packed, "read"), mode="r|*") as tar,
        ):
            for member in tar:
                tar.extract(member, folder, filter="data")
                tar.members.clear()  # type: ignore[attr-defined]  # a million of them would fill the memory
    except (tarfile.TarError, EOFError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise DownloadError(f"{archive} could not be unpacked: {error}. Nothing was kept.") from error
    return folder


def require_room(folder: Path, size: int, what: str) -> None:
    """Raise an error unless the disk of a folder has room for a number of bytes."""
    free = shutil.disk_usage(folder).free
    if size + _ROOM_TO_SPARE > free:
        raise DownloadError(
            f"There is not enough room on the disk of {folder}: {what} need {size / 1e9:.2f} GB, but "
            f"{free / 1e9:.2f} GB are free. Free some, or choose another folder with --root or FINDTTA_DATA."
        )
