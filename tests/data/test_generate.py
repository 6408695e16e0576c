"""Corrupted copies on disk: right, resumable, and never taken for published ones."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from findtta.data import corrupted
from findtta.data.corrupted import CorruptedDataset, Generation, generate
from findtta.data.metadata import read_marker
from findtta.data.open import load, read
from findtta.errors import InputError, OptionError, UnknownNameError, WorkerError
from make_datasets import InMemory, pictures, rows, write_cifar_c

KINDS = ["contrast", "gaussian_noise"]


def make(out, clean=None, **options):
    how = Generation(**{"corruptions": KINDS, **options})
    return generate("cifar10-c", clean or InMemory(), out, how, progress=False)


def visible(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_published_layout(tmp_path):
    clean = InMemory()
    out = make(tmp_path / "new" / "c", clean, seed=3)
    assert visible(out) == ["contrast.npy", "findtta.json", "gaussian_noise.npy", "labels.npy"]
    labels = np.load(out / "labels.npy")
    assert labels.tolist() == clean.truth.tolist() * 5
    assert labels.dtype == np.uint8
    noise = np.load(out / "gaussian_noise.npy")
    assert noise.shape == (50, 32, 32, 3)
    expected = CorruptedDataset(clean, seed=3)
    for severity in range(1, 6):
        block = noise[10 * (severity - 1) : 10 * severity]
        np.testing.assert_array_equal(block, expected.images(f"gaussian_noise@{severity}", np.arange(10)))


def test_the_result_is_marked_as_generated(tmp_path):
    clean = InMemory()
    out = make(tmp_path / "c", clean, seed=3, constants="imagenet")
    dataset = load(out)
    assert (dataset.name, dataset.generated, dataset.classes) == (
        "cifar10-c (generated)",
        True,
        ("cat", "dog", "owl"),
    )
    marker = json.loads((out / "findtta.json").read_text())
    assert marker["source"] == "generated"
    assert (marker["seed"], marker["constants"], marker["clean"]) == (3, "imagenet", "tiny")
    assert marker["clean_identity"] == clean.identity
    assert marker["version"]
    assert marker["severities"] == {kind: [1, 2, 3, 4, 5] for kind in KINDS}


def test_blocks_smaller_than_the_set_and_workers_change_nothing(tmp_path, monkeypatch):
    whole = make(tmp_path / "whole", severities=[5])
    monkeypatch.setitem(corrupted._ROWS_AT_ONCE, "arrays", 3)
    parts = make(tmp_path / "parts", severities=[5])
    for kind in KINDS:
        assert (whole / f"{kind}.npy").read_bytes() == (parts / f"{kind}.npy").read_bytes()


@pytest.mark.slow
def test_workers_make_the_same_files(tmp_path):
    alone = make(tmp_path / "alone", severities=[4], corruptions=["gaussian_noise"])
    shared = make(tmp_path / "shared", severities=[4], corruptions=["gaussian_noise"], workers=2)
    assert (alone / "gaussian_noise.npy").read_bytes() == (shared / "gaussian_noise.npy").read_bytes()
    assert multiprocessing.active_children() == []


def test_only_the_severities_asked_for_are_domains_and_more_can_be_added(tmp_path):
    clean = InMemory()
    out = make(tmp_path / "c", clean, severities=[5, 2])
    assert read(out).domains == ("gaussian_noise@2", "gaussian_noise@5", "contrast@2", "contrast@5")
    made = CountedRows(clean)
    make(out, made, severities=[3], corruptions=["contrast"])
    assert made.rows == 10
    dataset = read(out)
    assert dataset.domains == ("gaussian_noise@2", "gaussian_noise@5", "contrast@2", "contrast@3", "contrast@5")
    expected = CorruptedDataset(clean)
    for domain in dataset.domains:
        np.testing.assert_array_equal(dataset.images(domain, rows(1, 9)), expected.images(domain, rows(1, 9)))


class CountedRows(InMemory):
    """Counts the images that are asked for (other than for its identity)."""

    def __init__(self, like, stop_after=None):
        super().__init__()
        assert (self.pixels == like.pixels).all()
        _ = self.identity
        self.rows, self.stop_after = 0, stop_after

    def images(self, domain, rows):
        if getattr(self, "stop_after", None) is not None and self.rows >= self.stop_after:
            raise KeyboardInterrupt
        if hasattr(self, "rows"):
            self.rows += len(rows)
        return super().images(domain, rows)


@pytest.mark.parametrize("stop_after", [0, 30, 50, 70])
def test_a_stopped_run_is_continued(tmp_path, stop_after):
    expected = make(tmp_path / "expected")
    clean = InMemory()
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "c", CountedRows(clean, stop_after))
    finished = [path.stem for path in (tmp_path / "c").glob("*.npy") if path.stem != "labels"]
    assert finished == (["contrast"] if stop_after >= 50 else [])
    if finished:
        assert {domain.partition("@")[0] for domain in read(tmp_path / "c").domains} == set(finished)
    rest = CountedRows(clean)
    make(tmp_path / "c", rest)
    assert rest.rows == 100 - stop_after
    assert visible(tmp_path / "c") == visible(expected)
    for name in visible(expected):
        if name.endswith(".npy"):
            assert (tmp_path / "c" / name).read_bytes() == (expected / name).read_bytes(), name
    nothing = CountedRows(clean)
    make(tmp_path / "c", nothing)
    assert nothing.rows == 0


@pytest.mark.parametrize("damage", ["truncated", "no record", "missing"])
def test_a_damaged_partial_file_is_begun_anew(tmp_path, damage):
    expected = make(tmp_path / "expected", corruptions=["contrast"])
    out = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        make(out, CountedRows(InMemory(), 20), corruptions=["contrast"])
    partial, marker = out / "contrast.npy.partial", out / "findtta.json"
    content = json.loads(marker.read_text())
    assert content["severities"] == {"contrast": [1, 2]}
    if damage == "truncated":
        partial.write_bytes(partial.read_bytes()[:5000])
    elif damage == "no record":
        marker.write_text(json.dumps({**content, "severities": {}}))
    else:
        partial.unlink()
    make(out, corruptions=["contrast"])
    assert (out / "contrast.npy").read_bytes() == (expected / "contrast.npy").read_bytes()
    assert not list(out.glob("*.partial"))


def test_a_file_that_was_finished_but_not_recorded_is_not_trusted(tmp_path):
    out = make(tmp_path / "c", corruptions=["contrast"], severities=[5])
    marker = json.loads((out / "findtta.json").read_text())
    (out / "findtta.json").write_text(json.dumps({**marker, "severities": {}}))
    again = CountedRows(InMemory())
    make(out, again, corruptions=["contrast"], severities=[5])
    assert again.rows == 10
    assert read(out).domains == ("contrast@5",)


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_that_looks_finished(tmp_path):
    script = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from make_datasets import InMemory
from findtta.data.corrupted import Generation, generate

class Killed(InMemory):
    calls = 0
    def images(self, domain, rows):
        self.calls += 1
        if self.calls > 4:  # one for the identity, three severities
            os.kill(os.getpid(), 9)
        return super().images(domain, rows)

generate("cifar10-c", Killed(), Path(sys.argv[1]), Generation(corruptions=["contrast"]), progress=False)
"""
    out, here = tmp_path / "c", str(Path(__file__).parents[1])
    ended = subprocess.run([sys.executable, "-c", script, str(out), here], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (out / "contrast.npy").exists()
    assert read_marker(out).generated
    rest = CountedRows(InMemory())
    make(out, rest, corruptions=["contrast"])
    assert rest.rows == 20
    expected = make(tmp_path / "expected", corruptions=["contrast"])
    assert (out / "contrast.npy").read_bytes() == (expected / "contrast.npy").read_bytes()


def test_published_data_are_never_written_to(tmp_path):
    folder = tmp_path / "c"
    write_cifar_c(folder)
    with pytest.raises(InputError, match="holds other files, perhaps published data"):
        make(folder)
    (folder / "findtta.json").write_text('{"name": "cifar10-c", "source": "published"}')
    with pytest.raises(InputError, match="holds the published cifar10-c"):
        make(folder)
    assert visible(folder) == ["findtta.json", "fog.npy", "gaussian_noise.npy", "labels.npy"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"seed": 1}, "seed 0, but now it is 1"),
        ({"constants": "imagenet"}, "constants None"),
        ({"clean": InMemory(count=11)}, "clean_identity"),
        ({"layout": "folders"}, "layout 'arrays'"),
    ],
)
def test_other_settings_need_another_folder(tmp_path, options, what):
    make(tmp_path / "c", corruptions=["contrast"], severities=[1])
    with pytest.raises(InputError, match=what):
        make(tmp_path / "c", **options)


