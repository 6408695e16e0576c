import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from findtta.intervals import Interval, Scores, difference, interval, student_quantile

COUNTS = st.lists(st.integers(1, 5), min_size=2, max_size=30)


def scores(counts, seed=0, rate=0.5):
    """Samples of several images, some easier than others."""
    random = np.random.default_rng(seed)
    images = np.repeat(np.arange(len(counts)) * 3, counts)
    easy = np.repeat(random.random(len(counts)), counts)
    return Scores(images, (random.random(len(images)) < (easy + rate) / 2).astype(np.int8))


def literal(images, values):
    """The standard error of a mean over clusters, as a loop over images."""
    mean = sum(values) / len(values)
    total = 0.0
    groups = sorted(set(images))
    for group in groups:
        residual = sum(value - mean for image, value in zip(images, values, strict=True) if image == group)
        total += residual**2
    error = math.sqrt(len(groups) / (len(groups) - 1) * total) / len(values)
    return 100 * mean, 100 * student_quantile(len(groups) - 1) * error


@given(COUNTS, st.integers(0, 5))
def test_intervals_are_those_of_the_literal_formula(counts, seed):
    made = scores(counts, seed)
    found = interval([made])
    mean, margin = literal(made.images.tolist(), made.values.tolist())
    assert (found.mean, found.margin) == (pytest.approx(mean), pytest.approx(margin, abs=1e-9))


def test_intervals_are_those_of_a_bootstrap_over_images():
    made = scores([15] * 200)
    random, by_image = np.random.default_rng(1), made.values.reshape(200, 15)
    means = [100 * by_image[random.integers(0, 200, 200)].mean() for _ in range(4000)]
    low, high = np.percentile(means, (2.5, 97.5))
    found = interval([made])
    assert found.margin == pytest.approx((high - low) / 2, rel=0.05)
    independent = interval([Scores(np.arange(3000), made.values)])
    assert found.margin > 1.5 * independent.margin, "samples of one image are not independent"


def test_a_95_percent_interval_covers_the_truth_in_95_percent_of_the_cases():
    covered = [abs(interval([scores([6] * 40, seed)]).mean - 50) < interval([scores([6] * 40, seed)]).margin
               for seed in range(400)]  # fmt: skip
    assert 0.92 < np.mean(covered) < 0.98


def test_seeds_that_show_the_same_images_are_not_more_images():
    made = scores([15] * 50)
    once, thrice = interval([made]), interval([made] * 3)
    assert (thrice.mean, thrice.margin) == (pytest.approx(once.mean), pytest.approx(once.margin))
    others = Scores(made.images + 1000, made.values)
    assert interval([made, others]).margin < 0.75 * once.margin


@given(COUNTS, st.integers(0, 5))
def test_a_difference_is_that_of_the_means_and_of_no_width_from_itself(counts, seed):
    own, other = scores(counts, seed), scores(counts, seed + 10)
    found = difference({0: own}, {0: other})
    assert found.mean == pytest.approx(interval([own]).mean - interval([other]).mean)
    assert difference({0: own}, {0: own}) == Interval(0.0, 0.0)
    assert not Interval(0.0, 0.0).excludes_zero


def test_only_runs_on_the_same_samples_are_paired():
    own = scores([3, 3])
    assert own.minus(scores([3, 4])) is None
    assert difference({0: own}, {0: scores([2, 4])}) is None
    assert difference({0: own}, {1: own}) is None
    assert difference({}, {}) is None


def test_samples_are_sorted_by_image_then_domain_then_time():
    images, domains, correct = np.array([7, 2, 7, 2, 7]), np.array([1, 0, 0, 1, 1]), np.array([1, 1, 0, 0, 0])
    made = Scores.sort(images, domains, correct.astype(bool))
    assert made.images.tolist() == [2, 2, 7, 7, 7]
    assert made.values.tolist() == [1, 0, 0, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), min_size=1, max_size=50))
def test_scores_survive_being_written(pairs):
    pairs = sorted(pairs)
    made = Scores(np.array([image for image, _ in pairs]), np.array([right for _, right in pairs], np.int8))
    read = Scores.decode(made.encode())
    assert np.array_equal(read.images, made.images)
    assert np.array_equal(read.values, made.values)


def test_scores_are_written_in_little_more_than_a_bit_for_each_sample():
    made = scores([15] * 1000)
    assert sum(map(len, made.encode().values())) < 15_000 / 8 * 4 / 3 + 500


@pytest.mark.parametrize("damage", [{"images": "!"}, {"images": "AAAA"}, {"correct": "AAAA"}])
def test_damaged_scores_are_refused(damage):
    with pytest.raises(ValueError, match=r"samples|base64|padding|Non-base64"):
        Scores.decode(scores([3, 3]).encode() | damage)


def test_one_image_tells_nothing_about_others():
    alone = interval([scores([15])])
    assert alone.margin == math.inf
    assert not alone.excludes_zero
    assert alone.text() == f"{alone.mean:+.1f}"


@pytest.mark.parametrize("freedom", [6, 10, 39, 499, 9999])
def test_quantiles_are_those_of_students_distribution(freedom):
    assert student_quantile(freedom) == pytest.approx(student.ppf(0.975, freedom), rel=1e-3)


def test_intervals_in_words():
    assert Interval(-1.94, 1.6).text() == "-1.9 [-3.5, -0.3]"
    assert Interval(0.5, 0.25).text(2) == "+0.50 [0.25, 0.75]"
