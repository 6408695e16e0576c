"""Verified downloads: what arrives is complete and as published, or nothing arrives."""

from __future__ import annotations

import errno
import hashlib
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from findtta.data.metadata import Marker, read_marker, write_marker
from findtta.data.published import Archive, PublishedSet, data_root, published_set
from findtta.errors import FindTTAError, InputError, MissingExtraError, OptionError, close_matches

_CHUNK = 2**20
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_STALE_AFTER = 24 * 3600.0  # seconds
_ROOM_TO_SPARE = 64 * 2**20


class DownloadError(FindTTAError, OSError):
    """A file could not be fetched, or is not what was published."""


class _Transient(DownloadError):
    """A failure that may pass."""


def get(
    name: str,
    *,
    root: str | Path | None = None,
    from_files: Sequence[str | Path] = (),
    parts: Sequence[str] | None = None,
    progress: bool = True,
) -> Path:
    """Fetch a published dataset, check it, and unpack it; what is there already is not fetched again.

    Args:
        name: ``"cifar10-c"``, ``"cifar100-c"``, ``"imagenet-c"``, ``"cifar10"`` or ``"cifar100"``.
        root: The folder to keep it in; by default that of :func:`findtta.data.published.data_root`.
        from_files: Archives that were downloaded by other means; only these are used, after the same checks.
        parts: The archives of ImageNet-C to fetch; by default those of the fifteen corruptions.
        progress: Whether to show progress bars.

    Returns:
        The folder of the dataset.
    """
    published = published_set(name)
    given = _assign_files(published, [Path(file).expanduser() for file in from_files])
    wanted = _wanted_parts(published, parts, given)
    folder = data_root(root) / name
    done = _parts_there(published, folder)
    for part in wanted:
        if part not in done:
            _get_part(published, part, folder, given.get(part), progress)
    return folder


def fetch(
    url: str,
    md5: str,
    target: Path,
    *,
    attempts: int = 4,
    back_off: float = 2.0,
    timeout: float = 30.0,
    progress: bool = True,
) -> Path:
    """Download a file; it appears under its name only when it is complete and has the right hash.

    Proxies are taken from the environment (``https_proxy``, ``no_proxy``, ...).

    Args:
        url: Where the file is.
        md5: The hash it must have.
        target: The file to write.
        attempts: How often to try when the connection or the server fails.
        back_off: Seconds to wait before the second attempt; doubled before each further one.
        timeout: Seconds without a byte after which an attempt has failed.
        progress: Whether to show a progress bar.

    Returns:
        ``target``.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    try:
        for attempt in range(max(1, attempts)):
            try:
                _download(url, md5, partial, timeout, progress)
                break
            except _Transient as error:
                if attempt + 1 >= attempts:
                    raise DownloadError(f"{error} It failed {attempts} times; try again later.") from error
                time.sleep(back_off * 2**attempt)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _download(url: str, md5: str, partial: Path, timeout: float, progress: bool) -> None:
    requests, pooch = _import_downloader()
    bar = tqdm(disable=not progress, unit="B", unit_scale=True, desc=_name(url))
    with _full_disk_explained(partial.parent), bar, partial.open("wb") as file:
        checked = _CheckedFile(file, url)
        answers: list[Any] = []
        downloader = pooch.HTTPDownloader(
            progressbar=_Bar(bar, partial.parent),
            chunk_size=_CHUNK,
            timeout=timeout,
            hooks={"response": lambda response, **_: answers.append(response)},
        )
        try:
            downloader(url=url, output_file=checked, pooch=None)
        except requests.exceptions.HTTPError as error:
            status = error.response.status_code
            kind = _Transient if status in _WORTH_ANOTHER_TRY else DownloadError
            raise kind(
                f"{url} could not be fetched: the server answered {status} {error.response.reason}."
            ) from error
        except requests.exceptions.Timeout as error:
            raise _Transient(f"{url} could not be fetched: nothing came for {timeout:g} seconds.") from error
        except requests.exceptions.InvalidURL as error:
            raise DownloadError(f"{url} could not be fetched: {error}.") from error
        except requests.exceptions.RequestException as error:
            raise _Transient(
                f"{url} could not be fetched: the connection failed or broke off ({_reason(error)}). "
                "If this machine needs a proxy, set https_proxy."
            ) from error
        finally:
            for answer in answers:
                answer.close()  # pooch leaves the connection of a failed download open
    if checked.hash.hexdigest() != md5:
        raise DownloadError(
            f"{url} gave {checked.length} bytes with the md5 {checked.hash.hexdigest()}, but the published file "
            f"has {md5}. Something on the way changed it, or the source did; nothing was kept."
        )


class _CheckedFile:
    """A file that computes the hash of what is written, and notices a web page in place of data."""

    def __init__(self, file: IO[bytes], url: str) -> None:
        self.file, self.url, self.length = file, url, 0
        self.hash = hashlib.md5(usedforsecurity=False)

    def write(self, content: bytes) -> int:
        if self.length == 0 and content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            raise DownloadError(
                f"{self.url} gave a web page, not the file. Open it in a browser to see what it says: often a "
                "login, a proxy's notice or an outage."
            )
        self.hash.update(content)
        self.length += len(content)
        return self.file.write(content)

    def flush(self) -> None:
        """Leave flushing to the file: after every chunk it would only cost time."""


class _Bar:
    """The progress bar pooch works with; it learns the size of the file first, and so can check for room."""

    def __init__(self, bar: Any, folder: Path) -> None:
        self._bar, self._folder = bar, folder

    @property
    def total(self) -> int:
        """The size of the file in bytes, 0 if the server does not say."""
        return int(self._bar.total or 0)

    @total.setter
    def total(self, size: int) -> None:
        self._bar.total = size or None
        # The archive and what is in it lie side by side for a while.
        require_room(self._folder, 2 * size, "the download and its content")

    def update(self, count: int) -> None:
        self._bar.update(count)

    def reset(self) -> None:
        self._bar.reset()

    def close(self) -> None:
        self._bar.close()


def require_room(folder: Path, size: int, what: str) -> None:
    """Raise an error if so many bytes do not fit on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if size + _ROOM_TO_SPARE > free:
        raise _no_room(folder, f"{what} need {size / 1e9:.2f} GB, but {free / 1e9:.2f} GB are free")


