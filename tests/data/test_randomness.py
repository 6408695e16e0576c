import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.data.randomness import integers, normal, sample_keys, shorts, uniform, words

KEYS = sample_keys(7, np.array([0, 1, 10**6]), "noise", 3)
MANY = sample_keys(0, np.arange(300), "many")


def test_words_are_those_of_splitmix64():
    # The first two are the published test vector of the generator started at 0.
    expected = [[0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4], [0x910A2DEC89025CC1, 0xBEEB8DA1658EEC67]]
    assert words(np.array([0, 1], np.uint64), 2).tolist() == expected


def test_numbers_do_not_change_between_releases():
    assert KEYS.tolist() == [0xD73C163EFEBEE90D, 0x3E065E9342A7BE27, 0x7EC63A608F5BF5E8]
    assert shorts(KEYS, 5).tolist() == [
        [9354, 52333, 26238, 46524, 19296],
        [56753, 35403, 59297, 28408, 33747],
        [60829, 9827, 52690, 33610, 17691],
    ]
    assert uniform(KEYS, 2).tolist() == [
        [0.7985403537750244, 0.7099059820175171],
        [0.5402200818061829, 0.4334854483604431],
        [0.14996224641799927, 0.512860119342804],
    ]
    assert integers(KEYS, -3, 4, 5).tolist() == [[2, 1, 0, 1, -2], [0, 0, 2, 3, 1], [-2, 0, -2, 0, 0]]
    assert normal(KEYS, 2).tolist() == [
        [-1.0681076049804688, 0.8364467620849609],
        [1.1076431274414062, 0.10097503662109375],
        [1.4624176025390625, -1.0366334915161133],
    ]


@given(st.integers(), st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(1, 9))
def test_a_sample_has_the_same_numbers_alone_and_in_company(seed, index, count):
    together = sample_keys(seed, np.array(index), "purpose")
    for row, key in enumerate(together):
        alone = sample_keys(seed, np.array(index[row : row + 1]), "purpose")
        assert alone[0] == key
        for draw in (words, shorts, uniform, normal):
            assert np.array_equal(draw(alone, count)[0], draw(together, count)[row])


@pytest.mark.parametrize("draw", [words, shorts, uniform, normal])
def test_drawing_leaves_the_keys_alone_and_longer_draws_start_alike(draw):
    before = KEYS.copy()
    assert np.array_equal(draw(KEYS, 13)[:, :5], draw(KEYS, 5))
    assert np.array_equal(KEYS, before)


def test_seeds_purposes_and_samples_get_different_keys():
    keys = [sample_keys(seed, np.arange(100), what) for seed in range(20) for what in ("a", "b", 1)]
    assert len(np.unique(np.concatenate(keys))) == 20 * 3 * 100


def test_normal_numbers_have_the_moments_of_a_normal_distribution():
    numbers = normal(MANY, 3072).astype(np.float64)
    assert numbers.dtype == np.float64
    assert numbers.mean() == pytest.approx(0, abs=0.004)
    assert (numbers**2).mean() == pytest.approx(1, abs=0.006)
    assert (numbers**3).mean() == pytest.approx(0, abs=0.02)
    assert (numbers**4).mean() == pytest.approx(3, abs=0.05)
    assert np.mean(np.abs(numbers) > 1.959964) == pytest.approx(0.05, abs=0.001)


def test_neighbouring_numbers_and_samples_are_uncorrelated():
    numbers = normal(MANY, 3072)
    assert abs(np.mean(numbers[:, 1:] * numbers[:, :-1])) < 0.005
    assert abs(np.mean(numbers[1:] * numbers[:-1])) < 0.005


def test_uniform_numbers_and_integers_fill_their_ranges_evenly():
    numbers = uniform(MANY, 1000)
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    counts = np.bincount(integers(MANY, 0, 10, 1000).ravel(), minlength=10)
    assert counts.sum() == 300_000
    assert counts == pytest.approx(30_000, rel=0.03)


@pytest.mark.parametrize("draw", [shorts, uniform, normal])
def test_shapes(draw):
    assert draw(KEYS).shape == (3,)
    assert draw(KEYS, 2, 3, 1).shape == (3, 2, 3, 1)
    assert draw(KEYS[:0], 4).shape == (0, 4)