def test_options_are_checked_first(tmp_path):
    with pytest.raises(UnknownNameError, match=r"got 'fgo'\. Did you mean 'fog'"):
        make(tmp_path / "c", corruptions=["fgo"])
    for options in ({"severities": [6]}, {"severities": []}, {"corruptions": []}, {"workers": 0}):
        with pytest.raises(OptionError, match=r"severities|workers"):
            make(tmp_path / "c", **options)
    with pytest.raises(UnknownNameError, match="constants must be one of"):
        make(tmp_path / "c", constants="mars")
    assert not (tmp_path / "c").exists()


def test_large_images_become_the_layout_of_imagenet_c(tmp_path):
    clean = InMemory(count=4, side=128)
    # Smooth, so that JPEG changes little.
    clean.pixels = np.broadcast_to(np.arange(128, dtype=np.uint8)[:, None, None], (4, 128, 128, 3)).copy()
    how = Generation(corruptions=["contrast"], severities=[1, 5])
    out = generate("imagenet-c", clean, tmp_path / "c", how, progress=False)
    assert visible(out) == ["contrast", "findtta.json"]
    assert visible(out / "contrast") == ["1", "5"]
    dataset = load(out)
    assert (dataset.name, dataset.generated) == ("imagenet-c (generated)", True)
    assert dataset.domains == ("contrast@1", "contrast@5")
    assert dataset.labels("contrast@5").tolist() == [0, 0, 1, 2]  # by class
    expected = CorruptedDataset(clean).images("contrast@5", rows(0, 3, 1, 2)).astype(int)
    assert np.abs(dataset.images("contrast@5", np.arange(4)).astype(int) - expected).max() <= 3
    with Image.open(out / "contrast" / "5" / "cat" / "00000000.JPEG") as image:
        assert image.format == "JPEG"
    again = load(generate("imagenet-c", clean, out, how, progress=False))
    assert again.domains == dataset.domains


