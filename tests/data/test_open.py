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


def test_first_rows_can_be_left_for_choosing_settings():
    whole, rest = load("shapes", count=20), load("shapes", count=20, first=15)
    assert rest.counts[0] == 5
    np.testing.assert_array_equal(rest.images("fog@5", rows(0, 4)), whole.images("fog@5", rows(15, 19)))
    assert rest.image_numbers(rows(0, 1), rows(2, 2)).tolist() == [17, 17]
    few = rest.pick(["fog", "fog+snow"], limit=3, seed=1)  # corruptions can still be added, images drawn
    assert set(few.image_numbers(rows(0, 0, 0), rows(0, 1, 2)).tolist()) <= {15, 16, 17, 18, 19}
    assert few.domains == ("fog@5", "fog+snow@5")
    for first in (20, -1, "5"):
        with pytest.raises(OptionError, match="first must be a whole number from 0 to 19, got"):
            load("shapes", count=20, first=first)


def test_several_datasets_are_one(tmp_path):
    np.savez(tmp_path / "photos.npz", images=pictures(3), labels=[0, 1, 0], classes=["cat", "dog"])
    np.savez(tmp_path / "other.npz", images=pictures(2, seed=1), labels=[0, 1], classes=["dog", "cat"])
    sketches = {"sketch": pictures(2, seed=2), "fog@5": pictures(2, seed=3)}
    np.savez(tmp_path / "drawn.npz", **sketches, labels=[1, 1], classes=["cat", "dog"])
    joined = load("+".join(str(tmp_path / f"{name}.npz") for name in ("photos", "other", "drawn")), seed=4)
    assert joined.name == "photos-c (generated)+other+drawn"
    assert joined.domains[:2] == ("clean", "gaussian_noise@1")
    assert joined.domains[-3:] == ("other", "drawn/fog@5", "sketch")
    assert joined.labels("other").tolist() == [1, 0]  # as the first dataset has them
    np.testing.assert_array_equal(joined.images("other", rows(1)), pictures(2, seed=1)[[1]])
    np.testing.assert_array_equal(joined.images("drawn/fog@5", rows(0)), sketches["fog@5"][[0]])
    alone = load(tmp_path / "photos.npz", seed=4)
    np.testing.assert_array_equal(joined.images("fog@5", rows(2)), alone.images("fog@5", rows(2)))
    # Other datasets show other images; drift is one of the first's.
    assert joined.image_numbers(rows(0, 96, 97), rows(1, 1, 1)).tolist() == [1, 4, 6]
    assert joined.pick(["fog+snow", "sketch"]).domains == ("fog+snow@5", "sketch")
    assert joined.pick().domains == alone.pick().domains
    with pytest.raises(UnknownNameError, match="'nowhere' is neither"):
        load(f"{tmp_path}/photos.npz+nowhere")


def test_datasets_that_do_not_fit_together(tmp_path):
    np.savez(tmp_path / "photos.npz", images=pictures(3), labels=[0, 1, 0], classes=["cat", "dog"])
    np.savez(tmp_path / "large.npz", images=pictures(2, side=40), labels=[0, 1], classes=["cat", "dog"])
    np.savez(tmp_path / "owls.npz", images=pictures(2), labels=[0, 1], classes=["owl", "dog"])
    with pytest.raises(InputError, match=r"images of one size, got \(32, 32\) for 'photos-c .* and \(40, 40\)"):
        load(f"{tmp_path}/photos.npz+{tmp_path}/large.npz")
    with pytest.raises(InputError, match=r"data 'owls' .* are not those of the data 'photos-c"):
        load(f"{tmp_path}/photos.npz+{tmp_path}/owls.npz")
    with pytest.raises(InputError, match="two of the joined datasets are called 'shapes'"):
        load("shapes+shapes+shapes", count=4)
    (tmp_path / "a+b").mkdir()
    np.savez(tmp_path / "a+b" / "photos.npz", images=pictures(3), labels=[0, 1, 0])
    assert load(str(tmp_path / "a+b" / "photos.npz")).name == "photos-c (generated)"
