"""The estimates against slow transcriptions in loops, and what must hold for them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.estimates import (
    WEIGHTS,
    Evidence,
    agreement,
    between_batches,
    classes_by_chance,
    classes_per_batch,
    collect_evidence,
    estimate_accuracies,
    spread,
)

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=6).filter(lambda sizes: sum(sizes) > len(sizes))


def probabilities(seed: int, images: int = 30, classes: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.5), images)


def cut(sizes: list[int]) -> list[range]:
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def literal_between(values: np.ndarray, sizes: list[int]) -> float:
    """Analysis of variance, feature by feature and image by image."""
    explained = total = 0.0
    for feature in range(values.shape[1]):
        mean = sum(values[:, feature]) / len(values)
        total += sum((value - mean) ** 2 for value in values[:, feature])
        for rows in cut(sizes):
            of_batch = sum(values[row, feature] for row in rows) / len(rows)
            explained += len(rows) * (of_batch - mean) ** 2
    # Adjusted for the number of batches as a coefficient of determination is.
    images, batches = len(values), len(sizes)
    return 1 - (1 - explained / total) * (images - 1) / (images - batches)


@given(SEEDS, SIZES)
def test_between_batches_is_the_adjusted_analysis_of_variance(seed, sizes):
    values = probabilities(seed, sum(sizes), 4)
    assert between_batches(values, sizes) == pytest.approx(literal_between(values, sizes), abs=1e-9)


@given(SEEDS, SIZES)
def test_between_batches_does_not_depend_on_order_scale_or_shift(seed, sizes):
    values = probabilities(seed, sum(sizes), 4)
    expected = between_batches(values, sizes)
    generator = np.random.default_rng(seed)
    within = np.concatenate([generator.permutation(list(rows)) for rows in cut(sizes)])
    assert between_batches(values[within], sizes) == pytest.approx(expected, abs=1e-9)
    batches = generator.permutation(len(sizes))
    moved = np.concatenate([list(cut(sizes)[batch]) for batch in batches])
    assert between_batches(values[moved], np.array(sizes)[batches]) == pytest.approx(expected, abs=1e-9)
    assert between_batches(3 * values + 7, sizes) == pytest.approx(expected, abs=1e-9)


def test_between_batches_is_one_for_batches_of_equal_images_and_zero_on_average_by_chance():
    alike = np.repeat([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], 4, axis=0)
    assert between_batches(alike, [4, 4, 4]) == pytest.approx(1)
    found = [between_batches(probabilities(seed, 64, 5), [16] * 4) for seed in range(300)]
    assert abs(np.mean(found)) < 3 * np.std(found) / math.sqrt(len(found))


@pytest.mark.parametrize("sizes", [[6], [1] * 6])
def test_between_batches_is_zero_where_batches_cannot_be_told_apart(sizes):
    assert between_batches(probabilities(0, 6), sizes) == 0


def test_between_batches_of_what_does_not_vary():
    assert between_batches(np.ones((6, 2)), [3, 3]) == 0
    assert between_batches(np.ones((6, 0)), [3, 3]) == 0


@given(SEEDS)
def test_spread_and_agreement_in_loops(seed):
    first, second, third = (probabilities(seed + number) for number in range(3))
    pairs = [(one, other) for one in range(30) for other in range(30) if one != other]
    twice = sum(first[one][k] * first[other][k] for one, other in pairs for k in range(5)) / len(pairs)
    assert spread(first) == pytest.approx(min(1, -math.log(twice) / math.log(5)))
    same = [a[k] * b[k] for other in (second, third) for a, b in zip(first, other, strict=True) for k in range(5)]
    assert agreement(first, [second, third]) == pytest.approx(sum(same) / 60)
    assert agreement(np.eye(4), [np.eye(4), np.eye(4)[::-1]]) == pytest.approx(0.5)


def test_spread_of_certain_predictions():
    assert spread(np.eye(4)) == 1  # no two alike, by chance: not more than all classes alike
    assert spread(np.array([[1.0, 0.0], [1.0, 0.0]])) == 0
    assert spread(np.full((7, 4), 0.25)) == pytest.approx(1)


def test_spread_does_not_depend_on_how_many_images_there_are_nor_on_how_sure_they_are():
    classes = 400
    random = np.random.default_rng(0)
    # Half of the classes never show; 600 images are not enough to tell which.
    drawn = random.integers(0, classes // 2, (50, 600))
    certain = np.eye(classes)
    unsure = 0.5 * certain + 0.5 * certain[:, [*range(1, classes // 2), 0, *range(classes // 2, classes)]]
    expected = math.log(classes / 2) / math.log(classes)
    for predictions in (certain, unsure):
        assert np.mean([spread(predictions[rows]) for rows in drawn]) == pytest.approx(expected, abs=0.002)
        assert np.mean([spread(predictions[rows[:200]]) for rows in drawn]) == pytest.approx(expected, abs=0.01)


@given(SEEDS, SIZES)
def test_classes_of_batches(seed, sizes):
    predicted = np.random.default_rng(seed).integers(0, 4, sum(sizes))
    distinct = [len({int(predicted[row]) for row in rows}) for rows in cut(sizes)]
    assert classes_per_batch(predicted, sizes) == pytest.approx(sum(distinct) / len(sizes))
    # A class is missing from a batch if all of its images are in the rest.
    images = len(predicted)
    counts = [int((predicted == k).sum()) for k in range(4)]
    expected = [
        sum(1 - math.comb(images - count, size) / math.comb(images, size) for count in counts if count)
        for size in sizes
    ]
    assert classes_by_chance(predicted, sizes) == pytest.approx(sum(expected) / len(sizes))


@given(SEEDS, st.floats(0, 1))
def test_evidence_does_not_depend_on_the_names_of_classes(seed, drift_between):
    first, second = probabilities(seed), probabilities(seed + 1)
    order = np.random.default_rng(seed).permutation(5)
    plain = collect_evidence(first, [second], [10, 20])
    renamed = collect_evidence(first[:, order], [second[:, order]], [10, 20])
    assert renamed.score(drift_between) == pytest.approx(plain.score(drift_between))


def test_a_score_is_the_weighted_sum_of_the_evidence():
    found = Evidence(spread=0.25, agreement=0.75, classes=0.1)
    assert list(found.terms(0.2)) == list(WEIGHTS)
    expected = (
        0.25 * WEIGHTS["spread"]
        + 0.75 * 0.8 * WEIGHTS["agreement_if_mixed"]
        + 0.1 * 0.8 * WEIGHTS["classes_if_mixed"]
        + 0.1 * 0.2 * WEIGHTS["classes_if_sorted"]
    )
    assert found.score(0.2) == pytest.approx(expected)


def test_accuracies_have_the_differences_of_the_scores_and_stay_between_0_and_1():
    found = {
        name: Evidence(spread=level, agreement=0.7, classes=0.0)
        for name, level in {"source": 0.8, "tbn": 0.85, "find": 0.9}.items()
    }
    accuracies = estimate_accuracies(found, ["tbn", "find"], 0.0)
    assert accuracies["find"] - accuracies["source"] == pytest.approx(0.1 * WEIGHTS["spread"])
    perfect = {name: Evidence(1.0, 1.0, 0.0) for name in ("tbn", "find")}
    assert estimate_accuracies(perfect, ["tbn", "find"], 0.0) == {"tbn": 1.0, "find": 1.0}
    hopeless = {"tbn": Evidence(0.0, 0.0, 0.0), "find": Evidence(1.0, 0.0, 0.0)}
    assert estimate_accuracies(hopeless, ["tbn", "find"], 0.0)["tbn"] == 0
