"""Downloads against real servers on this machine that misbehave in every way a server can."""

import builtins
import errno
import hashlib
import io
import os
import re
import shutil
import tarfile
import threading
import time
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import pytest

from findtta.data import published
from findtta.data.metadata import read_marker
from findtta.data.open import load
from findtta.data.published import PUBLISHED, DownloadError, data_root, extract, fetch, get
from findtta.errors import InputError, MissingExtraError, OptionError, UnknownNameError
from make_datasets import cifar_pickles, tar_bytes, write_cifar_c

pytest.importorskip("pooch")

CONTENT = bytes(range(256)) * 5000
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_proxies_and_no_waiting(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@contextmanager
def serving(answer):
    """Serve on this machine; ``answer(handler, number of the request)`` writes the response."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            answer(self, len(requests))

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that closing waits for the last answer
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler, content=CONTENT, status=200, kind="application/x-tar", length=None):
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(content) if length is None else length))
    handler.end_headers()
    handler.wfile.write(content)


def attempt(url, folder, **options):
    """Fetch what must fail; returns the message after checking that nothing is left."""
    folder.mkdir(exist_ok=True)
    with pytest.raises(DownloadError) as caught:
        fetch(f"{url}/file.tar", MD5, folder / "file.tar", progress=False, **options)
    assert list(folder.iterdir()) == []
    return str(caught.value)


def test_a_good_file_arrives(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with serving(lambda handler, _: send(handler)) as (url, requests):
        path = fetch(f"{url}/file.tar", MD5, tmp_path / "new" / "file.tar")
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert requests == ["/file.tar"]
    assert re.search(r"downloading file.tar: .*/1\.22M ", capsys.readouterr().err)  # the progress bar


def test_a_wrong_hash_is_refused_and_not_asked_for_again(tmp_path):
    with serving(lambda handler, _: send(handler, CONTENT[:-1] + b"x")) as (url, requests):
        message = attempt(url, tmp_path / "to")
    assert f"published one, whose md5 is {MD5}" in message
    assert len(requests) == 1


def test_a_web_page_is_not_taken_for_data(tmp_path):
    page = b"<!DOCTYPE html><title>Sign in</title>"
    with serving(lambda handler, _: send(handler, page, kind="text/html; charset=utf-8")) as (url, requests):
        assert "gave a web page, not the file" in attempt(url, tmp_path / "to")
    assert len(requests) == 1


@pytest.mark.parametrize(("status", "attempts"), [(404, 1), (403, 1), (500, 3), (503, 3), (429, 3)])
def test_http_errors(tmp_path, status, attempts):
    with serving(lambda handler, _: send(handler, b"sorry", status)) as (url, requests):
        message = attempt(url, tmp_path / "to", attempts=3)
    assert f": {status} " in message
    assert len(requests) == attempts
    assert ("in 3 attempts" in message) == (attempts == 3)


def test_redirections_are_followed(tmp_path):
    def answer(handler, number):
        if number == 1:
            handler.send_response(302)
            handler.send_header("Location", "/moved.tar")
            handler.send_header("Content-Type", "text/html; charset=utf-8")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        else:
            send(handler)

    with serving(answer) as (url, requests):
        path = fetch(f"{url}/file.tar", MD5, tmp_path / "file.tar", progress=False)
    assert path.read_bytes() == CONTENT
    assert requests == ["/file.tar", "/moved.tar"]


def test_a_dropped_connection_is_tried_again(tmp_path):
    def answer(handler, number):
        if number < 3:
            send(handler, CONTENT[:1000], length=len(CONTENT))
        else:
            send(handler)

    with serving(answer) as (url, requests):
        assert fetch(f"{url}/f", MD5, tmp_path / "f", progress=False).read_bytes() == CONTENT
        assert len(requests) == 3
    with serving(lambda handler, _: send(handler, CONTENT[:1000], length=len(CONTENT))) as (url, requests):
        assert "could not be fetched" in attempt(url, tmp_path / "to", attempts=2)
        assert len(requests) == 2


def test_a_silent_server_times_out(tmp_path):
    silence = threading.Event()
    with serving(lambda handler, _: silence.wait(10)) as (url, requests):
        message = attempt(url, tmp_path / "to", attempts=2, timeout=0.1)
        silence.set()
    assert "timed out" in message
    assert len(requests) == 2


def test_nobody_there(tmp_path):
    with serving(lambda handler, _: None) as (url, _):
        pass
    message = attempt(url, tmp_path / "to", attempts=2)
    assert "set https_proxy" in message
    assert "refused" in message


def broken_writes(monkeypatch, error):
    """Let every write into a file of a download fail."""
    real = open

    def opened(file, mode="r", *arguments, **options):
        handle = real(file, mode, *arguments, **options)
        if "w" in mode and "b" in mode:
            handle.close()
            handle = mock.MagicMock()
            handle.__enter__.return_value.write.side_effect = error
            handle.write.side_effect = error
            handle.__exit__.return_value = False
        return handle

    monkeypatch.setattr(builtins, "open", opened)


def test_a_full_disk_while_writing(tmp_path, monkeypatch):
    broken_writes(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    with serving(lambda handler, _: send(handler)) as (url, requests):
        message = attempt(url, tmp_path / "to")
    assert "No space left" in message
    assert len(requests) == 1


def test_room_is_checked_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 2 * len(CONTENT))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    broken_writes(monkeypatch, AssertionError("something was written"))
    with serving(lambda handler, _: send(handler)) as (url, _):
        assert "not enough room" in attempt(url, tmp_path / "to")


def test_stopping_leaves_nothing(tmp_path, monkeypatch):
    broken_writes(monkeypatch, KeyboardInterrupt)
    with serving(lambda handler, _: send(handler)) as (url, _), pytest.raises(KeyboardInterrupt):
        fetch(f"{url}/f", MD5, tmp_path / "f", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_the_proxy_of_the_environment_is_used(tmp_path, monkeypatch):
    with serving(lambda handler, _: send(handler)) as (proxy, requests):
        monkeypatch.setenv("http_proxy", proxy)
        path = fetch("http://data.example/file.tar", MD5, tmp_path / "file.tar", progress=False)
    assert path.read_bytes() == CONTENT
    assert requests == ["http://data.example/file.tar"]  # a proxy is asked for whole addresses


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("findtta._extras.installed", lambda module: module != "pooch")
    with pytest.raises(MissingExtraError, match=r"\[data\]"):
        fetch("http://127.0.0.1:1/f", MD5, tmp_path / "f", progress=False)
    assert list(tmp_path.iterdir()) == []


def cifar_c_archive(tmp_path):
    folder = tmp_path / "archive" / "CIFAR-10-C"
    write_cifar_c(folder)
    return tar_bytes({f"CIFAR-10-C/{file.name}": file.read_bytes() for file in folder.iterdir()})


@pytest.fixture
def catalogue(monkeypatch):
    """Let the catalogue point at a server of this machine."""

    def point(name, url, contents):
        archives = {
            part: replace(
                PUBLISHED[name].archives[part],
                url=f"{url}/{part}.tar",
                md5=hashlib.md5(content).hexdigest(),
            )
            for part, content in contents.items()
        }
        changed = {**PUBLISHED, name: replace(PUBLISHED[name], archives=archives)}
        monkeypatch.setattr(published, "PUBLISHED", changed)

    return point


def serve_parts(contents):
    return serving(lambda handler, _: send(handler, contents[handler.path.strip("/").removesuffix(".tar")]))


def test_get_fetches_once_and_load_finds_it(tmp_path, monkeypatch, catalogue):
    contents = {"all": cifar_c_archive(tmp_path)}
    root = tmp_path / "root"
    with serve_parts(contents) as (url, requests):
        catalogue("cifar10-c", url, contents)
        folder = get("cifar10-c", root=root, progress=False)
        again = get("cifar10-c", root=root, progress=False)
    assert folder == again == root / "cifar10-c"
    assert requests == ["/all.tar"]
    assert list(root.iterdir()) == [folder]
    marker = read_marker(folder)
    assert (marker.name, marker.source) == ("cifar10-c", "published")
    assert marker.details["md5"] == {"all": hashlib.md5(contents["all"]).hexdigest()}
    monkeypatch.setenv("FINDTTA_DATA", str(root))
    dataset = load("cifar10-c")
    assert (dataset.name, dataset.generated, dataset.classes[3]) == ("cifar10-c", False, "cat")
    assert len(dataset.domains) == 10


def test_get_from_a_file_needs_no_network(tmp_path, catalogue):
    contents = {"all": cifar_c_archive(tmp_path)}
    catalogue("cifar10-c", "http://127.0.0.1:1", contents)
    file = tmp_path / "brought.tar"
    file.write_bytes(contents["all"])
    folder = get("cifar10-c", root=tmp_path / "root", from_files=[file], progress=False)
    assert (folder / "fog.npy").exists()
    assert file.exists()
    file.write_bytes(contents["all"][:-1])
    with pytest.raises(DownloadError, match=r"brought\.tar has the md5 .* none of those of the published"):
        get("cifar10-c", root=tmp_path / "other", from_files=[file])
    with pytest.raises(InputError, match="--from-file must name a file"):
        get("cifar10-c", root=tmp_path / "other", from_files=[tmp_path / "missing"])
    assert not (tmp_path / "other").exists()


def test_clean_sets_are_fetched_as_folders_of_pickles(tmp_path, catalogue):
    files, _ = cifar_pickles("cifar100")
    contents = {"all": tar_bytes({f"cifar-100-python/{n}": c for n, c in files.items()}, "w:gz")}
    with serve_parts(contents) as (url, _):
        catalogue("cifar100", url, contents)
        get("cifar100", root=tmp_path, progress=False)
    dataset = load("cifar100", root=tmp_path)
    assert (dataset.name, dataset.classes) == ("cifar100-c (generated)", ("ant", "bee", "cow"))


def test_imagenet_c_comes_in_parts(tmp_path, catalogue):
    contents = {
        part: tar_bytes({f"{prefix}{kind}/5/n1/a.JPEG": kind.encode()})
        for part, prefix, kind in [
            ("noise", "", "gaussian_noise"),
            ("blur", "blur/", "defocus_blur"),
            ("weather", "./", "fog"),
            ("digital", "", "contrast"),
            ("extra", "", "speckle_noise"),
        ]
    }
    with serve_parts(contents) as (url, requests):
        catalogue("imagenet-c", url, contents)
        folder = get("imagenet-c", root=tmp_path, parts=["noise"], progress=False)
        assert sorted(path.name for path in folder.iterdir()) == ["findtta.json", "gaussian_noise"]
        # What a run has moved but not recorded is replaced.
        (folder / "fog").mkdir()
        get("imagenet-c", root=tmp_path, progress=False)
        assert requests == ["/noise.tar", "/blur.tar", "/weather.tar", "/digital.tar"]
        get("imagenet-c", root=tmp_path, parts=["extra", "blur"], progress=False)
        assert requests[4:] == ["/extra.tar"]
    assert (folder / "fog" / "5" / "n1" / "a.JPEG").read_bytes() == b"fog"
    assert (folder / "defocus_blur" / "5" / "n1" / "a.JPEG").exists()
    assert set(read_marker(folder).details["md5"]) == set(contents)
    with pytest.raises(UnknownNameError, match=r"got 'noize'\. Did you mean 'noise'"):
        get("imagenet-c", root=tmp_path, parts=["noize"])
    file = tmp_path / "noise.tar"
    file.write_bytes(contents["noise"])
    with pytest.raises(OptionError, match="names 'blur', but none of the files"):
        get("imagenet-c", root=tmp_path, parts=["blur"], from_files=[file])


def evil_tar(kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("../escaped")
        if kind == "absolute link":
            info = tarfile.TarInfo("link")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        elif kind == "device":
            info = tarfile.TarInfo("device")
            info.type = tarfile.CHRTYPE
        archive.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["outside", "absolute link", "device"])
def test_archives_cannot_write_elsewhere(tmp_path, kind):
    path = tmp_path / "evil.tar"
    path.write_bytes(evil_tar(kind))
    with pytest.raises(DownloadError, match="could not be unpacked"):
        extract(path, tmp_path / "to" / "content", progress=False)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["evil.tar", "to"]


def test_a_python_that_cannot_unpack_safely_does_not_unpack(tmp_path, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(DownloadError, match=r"Python 3\.11\.4"):
        extract(tmp_path / "any.tar", tmp_path / "to")


def test_damaged_archives_leave_nothing(tmp_path, catalogue):
    whole = cifar_c_archive(tmp_path)
    for damaged in (whole[: len(whole) // 3], b"not a tar archive", tar_bytes({"x/readme": b"nothing else"})):
        contents = {"all": damaged}
        with serve_parts(contents) as (url, _):
            catalogue("cifar10-c", url, contents)
            with pytest.raises(DownloadError, match="Nothing was kept"):
                get("cifar10-c", root=tmp_path / "root", progress=False)
        assert list((tmp_path / "root").iterdir()) == []


def test_a_full_disk_while_unpacking_leaves_nothing(tmp_path, monkeypatch, catalogue):
    contents = {"all": cifar_c_archive(tmp_path)}
    real = tarfile.copyfileobj

    def full(source, target, length=None, *arguments, **options):
        if target is not None and length and length > 1000:
            target.write(source.read(100))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(source, target, length, *arguments, **options)

    monkeypatch.setattr(tarfile, "copyfileobj", full)
    with serve_parts(contents) as (url, _):
        catalogue("cifar10-c", url, contents)
        with pytest.raises(DownloadError, match=r"No space left .* Nothing was kept"):
            get("cifar10-c", root=tmp_path / "root", progress=False)
    assert list((tmp_path / "root").iterdir()) == []


def test_get_does_not_touch_what_it_does_not_know(tmp_path):
    mine = tmp_path / "cifar10-c"
    write_cifar_c(mine)
    with pytest.raises(DownloadError, match="does not say that it is complete"):
        get("cifar10-c", root=tmp_path)
    (mine / "findtta.json").write_text('{"name": "cifar10-c", "source": "generated"}')
    with pytest.raises(DownloadError, match="made by this package"):
        get("cifar10-c", root=tmp_path)
    assert (mine / "fog.npy").exists()
    with pytest.raises(UnknownNameError, match="Did you mean 'cifar10-c'"):
        get("cifar-10-c", root=tmp_path)


def test_what_killed_runs_left_is_removed_after_a_day(tmp_path, catalogue):
    contents = {"all": cifar_c_archive(tmp_path)}
    root = tmp_path / "root"
    old, new = root / ".cifar10-c-partial-old", root / ".cifar10-c-partial-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"half")
    os.utime(old, (0, 0))
    with serve_parts(contents) as (url, _):
        catalogue("cifar10-c", url, contents)
        get("cifar10-c", root=root, progress=False)
    assert not old.exists()
    assert new.exists()  # perhaps another run works there


def test_the_catalogue_is_as_published():
    assert set(PUBLISHED) == {"cifar10-c", "cifar100-c", "imagenet-c", "cifar10", "cifar100"}
    for entry in PUBLISHED.values():
        for archive in entry.archives.values():
            assert archive.url.startswith("https://")
            assert len(bytes.fromhex(archive.md5)) == 16
            assert archive.landmark
    assert PUBLISHED["cifar10-c"].archives["all"].md5 == "56bf5dcef84df0e2308c6dcbcbbd8499"
    assert PUBLISHED["cifar10-c"].archives["all"].file_name == "CIFAR-10-C.tar"
    assert [len(PUBLISHED[name].classes) for name in ("cifar10-c", "cifar100-c")] == [10, 100]
    assert list(PUBLISHED["cifar100-c"].classes) == sorted(PUBLISHED["cifar100-c"].classes)


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"HOME": "/h"}, "/h/.cache/findtta"),
        ("linux", {"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/findtta"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/findtta"),
        ("win32", {"HOME": "/h", "LOCALAPPDATA": "/a"}, "/a/findtta"),
        ("linux", {"HOME": "/h", "FINDTTA_DATA": "~/d"}, "/h/d"),
    ],
)
def test_where_data_are_kept(monkeypatch, platform, environment, expected):
    for name in ("XDG_CACHE_HOME", "FINDTTA_DATA", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert data_root() == Path(expected)
    assert data_root("/mine") == Path("/mine")
