"""Inputs at URLs: what is read, that reads overlap, and what is said when it is not there."""

import io
import json
import threading
import time
from contextlib import closing
from functools import partial

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from photos import errors, files, fill, png, rows

from findtta.errors import InputError, OptionError
from findtta.images import ImageLimits, Preprocessing
from findtta.models import load
from findtta.predict import Settings, predict
from findtta.predict.compute import Reader
from findtta.predict.prefetch import READS
from findtta.predict.sources import open_source


@pytest.fixture(scope="module")
def settings():
    model = load("shapes-resnet26")
    return partial(Settings, model=model, batch_size=4, block_size=8, format="jsonl")


@pytest.fixture
def store():
    """The filesystem of this process that holds ``memory://``."""
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def upload(store, folder, url):
    store.put(str(folder), url, recursive=True)


def names(url, **options):
    with closing(open_source(url, **options)) as source:
        return [name for name, _ in source.part(0, len(source)).entries()]


def parquet(**columns):
    arrow = pytest.importorskip("pyarrow")
    tables = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    tables.write_table(arrow.table(columns), file, row_group_size=3)
    return file.getvalue()


def test_a_folder_in_a_store_gives_the_predictions_of_a_local_one(store, settings, tmp_path):
    photos = fill(tmp_path / "in", 13, broken=(5, 9))
    fill(photos / "b" / "deep", 3)
    fill(photos / "a b", 2)
    fill(photos / ".cache", 1)
    (photos / ".hidden.png").write_bytes(png(0))
    (photos / "notes.txt").write_text("no image")
    upload(store, photos, "memory://bucket/in")
    predict(photos, tmp_path / "local", settings())
    for url in ("memory://bucket/in", "memory://bucket/in/", photos.as_uri()):
        out = tmp_path / str(hash(url))
        summary = predict(url, out, settings())
        assert (summary.images, summary.skipped, summary.blocks_now) == (18, 2, 3)
        local, remote = files(tmp_path / "local"), files(out)
        manifests = [json.loads(folder.pop("manifest.json")) for folder in (local, remote)]
        assert remote == local
        listings = [manifest.pop("listing") for manifest in manifests]
        assert manifests[0] == manifests[1]
        assert (listings[0] == listings[1]) == url.startswith("file:")
    assert predict("memory://bucket/in", tmp_path / str(hash("memory://bucket/in")), settings()).blocks_now == 0


def test_a_list_may_hold_urls_and_be_at_one(store, settings, tmp_path):
    photos = fill(tmp_path / "a b", 2)
    upload(store, fill(tmp_path / "in", 3), "memory://bucket/in")
    lines = ["in/0001.png", "memory://bucket/in/0002.png", "in/gone.png", (photos / "0001.png").as_uri()]
    store.pipe_file("/bucket/list.txt", "\r\n".join(lines).encode())
    (tmp_path / "list.txt").write_text("\n".join(["a b/0000.png", *lines[1:]]))
    for url, first in (("memory://bucket/list.txt", "in/0001.png"), (str(tmp_path / "list.txt"), "a b/0000.png")):
        out = tmp_path / f"out {first[0]}"
        assert predict(url, out, settings()).skipped == 1
        assert [row["path"] for row in rows(out)] == [first, lines[1], lines[3]]
        assert [(row["path"], row["code"]) for row in errors(out)] == [("in/gone.png", "unreadable")]


def test_parquet_in_a_store(store, settings, tmp_path):
    photos = fill(tmp_path / "in", 7)
    upload(store, photos, "memory://bucket/in")
    (tmp_path / "tables" / "a").mkdir(parents=True)
    (tmp_path / "tables" / "b.parquet").write_bytes(parquet(image=[png(number) for number in range(4)]))
    (tmp_path / "tables" / "a" / "c.parquet").write_bytes(parquet(image=[png(4), png(5), png(6)]))
    upload(store, tmp_path / "tables", "memory://bucket/tables")
    # As in a folder of images, files come before subfolders.
    expected = [f"b.parquet#{row}" for row in range(4)] + [f"a/c.parquet#{row}" for row in range(3)]
    assert names("memory://bucket/tables") == names(tmp_path / "tables") == expected
    assert names("memory://bucket/tables/b.parquet") == expected[:4]
    paths = [f"in/{number:04d}.png" for number in range(6)] + ["memory://bucket/in/0006.png"]
    store.pipe_file("/bucket/paths.parquet", parquet(image=paths))
    predict(photos, tmp_path / "local", settings())
    for number, (url, named) in enumerate(
        [("memory://bucket/tables", expected), ("memory://bucket/paths.parquet", paths)]
    ):
        predict(url, tmp_path / f"out{number}", settings())
        found = rows(tmp_path / f"out{number}")
        assert [row.pop("path") for row in found] == named
        assert found == [{name: row[name] for name in row if name != "path"} for row in rows(tmp_path / "local")]


def test_a_changed_object_is_noticed(store, settings, tmp_path):
    upload(store, fill(tmp_path / "in", 3), "memory://bucket/in")
    predict("memory://bucket/in", tmp_path / "out", settings())
    content = store.cat_file("/bucket/in/0001.png")
    store.pipe_file("/bucket/in/0001.png", content[::-1])  # of the same size
    with pytest.raises(OptionError, match=r"listing was '.*' and is "):
        predict("memory://bucket/in", tmp_path / "out", settings())