@contextmanager
def _full_disk_explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except FindTTAError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(folder, "it was full before everything was written") from error
        raise


def _no_room(folder: Path, why: str) -> DownloadError:
    return DownloadError(
        f"There is not enough room on the disk of {folder}: {why}. Nothing was kept. "
        "Free some, or choose another folder with --root or FINDTTA_DATA."
    )


def _assign_files(published: PublishedSet, files: Sequence[Path]) -> dict[str, Path]:
    """Tell by their hash which parts the files are."""
    part_of = {archive.md5: part for part, archive in published.archives.items()}
    given = {}
    for file in files:
        if not file.is_file():
            raise InputError(f"--from-file must name a file, but {str(file)!r} is none.")
        md5 = _md5(file)
        if md5 not in part_of:
            expected = ", ".join(f"{archive.file_name} {archive.md5}" for archive in published.archives.values())
            raise DownloadError(
                f"{file} has the md5 {md5}, none of those of the published {published.name} ({expected}). "
                "It is incomplete or another file; download it again."
            )
        given[part_of[md5]] = file
    return given


def _wanted_parts(published: PublishedSet, parts: Sequence[str] | None, given: dict[str, Path]) -> tuple[str, ...]:
    if parts is None:
        return tuple(given) or published.default_parts
    for part in parts:
        if part not in published.archives:
            raise OptionError(
                f"parts of {published.name} must be among {', '.join(published.archives)}, but one is {part!r}."
                f"{close_matches(part, published.archives)}"
            )
        if given and part not in given:
            raise OptionError(f"parts names {part!r}, but none of the files given with --from-file is that part.")
    return tuple(parts)


def _parts_there(published: PublishedSet, folder: Path) -> tuple[str, ...]:
    marker = read_marker(folder)
    if marker is None:
        if folder.exists() and any(folder.iterdir()):
            raise DownloadError(
                f"{folder} exists, but does not say that it is complete. Use it by its path, or move it away "
                "to have the dataset fetched."
            )
        return ()
    if marker.generated:
        raise DownloadError(f"{folder} holds data made by this package. Move it away, or choose another --root.")
    hashes = marker.details.get("md5", {})
    return tuple(part for part, archive in published.archives.items() if hashes.get(part) == archive.md5)


