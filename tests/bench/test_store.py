import dataclasses
import json
import lzma
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.bench import Result
from findtta.bench.store import Store, archive
from findtta.errors import InputError, OptionError, UnknownNameError
from made_results import made, unplanned


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_result_comes_back_as_it_was_put(store):
    result = made(accuracy=12.345678901234567)
    assert store.put(result)
    assert names(store.folder) == [f"{result.digest}.json"]
    assert store.get(result.digest) == result
    assert list(store.all()) == [result]
    assert store.look_up(result.digest) == result
    assert Store(store.folder).get(result.digest) == result


def test_failed_runs_are_kept_but_are_not_done(store):
    done, failed = made(), made("tbn", status="failed")
    store.put(done)
    store.put(failed)
    assert {result.digest for result in store.all()} == {done.digest, failed.digest}
    assert [result.digest for result in store.all() if result.is_done] == [done.digest]
    assert store.get(failed.digest).error == failed.error


def test_done_takes_the_place_of_failed_and_never_the_reverse(store):
    failed, done, better = made(status="failed"), made(accuracy=1.0), made(accuracy=2.0)
    assert failed.digest == done.digest == better.digest
    assert store.put(failed)
    assert store.put(done)
    assert not store.put(failed)
    assert store.get(done.digest) == done
    assert store.put(better)
    assert store.get(done.digest) == better
    assert names(store.folder) == [f"{done.digest}.json"]


def test_a_missing_folder_reads_as_empty_and_is_not_made(store):
    assert list(store.all()) == []
    assert store.look_up("abc") is None
    assert not store.folder.exists()


def test_unknown_digests_are_named(store):
    with pytest.raises(UnknownNameError, match="no result 'abc'"):
        store.get("abc")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not the result of a run"),
        (b'{"format": 2, "digest', "not the result of a run"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b"5", "not the result of a run"),
        (b"[1, 2]", "not the result of a run"),
        (b"null", "not the result of a run"),
        (b"[" * 100_000, "maximum recursion depth"),
        (b'{"format": 9}', "another version"),
        (b'{"format": 2, "grid": []}', "unexpected keyword"),
        (b'{"format": 2, "digest": "0123", "status": "done", "spec": {}}', "config.data is missing"),
        (b'{"format": 2, "digest": "0123", "status": "gone", "spec": {}}', "got 'gone'"),
        (b'{"format": 2, "digest": "0123", "status": "failed", "spec": 3}', "spec must be a table"),
        (b'{"format": 2, "digest": "0123", "status": "failed", "spec": {}, "error": "x"}', "error"),
        (
            b'{"format": 2, "digest": "0123", "status": "failed", "spec": {}, "layers": {}}',
            "layers must be a list",
        ),
        (b'{"format": 2, "digest": "9999", "status": "failed", "spec": {}}', "holds the result '9999'"),
    ],
)
def test_files_that_hold_no_result_are_told_once_and_hide_nothing(store, content, reason):
    good = made()
    store.put(good)
    bad = store.folder / "0123.json"
    bad.write_bytes(content)
    for _ in range(2):
        assert list(store.all()) == [good]
        assert len(store.problems) == 1
        assert store.problems[0].startswith("0123.json: ")
        assert reason in store.problems[0]
    for read in (store.get, store.look_up):
        with pytest.raises(InputError, match=r"0123\.json.*Delete it"):
            read("0123")
    assert bad.read_bytes() == content
    bad.unlink()
    assert list(store.all()) == [good]
    assert store.problems == []


def test_a_good_result_takes_the_place_of_a_damaged_file(store):
    result = made(status="failed")
    store.put(result)
    (store.folder / f"{result.digest}.json").write_text("{")
    assert list(store.all()) == []
    assert store.problems
    assert store.put(result)
    assert list(store.all()) == [result]
    assert store.problems == []