def test_reads_overlap_each_other_and_the_model_within_bounds(store, tmp_path, monkeypatch):
    upload(store, fill(tmp_path / "in", 200), "memory://bucket/in")
    lock, begun, at_once, most = threading.Lock(), 0, 0, 0
    original = MemoryFileSystem.cat_file

    def slow(self, path, start=None, end=None):
        nonlocal begun, at_once, most
        with lock:
            begun, at_once = begun + 1, at_once + 1
            most = max(most, at_once)
        time.sleep(0.05)
        with lock:
            at_once -= 1
        return original(self, path, start=start, end=end)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", slow)
    with closing(open_source("memory://bucket/in")) as source:
        batches = Reader(8, Preprocessing(size=(32, 32)), ImageLimits()).batches([source.part(0, 200)])
        next(batches)
        seen = None
        while seen != begun or at_once:  # nothing asks for more, until nothing is read any more
            seen = begun
            time.sleep(0.1)
        # One batch in use, one ready, and as many as are read at once.
        assert 16 + READS <= begun <= 16 + READS + 2
        assert READS // 2 < most <= READS
        assert sum(len(batch.images) for batch in batches) == 192
    assert begun == 200


def refuse(error, *, at):
    """A method of the filesystem that raises an error at one path."""

    def method(original):
        def replaced(self, path, *arguments, **options):
            if self._strip_protocol(path) == at:
                raise error
            return original(self, path, *arguments, **options)

        return replaced

    return method


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nonsense://bucket/x", r"'nonsense://bucket/x' cannot be read \(Protocol not known: nonsense\)"),
        ("lacking://bucket/x", r"'lacking://bucket/x' cannot be read \(Install lackingfs to access Lacking\)"),
        ("memory://empty", "'memory:///empty' holds no images .* and no Parquet files"),
        ("memory://bucket/gone", "'memory:///bucket/gone' does not exist; give a folder"),
        ("memory://bucket/gone.parquet", "'memory:///bucket/gone.parquet' does not exist; give a folder"),
        ("memory://bucket/broken.parquet", r"broken.parquet' cannot be read as Parquet \(.*magic bytes"),
        ("memory://bucket/list.txt", r"'nonsense://x.png' cannot be read \(Protocol not known"),
        ("memory://bucket/film.mp4", "got the file 'film.mp4'"),
        ("memory://bucket/secret", r"'memory:///bucket/secret' cannot be read \(Access Denied\)"),
        ("memory://bucket", r"'memory:///bucket/secret' cannot be read \(Access Denied\)"),
    ],
)
def test_inputs_that_cannot_be_used_give_one_line(store, settings, tmp_path, monkeypatch, url, told):
    lacking = {"class": "lackingfs.FileSystem", "err": "Install lackingfs to access Lacking"}
    monkeypatch.setitem(known_implementations, "lacking", lacking)
    denied = refuse(PermissionError("Access Denied"), at="/bucket/secret")
    monkeypatch.setattr(MemoryFileSystem, "ls", denied(MemoryFileSystem.ls))
    store.mkdir("/empty")
    for name, content in (
        ("a.png", png(0)),
        ("secret/b.png", png(1)),
        ("broken.parquet", b"PAR1 or not"),
        ("list.txt", b"nonsense://x.png"),
        ("film.mp4", b"x"),
    ):
        if url != "memory://bucket" or name.endswith("png"):
            store.pipe_file(f"/bucket/{name}", content)
    with pytest.raises((InputError, OptionError), match=told) as caught:
        predict(url, tmp_path / "out", settings())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [PermissionError("Access Denied"), ConnectionError("Connection lost")])
def test_a_store_that_fails_stops_the_run_which_continues_later(store, settings, tmp_path, monkeypatch, error):
    photos = fill(tmp_path / "in", 21)
    upload(store, photos, "memory://bucket/in")
    # An image that could be read a minute later must not be recorded as unreadable for ever.
    with monkeypatch.context() as patch:
        failing = refuse(error, at="/bucket/in/0017.png")
        for method in ("cat_file", "info"):
            patch.setattr(MemoryFileSystem, method, failing(getattr(MemoryFileSystem, method)))
        told = rf"0017.png' cannot be read \({error}\). Finished blocks are kept: run the same command again"
        with pytest.raises(InputError, match=told):
            predict("memory://bucket/in", tmp_path / "out", settings())
    again = predict("memory://bucket/in", tmp_path / "out", settings())
    assert (again.blocks_before, again.blocks_now, again.skipped) == (2, 1, 0)
    predict(photos, tmp_path / "local", settings())
    assert rows(tmp_path / "out") == rows(tmp_path / "local")


def test_objects_that_are_empty_or_too_large_are_recorded(store, settings, tmp_path, monkeypatch):
    original = MemoryFileSystem.cat_file

    def like_s3(self, path, start=None, end=None):
        if self.info(path)["size"] == 0:
            raise OSError("The requested range is not satisfiable")
        return original(self, path, start=start, end=end)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", like_s3)
    for name, content in (("a.png", b""), ("b.png", png(1)), ("c.png", png(2) + bytes(2**20))):
        store.pipe_file(f"/bucket/{name}", content)
    assert predict("memory://bucket", tmp_path / "out", settings(max_image_mb=1)).skipped == 2
    assert [(row["path"], row["code"]) for row in errors(tmp_path / "out")] == [
        ("a.png", "empty"),
        ("c.png", "too_many_bytes"),
    ]


def test_the_output_is_a_folder_of_this_machine(settings, tmp_path):
    with pytest.raises(
        OptionError, match=r"output must be a folder on this machine.*got the URL 's3://bucket/out'"
    ):
        predict(fill(tmp_path / "in", 1), "s3://bucket/out", settings())
