import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.data.corrupted import CorruptedDataset
from findtta.data.corruptions import corrupt
from findtta.errors import OptionError, UnknownNameError
from make_datasets import InMemory, rows, write_cifar_c


def test_domains_are_clean_and_every_corruption_at_every_severity():
    dataset = CorruptedDataset(InMemory())
    assert len(dataset.domains) == len(set(dataset.domains)) == 1 + 19 * 5
    assert dataset.domains[:2] == ("clean", "gaussian_noise@1")
    assert dataset.domains[-1] == "saturate@5"
    assert (dataset.name, dataset.generated, dataset.classes) == (
        "tiny-c (generated)",
        True,
        ("cat", "dog", "owl"),
    )


def test_images_are_those_of_corrupt():
    clean = InMemory()
    dataset = CorruptedDataset(clean, seed=7, constants="imagenet")
    expected = corrupt(clean.pixels[[4, 2]], "shot_noise", 3, seed=7, index=rows(4, 2), constants="imagenet")
    np.testing.assert_array_equal(dataset.images("shot_noise@3", rows(4, 2)), expected)
    np.testing.assert_array_equal(dataset.images("clean", rows(4, 2)), clean.pixels[[4, 2]])
    assert (dataset.labels("shot_noise@3") == clean.truth).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_an_image_does_not_depend_on_its_batch(wanted):
    dataset = CorruptedDataset(InMemory())
    everything = dataset.images("gaussian_noise@5", np.arange(10))
    assert (dataset.images("gaussian_noise@5", rows(*wanted)) == everything[wanted]).all()


def test_a_limit_keeps_the_same_corrupted_images():
    dataset = CorruptedDataset(InMemory())
    part = dataset.pick(["gaussian_noise"], limit=4)
    everything = dataset.images("gaussian_noise@5", np.arange(10))
    for image in part.images("gaussian_noise@5", np.arange(4)):
        assert any((image == other).all() for other in everything)


def test_seed_and_content_make_the_identity():
    def identity(clean, **options):
        return CorruptedDataset(clean, **options).pick(["gaussian_noise"]).identity

    assert identity(InMemory()) == identity(InMemory(name="elsewhere"))
    assert identity(InMemory()) != identity(InMemory(), seed=1)
    assert identity(InMemory()) != identity(InMemory(count=11))


def test_it_can_be_sent_to_another_process():
    dataset = CorruptedDataset(InMemory(), seed=2)
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(again.images("contrast@2", rows(1)), dataset.images("contrast@2", rows(1)))


def test_what_cannot_be_corrupted(tmp_path):
    from findtta.data.open import read

    write_cifar_c(tmp_path / "c")
    with pytest.raises(
        OptionError, match=r"clean must be a dataset with the domain 'clean', but c has gaussian_noise@1"
    ):
        CorruptedDataset(read(tmp_path / "c"))
    with pytest.raises(UnknownNameError, match=r"constants must be one of .* Did you mean 'cifar'"):
        CorruptedDataset(InMemory(), constants="cifra")
    with pytest.raises(UnknownNameError, match="no 'fog@6'"):
        CorruptedDataset(InMemory()).images("fog@6", rows(0))