def test_folders_are_continued_image_by_image(tmp_path, monkeypatch):
    monkeypatch.setitem(corrupted._ROWS_AT_ONCE, "folders", 2)
    out, options = tmp_path / "c", {"layout": "folders", "corruptions": ["contrast"], "severities": [3]}
    with pytest.raises(KeyboardInterrupt):
        make(out, CountedRows(InMemory(), 4), **options)
    assert not (out / "contrast" / "3").exists()
    rest = CountedRows(InMemory())
    make(out, rest, **options)
    assert rest.rows == 6
    assert len(list((out / "contrast" / "3").rglob("*.JPEG"))) == 10
    assert not list(out.rglob("*.partial"))


def test_class_names_that_cannot_be_folders_become_numbers(tmp_path):
    clean = InMemory(classes=("a/b", "..", ".c"))
    out = make(tmp_path / "c", clean, layout="folders", corruptions=["contrast"], severities=[1])
    assert visible(out / "contrast" / "1") == ["0000", "0001", "0002"]
    assert read(out).labels("contrast@1").tolist() == sorted(clean.truth.tolist())


class Broken(InMemory):
    """Fails, or dies, when the images are asked for in another process."""

    def __init__(self, deadly):
        super().__init__()
        self.home, self.deadly = os.getpid(), deadly

    def images(self, domain, rows):
        if os.getpid() != self.home:
            if self.deadly:
                os._exit(7)
            raise ValueError("no such luck")
        return super().images(domain, rows)


@pytest.mark.slow
@pytest.mark.parametrize(("deadly", "message"), [(False, "no such luck"), (True, "ended early")])
def test_failing_workers_are_reported_and_stopped(tmp_path, deadly, message):
    with pytest.raises(WorkerError if deadly else ValueError, match=message):
        make(tmp_path / "c", Broken(deadly), workers=2)
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "c" / "contrast.npy").exists()


def nobody_left(group):
    """Whether all processes of a group end soon."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_its_workers(tmp_path):
    np.savez(tmp_path / "clean.npz", images=pictures(2000), labels=np.zeros(2000, int))
    command = [sys.executable, "-m", "data_command", "make", "mine-c", "--from", str(tmp_path / "clean.npz")]
    command += ["--output", str(tmp_path / "c"), "--workers", "2"]
    (tmp_path / "data_command.py").write_text(
        "import argparse, sys\n"
        "from findtta.cli import data\n"
        "if __name__ == '__main__':\n"
        "    parser = argparse.ArgumentParser()\n"
        "    data.add_arguments(parser)\n"
        "    try:\n"
        "        data.run(parser.parse_args())\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        begun = time.monotonic() + 200
        while not list((tmp_path / "c").glob("*.partial")) and time.monotonic() < begun:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert nobody_left(process.pid)