def test_other_files_are_none_of_its_business(store):
    store.put(made())
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / ".hidden.json").write_text("{")
    (store.folder / "figures").mkdir()
    assert len(list(store.all())) == 1
    assert store.problems == []


def test_a_folder_named_like_a_result_is_a_problem_and_no_crash(store):
    store.folder.mkdir()
    (store.folder / "abcd.json").mkdir()
    assert list(store.all()) == []
    assert "abcd.json: it cannot be read" in store.problems[0]


@pytest.mark.parametrize("digest", ["", "../evil", "a/b", "a.b", "a" * 65, ".hidden"])
def test_digests_that_are_no_file_names_are_refused(store, digest):
    with pytest.raises(InputError, match="digest must be letters and digits"):
        store.put(unplanned(digest=digest))
    assert not store.folder.exists()


def test_require_writable_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    store = Store(tmp_path / "a" / "b")
    store.require_writable()
    assert names(store.folder) == []


def test_a_file_in_the_place_of_the_folder_is_one_clear_error(tmp_path):
    (tmp_path / "runs").write_text("")
    store = Store(tmp_path / "runs")
    for act in (store.require_writable, lambda: list(store.all())):
        with pytest.raises(OptionError, match=r"runs must be a folder .*FINDTTA_RUNS"):
            act()
    with pytest.raises(OptionError, match=r"runs/.*json' cannot be written .*name another folder"):
        store.put(made())


def test_an_unwritable_folder_is_one_clear_error(tmp_path, monkeypatch):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        if os.access(tmp_path, os.W_OK):  # nothing is unwritable for root

            def refuse(*_args, **_kwargs):
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr("tempfile.TemporaryFile", refuse)
        with pytest.raises(OptionError, match=r"can be written to, but .* is not \(Permission denied\)"):
            Store(tmp_path).require_writable()
    finally:
        tmp_path.chmod(0o700)


def test_a_disk_that_is_full_leaves_the_old_result_and_no_rubbish(store, monkeypatch):
    old = made(accuracy=1.0)
    store.put(old)

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OptionError, match="No space left on device"):
        store.put(made(accuracy=2.0))
    assert store.get(old.digest) == old
    assert names(store.folder) == [f"{old.digest}.json"]


def test_stale_temporary_files_are_cleaned_and_young_or_foreign_ones_are_not(store):
    store.put(made())
    stale, young, foreign = (
        store.folder / name for name in (".abcd.01234567.part", ".abce.01234567.part", ".mine.part")
    )
    for path in (stale, young, foreign):
        path.write_text("{")
    for path in (stale, foreign):
        os.utime(path, (time.time() - 7200,) * 2)
    assert len(list(store.all())) == 1
    store.require_writable()
    assert not stale.exists()
    assert young.exists()
    assert foreign.exists()
    assert store.problems == []


def test_the_default_folder_is_here_unless_the_environment_names_one(monkeypatch, tmp_path):
    monkeypatch.delenv("FINDTTA_RUNS", raising=False)
    assert Store().folder == Path("findtta-runs")
    monkeypatch.setenv("FINDTTA_RUNS", str(tmp_path / "mine"))
    assert Store().folder == tmp_path / "mine"
    assert Store("other").folder == Path("other")


def test_find_takes_the_first_characters(store):
    for digest in ("abcdef1", "abcdef2", "abcd", "ffff0"):
        store.put(unplanned(digest=digest))
    assert store.find("ffff").digest == "ffff0"
    assert store.find("abcdef2").digest == "abcdef2"
    assert store.find("abcd").digest == "abcd"
    with pytest.raises(UnknownNameError, match="2 results start with 'abcdef'"):
        store.find("abcdef")
    for prefix in ("0000", "fff", ""):
        with pytest.raises(UnknownNameError, match=f"4 results in .* got '{prefix}'"):
            store.find(prefix)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(fields=st.dictionaries(st.sampled_from(sorted(json.loads(made().to_json()))), plain))
