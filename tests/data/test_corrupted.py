import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.data.corrupted import CorruptedDataset
from findtta.data.corruptions import blur, corrupt, digital, noise, weather
from findtta.data.dataset import MAIN_CORRUPTIONS, PAIRED_CORRUPTIONS
from findtta.errors import OptionError, UnknownNameError
from make_datasets import InMemory, rows, write_cifar_c

FAMILIES = (noise, blur, weather, digital)


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


def test_several_corruptions_on_one_image_are_applied_one_after_the_other():
    clean = InMemory()
    part = CorruptedDataset(clean, seed=3).pick(["fog+gaussian_noise", "gaussian_noise+fog@2"], severity=4)
    assert part.domains == ("fog+gaussian_noise@4", "gaussian_noise+fog@2")
    fog = corrupt(clean.pixels[[5, 1]], "fog", 4, seed=3, index=rows(5, 1))
    both = corrupt(fog, "gaussian_noise", 4, seed=3, index=rows(5, 1))
    np.testing.assert_array_equal(part.images("fog+gaussian_noise@4", rows(5, 1)), both)
    np.testing.assert_array_equal(
        corrupt(clean.pixels[[5, 1]], "fog+gaussian_noise", 4, seed=3, index=rows(5, 1)), both
    )
    assert (part.images("gaussian_noise+fog@2", rows(5)) != part.images("fog+gaussian_noise@4", rows(5))).any()
    assert (part.labels("fog+gaussian_noise@4") == clean.truth).all()


@given(st.sampled_from(PAIRED_CORRUPTIONS), st.integers(1, 5), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_an_image_with_two_corruptions_does_not_depend_on_its_batch(pair, severity, wanted):
    part = CorruptedDataset(InMemory()).pick([pair], severity)
    everything = part.images(f"{pair}@{severity}", np.arange(10))
    assert (part.images(f"{pair}@{severity}", rows(*wanted)) == everything[wanted]).all()


def test_pairs_have_every_two_families_once():
    families = {name: family.__name__ for name in MAIN_CORRUPTIONS for family in FAMILIES if hasattr(family, name)}
    pairs = [frozenset(families[name] for name in pair.split("+")) for pair in PAIRED_CORRUPTIONS]
    assert len(set(pairs)) == len(pairs) == 6
    assert all(len(pair) == 2 for pair in pairs)


def test_corruptions_that_cannot_be_joined():
    dataset = CorruptedDataset(InMemory())
    with pytest.raises(OptionError, match="'fog\\+fog' must name each corruption once"):
        dataset.pick(["fog+fog"])
    with pytest.raises(UnknownNameError, match="no 'fog\\+frgo@5'"):
        dataset.pick(["fog+frgo"])
    with pytest.raises(UnknownNameError, match=r"corruption must be one of .* got 'frgo'"):
        corrupt(InMemory().pixels, "fog+frgo")


def test_a_corruption_of_a_file_can_be_joined_with_others(tmp_path):
    folder = tmp_path / "c++"
    folder.mkdir()
    (folder / "mine.py").write_text("def dark(images, keys, severity):\n    return images // (severity + 1)\n")
    clean = InMemory()
    part = CorruptedDataset(clean).pick([f"{folder}/mine.py:dark+contrast"], 2)
    assert part.domains == ("mine.py:dark+contrast@2",)
    expected = corrupt(clean.pixels[[3]] // 3, "contrast", 2, index=rows(3))
    np.testing.assert_array_equal(part.images(part.domains[0], rows(3)), expected)
