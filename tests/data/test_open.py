from pathlib import Path

import numpy as np
import pytest

from findtta.data.corrupted import CorruptedDataset
from findtta.data.open import load, load_as_is
from findtta.errors import InputError, OptionError, UnknownNameError
from make_datasets import cifar_pickles, pictures, rows, write_cifar_c, write_files, write_images


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setenv("FINDTTA_DATA", str(folder))
    return folder


def test_shapes_need_nothing():
    dataset = load("shapes", count=20, seed=5)
    assert (dataset.name, dataset.generated, len(dataset.domains)) == ("shapes-c (generated)", True, 96)
    assert dataset.labels("fog@5").shape == (20,)
    other = load("shapes", count=20, seed=6)
    assert (dataset.images("clean", rows(3)) != other.images("clean", rows(3))).any()
    assert load_as_is("shapes", count=20).domains == ("clean",)
    train = load("shapes", count=20, seed=5, split="train")
    assert (dataset.images("clean", rows(3)) != train.images("clean", rows(3))).any()
    with pytest.raises(OptionError, match=r"cuont is not an option of shapes\. Did you mean 'count'"):
        load("shapes", cuont=3)


@pytest.mark.parametrize("as_path", [str, Path])
def test_clean_sets_get_their_drift_made(tmp_path, as_path):
    np.savez(tmp_path / "d.npz", images=pictures(3), labels=[0, 1, 0])
    dataset = load(as_path(tmp_path / "d.npz"), seed=4, constants="imagenet")
    assert isinstance(dataset, CorruptedDataset)
    assert (dataset.seed, dataset.constants) == (4, "imagenet")
    assert isinstance(load(write_files(tmp_path / "c", cifar_pickles()[0])), CorruptedDataset)
    write_images(tmp_path / "photos", ["cat/1", "dog/1"])
    assert load(tmp_path / "photos", image_size=32).image_size == (32, 32)


def test_sets_with_domains_stay_as_they_are(tmp_path):
    write_cifar_c(tmp_path / "c")
    assert not load(tmp_path / "c").generated
    for option in ({"seed": 0}, {"constants": "cifar"}):
        with pytest.raises(OptionError, match="is for drift made on the fly"):
            load(tmp_path / "c", **option)


def test_fetched_sets_are_found_by_name(root, tmp_path):
    with pytest.raises(InputError, match="Fetch it with: findtta data get cifar10-c"):
        load("cifar10-c")
    write_cifar_c(root / "CIFAR-10-C")  # as the archive extracts, put there by hand
    assert load("cifar10-c").name == "CIFAR-10-C"
    write_cifar_c(tmp_path / "elsewhere" / "cifar10-c")
    assert load("cifar10-c", root=tmp_path / "elsewhere").name == "cifar10-c"


def test_generated_sets_have_names_of_their_own(root):
    write_cifar_c(root / "cifar10-c-generated")
    with pytest.raises(InputError, match="There is 'cifar10-c-generated', made by this package"):
        load("cifar10-c")
    assert load("cifar10-c-generated").name == "cifar10-c-generated"
    with pytest.raises(UnknownNameError, match="Did you mean 'cifar10-c-generated'"):
        load("cifar10-c-generatd")


def test_a_path_object_is_never_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "shapes", ["cat/1"])
    assert load(Path("shapes")).classes == ("cat",)
    assert load("./shapes").classes == ("cat",)
    assert "star" in load("shapes").classes


def test_names_that_do_not_exist():
    with pytest.raises(UnknownNameError, match=r"'shape' is neither\. Did you mean 'shapes'") as caught:
        load("shape")
    assert "cifar100-c" in str(caught.value)


@pytest.mark.parametrize("source", ["data/cifar", "missing.npz", "./shape", Path("shapes-not-here")])
def test_paths_that_do_not_exist(source):
    with pytest.raises(InputError, match="does not exist") as caught:
        load(source)
    assert "domain/class/image" in str(caught.value)
