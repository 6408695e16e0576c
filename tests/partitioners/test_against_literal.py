"""The vectorised clusterings and measures against their formulas, one number at a time."""

import literal
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csgraph

from findtta.errors import InputError
from findtta.functional import nmi, purity
from findtta.partitioners import make_partitioner
from findtta.partitioners.base import distances, lowest_members
from findtta.partitioners.dsets_dbscan import equalize
from findtta.partitioners.rcc import edges
from nets import randn

seeds = st.integers(0, 2**32 - 1)
numbers = st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 3)), min_size=1, max_size=40)


def scattered(seed, batch, width, spread):
    """Samples around three centres; the wider the spread, the less there is to find."""
    centres = randn(3, width, seed=seed, dtype=torch.float64)
    return centres[torch.arange(batch).remainder(3)] + spread * randn(
        batch, width, seed=seed + 1, dtype=torch.float64
    )


def first_members(labels):
    return lowest_members(torch.tensor(labels)).tolist()


@settings(max_examples=20)
@given(seeds, st.integers(2, 12), st.integers(2, 16), st.sampled_from([0.1, 0.5, 2.0]), st.integers(1, 10))
def test_rcc_equals_its_formulas(seed, batch, width, spread, neighbours):
    points = scattered(seed, batch, width, spread)
    expected = literal.rcc(points.tolist(), neighbours)
    partitioner = make_partitioner("rcc", {"neighbours": neighbours, "metric": "euclidean"})
    assert partitioner(points).tolist() == first_members(expected)


@given(seeds, st.integers(2, 14), st.integers(1, 6), st.integers(1, 10))
def test_rcc_joins_mutual_neighbours_and_a_spanning_tree(seed, batch, width, neighbours):
    points = randn(batch, width, seed=seed, dtype=torch.float64)
    first, second = edges(distances(points.numpy()), neighbours, csgraph)
    expected = literal.rcc_edges(points.tolist(), min(neighbours, batch - 1))
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == expected


def test_rcc_connects_samples_at_distance_0():
    first, second = edges(distances(np.array([[0.0], [0.0], [1.0], [1.0], [1.5]])), 1, csgraph)
    assert {(0, 1), (2, 3)} < set(zip(first.tolist(), second.tolist(), strict=True))


@settings(max_examples=30)
@given(seeds, st.integers(2, 26), st.integers(2, 12), st.sampled_from([0.05, 0.5, 2.0]))
def test_dsets_dbscan_equals_its_formulas(seed, batch, width, spread):
    points = scattered(seed, batch, width, spread)
    expected = literal.dsets_dbscan(points.tolist())
    partitioner = make_partitioner("dsets-dbscan", {"metric": "euclidean"})
    assert partitioner(points).tolist() == first_members(expected)


def test_dsets_dbscan_finds_several_sets_and_noise_where_there_are_some():
    expected = literal.dsets_dbscan(scattered(0, 26, 6, 0.5).tolist())
    assert len(set(expected)) >= 3
    assert -1 in expected


@given(seeds, st.integers(2, 20))
def test_equalised_similarities_equal_the_literal_ones(seed, count):
    half = np.random.default_rng(seed).random((count, count)) ** 2
    similarity = half + half.T
    assert np.allclose(equalize(similarity), literal.equalized(similarity.tolist()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [2, 5])
def test_equal_similarities_are_all_equalised_to_a_half(count):
    expected = np.where(np.eye(count, dtype=bool), 1.0, 0.5)
    assert np.array_equal(equalize(np.full((count, count), 0.3)), expected)


@given(numbers)
def test_purity_and_nmi_equal_their_formulas(pairs):
    labels, truth = (torch.tensor(column) for column in zip(*pairs, strict=True))
    assert float(purity(labels, truth)) == pytest.approx(literal.purity(labels.tolist(), truth.tolist()))
    assert float(nmi(labels, truth)) == pytest.approx(literal.nmi(labels.tolist(), truth.tolist()), abs=1e-12)
    assert float(nmi(labels, truth)) == pytest.approx(float(nmi(truth, labels)), abs=1e-12)


@given(numbers)
def test_nmi_equals_that_of_scikit_learn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    labels, truth = (torch.tensor(column) for column in zip(*pairs, strict=True))
    expected = metrics.normalized_mutual_info_score(truth.numpy(), labels.numpy())
    assert float(nmi(labels, truth)) == pytest.approx(expected, abs=1e-9)
    table = metrics.cluster.contingency_matrix(truth.numpy(), labels.numpy())
    assert float(purity(labels, truth)) == pytest.approx(table.max(0).sum() / table.sum())


def test_what_agrees_entirely_and_what_not_at_all():
    truth = torch.tensor([0, 0, 1, 1])
    assert purity(torch.tensor([5, 5, 2, 2]), truth) == nmi(torch.tensor([5, 5, 2, 2]), truth) == 1
    assert purity(torch.tensor([0, 1, 0, 1]), truth) == 0.5
    assert nmi(torch.tensor([0, 1, 0, 1]), truth) == 0
    assert purity(torch.arange(4), truth) == 1  # every sample alone is pure
    assert 0 < nmi(torch.arange(4), truth) < 1
    assert nmi(torch.zeros(4).long(), torch.zeros(4).long()) == 1


@pytest.mark.parametrize("measure", [purity, nmi])
def test_measures_refuse_what_are_not_labels(measure):
    good = torch.tensor([0, 1])
    with pytest.raises(InputError, match="labels must be whole numbers"):
        measure(good.float(), good)
    with pytest.raises(InputError, match=r"truth must be whole numbers.*shape \(2, 1\)"):
        measure(good, good[:, None])
    with pytest.raises(InputError, match="got 2 and 1"):
        measure(good, good[:1])
    with pytest.raises(InputError, match="got 0 and 0"):
        measure(good[:0], good[:0])