def _get_part(published: PublishedSet, part: str, folder: Path, given: Path | None, progress: bool) -> None:
    archive = published.archives[part]
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
    with tempfile.TemporaryDirectory(prefix=_temporary_prefix(folder), dir=folder.parent) as temporary:
        workplace = Path(temporary)
        packed = given or fetch(archive.url, archive.md5, workplace / archive.file_name, progress=progress)
        extracted = extract(packed, workplace / "content", progress=progress)
        _install(published, part, _content_of(extracted, published.landmark[part], archive), folder)


def extract(archive: Path, folder: Path, *, progress: bool = True) -> Path:
    """Unpack a tar archive into a new folder; members that point outside of it are refused.

    Args:
        archive: The archive.
        folder: The folder to make.
        progress: Whether to show a progress bar.

    Returns:
        ``folder``.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DownloadError("Archives are unpacked safely by Python 3.11.4 or later; this one is older.")
    size = archive.stat().st_size
    folder.mkdir(parents=True)
    require_room(folder, size, f"the content of {archive.name}")
    bar = tqdm(disable=not progress, total=size, unit="B", unit_scale=True, desc=f"unpacking {archive.name}")
    try:
        with (
            _full_disk_explained(folder),
            bar,
            archive.open("rb") as file,
            tarfile.open(fileobj=file, mode="r|*") as tar,
        ):
            for member in tar:
                tar.extract(member, folder, filter="data")
                tar.members.clear()  # type: ignore[attr-defined]  # a million of them would fill the memory
                bar.update(file.tell() - bar.n)
    except (tarfile.TarError, EOFError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, FindTTAError):
            raise
        raise DownloadError(f"{archive} could not be unpacked: {error}. Nothing was kept.") from error
    return folder


def _content_of(extracted: Path, landmark: str, archive: Archive) -> Path:
    """Return the folder worth keeping, whichever folders the archive wraps around it."""
    found = sorted(extracted.rglob(landmark), key=lambda path: len(path.parts))
    if not found:
        raise DownloadError(f"{archive.file_name} must hold {landmark}, but does not. Nothing was kept.")
    return found[0].parent


def _install(published: PublishedSet, part: str, content: Path, folder: Path) -> None:
    """Put a part in its place by renaming, and say in the marker that it is there."""
    marker = read_marker(folder)
    hashes = {**(marker.details.get("md5", {}) if marker else {}), part: published.archives[part].md5}
    details: dict[str, Any] = {"md5": hashes}
    if published.classes:
        details["classes"] = list(published.classes)
    updated = Marker(published.name, "published", details)
    if marker is None:
        write_marker(content, updated)
        if folder.exists():
            folder.rmdir()  # it is empty
        content.replace(folder)
        return
    for entry in content.iterdir():
        if (folder / entry.name).is_dir():
            shutil.rmtree(folder / entry.name)  # left by a run that ended before it could say so
        entry.replace(folder / entry.name)
    write_marker(folder, updated)


def _temporary_prefix(folder: Path) -> str:
    return f".{folder.name}-partial-"


def _remove_stale(folder: Path) -> None:
    """Remove what a killed run has left, but not what another run is working on."""
    for left in folder.parent.glob(_temporary_prefix(folder) + "*"):
        if time.time() - left.stat().st_mtime > _STALE_AFTER:
            shutil.rmtree(left, ignore_errors=True)


def _import_downloader() -> tuple[Any, Any]:
    try:
        import pooch
        import requests
    except ImportError:
        raise MissingExtraError("downloads need the 'data' extra: pip install \"findtta[data]\"") from None
    return requests, pooch


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _name(url: str) -> str:
    return Archive(url, "").file_name


def _reason(error: BaseException) -> str:
    """Return the innermost cause, which says what happened; the outer ones say which layers it went through."""
    while error.args and isinstance(error.args[-1], BaseException):
        error = error.args[-1]
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _reason(reason)
    return str(error)
