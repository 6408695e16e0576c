import argparse
import hashlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from findtta.cli import data
from findtta.data import published
from findtta.data.corrupted import Generation, generate
from findtta.data.open import load_as_is
from findtta.data.published import PUBLISHED
from findtta.errors import OptionError, UnknownNameError
from make_datasets import cifar_pickles, pictures, tar_bytes, write_cifar_c, write_images


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    folder = tmp_path / "root"
    monkeypatch.setenv("FINDTTA_DATA", str(folder))
    return folder


def run(*arguments):
    parser = argparse.ArgumentParser()
    data.add_arguments(parser)
    return data.run(parser.parse_args([str(argument) for argument in arguments]))


def test_get_make_and_show_one_after_another(tmp_path, root, monkeypatch, capsys):
    archive = tmp_path / "cifar-10-python.tar.gz"
    files, _ = cifar_pickles()
    archive.write_bytes(
        tar_bytes({f"cifar-10-batches-py/{name}": content for name, content in files.items()}, "w:gz")
    )
    known = replace(PUBLISHED["cifar10"].archives["all"], md5=hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(
        published, "PUBLISHED", {"cifar10": replace(PUBLISHED["cifar10"], archives={"all": known})}
    )

    assert run("get", "cifar10", "--from-file", archive, "--quiet") == 0
    assert f"cifar10 is in {root / 'cifar10'}" in capsys.readouterr().out
    make = ("make", "cifar10-c", "--corruptions", "contrast", "brightness", "--severities", 5, 1)
    assert run(*make) == 0
    captured = capsys.readouterr()
    assert f"cifar10-c (generated) is in {root / 'cifar10-c-generated'}" in captured.out
    assert "cifar10-c: 24 images, 0.1 MB, go to" in captured.err
    assert run("show", "cifar10-c-generated", "-o", tmp_path / "sheet.png", "--images", 1) == 0
    captured = capsys.readouterr()
    assert "cifar10-c (generated): 24 images of 32x32, 4 domains, 3 classes, drift generated" in captured.out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 2 * 32


def test_show_describes_published_data(tmp_path, capsys):
    write_cifar_c(tmp_path / "c")
    assert run("show", tmp_path / "c") == 0
    assert "c: 40 images of 32x32, 10 domains, 3 classes, drift from the data" in capsys.readouterr().out


def test_show_takes_domains_and_sizes(tmp_path, capsys):
    write_images(tmp_path / "pacs", ["photo/cat/1", "sketch/cat/1"], side=50)
    sheet = tmp_path / "sheet.png"
    assert run("show", tmp_path / "pacs", "-o", sheet, "--domains", "photo", "--image-size", 32) == 0
    assert "2 images of 32x32" in capsys.readouterr().out
    assert sheet.exists()
    with pytest.raises(UnknownNameError, match="phtoo"):
        run("show", tmp_path / "pacs", "-o", sheet, "--domains", "phtoo")
    for place in (tmp_path / "missing" / "sheet.png", tmp_path / "sheet.unknown"):
        with pytest.raises(OptionError, match="--output must be an image file that can be written"):
            run("show", tmp_path / "pacs", "-o", place)


def test_make_needs_to_know_the_clean_set(tmp_path):
    with pytest.raises(OptionError, match="--from must name the clean dataset"):
        run("make", "mine-c")


def test_make_scales_folders_of_images(tmp_path, capsys):
    write_images(tmp_path / "photos", ["cat/1", "dog/1"], side=50)
    options = ("--image-size", 32, "--resize", 40, "--corruptions", "contrast", "--severities", 1, "--quiet")
    assert run("make", "mine-c", "--from", tmp_path / "photos", "--output", tmp_path / "made", *options) == 0
    assert np.load(tmp_path / "made" / "contrast.npy").shape == (10, 32, 32, 3)
    assert capsys.readouterr().err == ""


def test_make_takes_the_extra_corruptions(tmp_path):
    np.savez(tmp_path / "d.npz", images=pictures(2), labels=[0, 1])
    options = ("--corruptions", "contrast", "--extra", "--severities", 1, "--quiet", "--constants", "cifar")
    assert run("make", "mine-c", "--from", tmp_path / "d.npz", "--output", tmp_path / "made", *options) == 0
    assert (tmp_path / "made" / "spatter.npy").exists()


def test_a_subcommand_is_needed(capsys):
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "ACTION" in capsys.readouterr().err


def test_lists_take_commas_and_spaces():
    from findtta.cli.flags import names

    assert names(["fog,snow", "contrast"]) == ["fog", "snow", "contrast"]
    assert names(None) is None


def test_make_asks_before_it_writes_much(root, monkeypatch, capsys):
    make = ("make", "shapes-c", "--corruptions", "contrast", "--severities", "5")
    with pytest.raises(OptionError, match="--yes must be given"):
        run("make", "shapes-c")  # of 2.3 GB, and nobody to ask
    told = capsys.readouterr().err
    assert f"750,000 images, 2.30 GB, go to {root / 'shapes-c-generated'}" in told
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setattr("findtta.cli.data._ASKS_FROM", 0)
    written = []
    monkeypatch.setattr("findtta.cli.data.generate", lambda name, *_, **__: written.append(name))
    for answer, code in (("", 1), ("n\n", 1), ("yes\n", 0)):
        monkeypatch.setattr("sys.stdin.readline", lambda answer=answer: answer)
        assert not written
        assert run(*make) == code
    assert len(written) == 1
    monkeypatch.setattr("sys.stdin.readline", lambda: pytest.fail("it asked"))
    assert run(*make, "--yes") == 0


def test_the_size_is_what_is_written(tmp_path):
    np.savez(tmp_path / "d.npz", images=pictures(4), labels=[0, 1, 0, 1])
    clean = load_as_is(tmp_path / "d.npz")
    how = Generation(corruptions=("contrast",))
    folder = generate("mine-c", clean, tmp_path / "made", how, progress=False)
    assert how.size(clean) == np.load(folder / "contrast.npy").nbytes
    assert how.images(clean) == 20
    assert Generation(layout="folders").size(clean) < Generation().size(clean)
