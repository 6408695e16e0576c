import os
import shutil
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from photos import fill, png

from findtta.errors import InputError, MissingExtraError, OptionError, UnknownNameError
from findtta.images import ImageLimits, Preprocessing
from findtta.predict.compute import Reader
from findtta.predict.sources import Source, open_list, open_source


def names(path: Path, **options) -> list[str]:
    with closing(open_source(path, **options)) as source:
        return [name for name, _ in source.part(0, len(source)).entries()]


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_a_folder_is_listed_with_all_folders_in_it_by_name(tmp_path):
    wanted = ["a.webp", "日本.gif", "a b/z.png", "a b/ü.JPEG", "b/same.png", "b/deep/er/1.tif", "c/same.jfif"]
    touch(*(tmp_path / name for name in wanted))
    touch(
        tmp_path / "notes.txt", tmp_path / ".hidden.png", tmp_path / ".cache" / "thumb.png", tmp_path / "x.jpg.bak"
    )
    assert names(tmp_path) == wanted


def test_links_are_followed_but_never_in_circles(tmp_path):
    touch(tmp_path / "in" / "a" / "1.png", tmp_path / "elsewhere" / "2.png")
    (tmp_path / "in" / "a" / "up").symlink_to(tmp_path / "in", target_is_directory=True)
    (tmp_path / "in" / "b").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "in" / "c").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "in" / "self").symlink_to(tmp_path / "in" / "self")
    (tmp_path / "in" / "self.png").symlink_to(tmp_path / "in" / "self.png")
    (tmp_path / "in" / "nowhere.png").symlink_to(tmp_path / "gone.png")
    # The folder that two links lead to is listed once; links to nowhere are to be reported as unreadable.
    assert names(tmp_path / "in") == ["nowhere.png", "self.png", "a/1.png", "b/2.png"]


def test_what_is_not_there_or_empty_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist; give a folder"):
        open_source(tmp_path / "nothing")
    with pytest.raises(InputError, match="holds no images"):
        open_source(tmp_path)
    touch(tmp_path / "film.mp4")
    with pytest.raises(OptionError, match=r"got the file 'film.mp4'"):
        open_source(tmp_path / "film.mp4")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match="holds no images"):
        open_source(tmp_path / "empty.txt")


def test_a_folder_that_may_not_be_listed_stops_the_run(tmp_path, monkeypatch):
    touch(tmp_path / "a.png", tmp_path / "private" / "b.png")
    listed = os.scandir

    def refuse(path):
        if Path(path).name == "private":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"private' cannot be listed \(Permission denied\)"):
        open_source(tmp_path)


def test_files_that_cannot_be_read_say_why(tmp_path):
    (tmp_path / "large.png").write_bytes(b"x" * 11)
    touch(tmp_path / "broken.png")
    os.mkfifo(tmp_path / "pipe.png")  # reading it would wait forever
    (tmp_path / "folder.png").mkdir()
    codes = {
        "broken.png": "not_an_image",
        "large.png": "too_many_bytes",
        "pipe.png": "not_a_file",
        "folder.png": "not_a_file",
        "gone.png": "unreadable",
        "null\0byte.png": "unreadable",
    }
    with closing(open_list(tmp_path, codes)) as source:
        (batch,) = Reader(9, Preprocessing(size=(1, 1)), ImageLimits(max_bytes=10)).batches([source.part(0, 9)])
    assert {record["path"]: record["code"] for record in batch.records} == codes
    assert all(record["error"].startswith("image: ") for record in batch.records)


def test_a_file_that_vanishes_from_a_folder_stops_the_run(tmp_path):
    touch(tmp_path / "a.png", tmp_path / "b.png")
    with closing(open_source(tmp_path)) as source:
        (tmp_path / "b.png").unlink()
        with pytest.raises(InputError, match=r"'b.png' was listed, but is gone. Finished blocks are kept"):
            list(source.part(0, 2).entries())


def test_a_list_may_begin_with_a_mark_of_its_encoding(tmp_path):
    (tmp_path / "mine.txt").write_text("a.png\n", encoding="utf-8-sig")
    with closing(open_source(tmp_path / "mine.txt")) as source:
        assert [name for name, _ in source.part(0, 1).entries()] == ["a.png"]


def test_a_path_that_no_system_takes_is_an_error_of_the_input():
    with pytest.raises(InputError, match=r"cannot be read .*too long"):
        open_source("x" * 5000)


def test_a_list_names_files_relative_to_itself(tmp_path):
    far = tmp_path / "far" / "a.png"
    touch(far, tmp_path / "lists" / "b.png")
    (tmp_path / "lists" / "mine.txt").write_text(f"b.png\r\n\n{far}\ngone.png\nb.png\n", encoding="utf-8")
    with closing(open_source(tmp_path / "lists" / "mine.txt")) as source:
        entries = list(source.part(0, 9).entries())
        assert len(source) == 4
        assert source.kind == "list"
    assert [content for _, content in entries] == [
        tmp_path / "lists" / "b.png",
        far,
        tmp_path / "lists" / "gone.png",
        tmp_path / "lists" / "b.png",
    ]


def test_the_digest_follows_names_sizes_times_and_order(tmp_path):
    def digest(folder):
        with closing(open_source(folder)) as source:
            return source.digest

    fill(tmp_path / "one", 3)
    shutil.copytree(tmp_path / "one", tmp_path / "two")  # with the times of the files
    same = digest(tmp_path / "one")
    assert digest(tmp_path / "two") == same
    (tmp_path / "two" / "0001.png").rename(tmp_path / "two" / "0009.png")
    renamed = digest(tmp_path / "two")
    (tmp_path / "one" / "0001.png").write_bytes(b"")
    shorter = digest(tmp_path / "one")
    (tmp_path / "one" / "0000.png").write_bytes((tmp_path / "one" / "0000.png").read_bytes()[::-1])
    assert len({same, renamed, shorter, digest(tmp_path / "one")}) == 4