def test_whatever_a_file_says_reading_does_not_raise(tmp_path_factory, fields):
    store = Store(tmp_path_factory.mktemp("runs"))
    document = json.loads(made().to_json()) | fields
    path = store.folder / f"{made().digest}.json"
    path.write_text(json.dumps(document))
    results = list(store.all())
    assert len(results) + len(store.problems) == 1
    assert all(isinstance(result, Result) for result in results)


WRITER = """
import sys
from findtta.bench.store import Store, archive
from made_results import made

store = Store(sys.argv[1])
store.require_writable()
print("ready", flush=True)
number = 0
while True:
    store.put(made(accuracy=float(number), seed=number % 7))
    number += 1
"""


@pytest.mark.slow
def test_a_kill_leaves_whole_results_and_at_most_hidden_files(store):
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.folder)], env=environment, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "ready\n"
        written, reader = 0.0, Store(store.folder)
        deadline = time.monotonic() + 200
        while written < 30 and time.monotonic() < deadline:  # read while it writes
            written = max([result.accuracy for result in reader.all()], default=0.0)
        writer.send_signal(signal.SIGKILL)
    assert reader.problems == []
    results = list(store.all())
    assert len(results) == 7
    assert store.problems == []
    visible = [name for name in names(store.folder) if not name.startswith(".")]
    assert visible == sorted(f"{result.digest}.json" for result in results)
    assert all(name.endswith(".part") for name in names(store.folder) if name.startswith("."))


def test_an_archive_is_read_like_a_folder(store, tmp_path):
    runs = [made(method, stream=stream) for method in ("source", "find") for stream in ("static", "crossmix")]
    runs.append(made("tbn", error={"type": "OSError", "message": "gone"}))
    path, again = tmp_path / "runs.jsonl.xz", tmp_path / "again.jsonl.xz"
    archive(runs, path)
    archive(reversed(runs), again)
    assert path.read_bytes() == again.read_bytes()
    read = Store(path)
    assert {run.digest: run for run in read.all()} == {run.digest: run for run in runs}
    assert read.find(runs[0].digest[:8]) == runs[0]
    assert read.look_up("none") is None
    with pytest.raises(OptionError, match="a folder that can be written to"):
        read.require_writable()


def test_an_archive_does_not_say_where_files_were(tmp_path):
    run = made("find")
    spec = {
        **run.spec,
        "data": "here/a.npz+there/b.npz",
        "weights": "here/w.pt",
        "model": "here/m.safetensors",
    }
    archive([dataclasses.replace(run, spec=spec)], tmp_path / "runs.jsonl.xz")
    (read,) = Store(tmp_path / "runs.jsonl.xz").all()
    assert (read.spec["data"], read.spec["weights"], read.spec["model"]) == (
        "a.npz+b.npz",
        "w.pt",
        "m.safetensors",
    )


@pytest.mark.parametrize("content", [b"", b"nonsense", lzma.compress(b"{"), lzma.compress(b"[]")])
def test_a_damaged_archive_is_one_clear_error(tmp_path, content):
    path = tmp_path / "runs.jsonl.xz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"archive .*runs\.jsonl\.xz' of results cannot be read"):
        list(Store(path).all())


def test_an_archive_has_measurements_beside_the_runs(store, tmp_path):
    run = made("find")
    probe = {"kind": "times", "spec": {"data": "here/a.npz"}}
    measured = {"digest": "m1", "probe": probe, "status": "done", "config": {}}
    store.require_writable()
    store.put(run)
    (store.folder / "probes").mkdir()
    (store.folder / "probes" / "m1.json").write_text(json.dumps(measured))
    archive(store.all(), tmp_path / "runs.jsonl.xz", store.measurements())
    read = Store(tmp_path / "runs.jsonl.xz")
    assert list(read.all()) == [run]
    assert [each["probe"]["spec"]["data"] for each in read.measurements()] == ["a.npz"]