@given(st.lists(st.text(max_size=8), max_size=700), st.integers(0, 700), st.integers(0, 700))
def test_listings_give_back_any_names_by_position(texts, start, stop):
    with closing(open_list(Path("root"), texts)) as source:
        assert len(source) == len(texts)
        assert [name for name, _ in source.part(start, stop).entries()] == texts[start:stop]


def test_names_of_millions_of_images_do_not_stay_in_memory():
    files = (((f"{number:0200d}", 0), 1) for number in range(10_000))
    tracemalloc.start()
    with closing(Source("list", files, lambda spans: ((name, b"") for name, _, _ in spans))) as source:
        assert [name for name, _ in source.part(9_999, 10_010).entries()] == [f"{9_999:0200d}"]
        assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_names_that_are_not_text_can_be_written():
    class Made:
        start = 0

        def entries(self):
            yield os.fsdecode(b"caf\xe9 \xc3\xa9.png"), b""

    (batch,) = Reader(4, Preprocessing(size=(1, 1)), ImageLimits()).batches([Made()])
    assert [(record["path"], record["code"]) for record in batch.records] == [("caf\\xe9 é.png", "empty")]


@pytest.fixture
def arrow():
    pytest.importorskip("pyarrow.parquet")
    import pyarrow

    return pyarrow


def test_columns_of_bytes_of_paths_and_of_both(arrow, tmp_path):
    touch(tmp_path / "a.png")
    image = png(0)
    both = [
        {"bytes": image, "path": "x/1.png"},
        {"bytes": None, "path": "a.png"},
        {"bytes": image, "path": None},
        None,
    ]
    columns = {"image": both, "raw": [image, None, b"", image], "file": ["a.png", "b.png", None, "a.png"]}
    path = tmp_path / "data.parquet"
    arrow.parquet.write_table(arrow.table({**columns, "label": [1, 2, 3, 4]}), path)

    def contents(column):
        with closing(open_source(path, column)) as source:
            return list(source.part(0, 4).entries())

    assert contents("image") == [
        ("x/1.png", image),
        ("a.png", tmp_path / "a.png"),
        ("data.parquet#2", image),
        ("data.parquet#3", b""),
    ]
    assert [content for _, content in contents("raw")] == [image, b"", b"", image]
    assert [content for _, content in contents("file")] == [
        tmp_path / "a.png",
        tmp_path / "b.png",
        b"",
        tmp_path / "a.png",
    ]
    with pytest.raises(UnknownNameError, match=r"no column 'imag'. Did you mean 'image'?"):
        open_source(path, "imag")
    with pytest.raises(InputError, match=r"must hold bytes, paths or structs .* but holds int64"):
        open_source(path, "label")


@given(
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 90)), min_size=1, max_size=4),
    st.integers(1, 200),
    st.data(),
)
def test_any_rows_of_any_parquet_files_are_found(tmp_path_factory, files, size, data):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("tables")
    expected = []
    for number, (rows, group) in enumerate(files):
        cells = [b"%d-%d" % (number, row) for row in range(rows)]
        expected += cells
        table = arrow.table({"image": cells}, schema=arrow.schema([("image", arrow.binary())]))
        arrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=group)
    if not expected:
        with pytest.raises(InputError, match="have no rows"):
            open_source(folder)
        return
    with closing(open_source(folder)) as source:
        assert len(source) == len(expected)
        start = data.draw(st.integers(0, len(expected) - 1))
        part = source.part(start, start + size)
    assert part.start == start
    assert [content for _, content in part.entries()] == expected[start : start + size]


def test_folders_of_two_kinds_and_broken_tables_are_refused(arrow, tmp_path):
    (tmp_path / "b.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(InputError, match=r"b.parquet' cannot be read as Parquet"):
        open_source(tmp_path)
    touch(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"holds both Parquet files and images .*a.png.*b.parquet"):
        open_source(tmp_path)


def test_parquet_says_which_extra_it_needs(tmp_path, monkeypatch):
    touch(tmp_path / "data.parquet")
    monkeypatch.setattr("findtta._extras.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install .*\[ray\]"'):
        open_source(tmp_path / "data.parquet")


def test_parquet_at_a_uri(arrow, tmp_path):
    (tmp_path / "a b").mkdir()
    table = arrow.table({"image": [png(0), png(1)]})
    for name in ("2.parquet", "1.parquet"):
        arrow.parquet.write_table(table, tmp_path / "a b" / name)
    expected = [f"a b/{file}.parquet#{row}" for file in (1, 2) for row in (0, 1)]
    assert names(tmp_path.as_uri()) == names(tmp_path) == expected
    assert names((tmp_path / "a b" / "1.parquet").as_uri()) == ["1.parquet#0", "1.parquet#1"]
    with pytest.raises(InputError, match="nothing' does not exist"):
        open_source((tmp_path / "nothing").as_uri())


def test_a_table_that_breaks_while_it_is_read_stops_the_run(arrow, tmp_path):
    path = tmp_path / "data.parquet"
    arrow.parquet.write_table(arrow.table({"image": [png(0)]}), path)
    with closing(open_source(path)) as source:
        part = source.part(0, 1)
        path.write_bytes(b"PAR1")
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            list(part.entries())
