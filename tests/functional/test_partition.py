import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from findtta.functional import components, count_groups, first_neighbours, partition
from findtta.functional import partition as partition_function
from nets import randn, without

partition_module = __import__("sys").modules[partition_function.__module__]

seeds = st.integers(0, 2**32 - 1)
batch_sizes = st.integers(2, 40)
channels = st.integers(3, 12)

# Rows of length 1, 2 or 4 (and a zero row): their unit vectors and similarities are exact in floating
# point, so that equal similarities are equal to the bit.
EXACT_ROWS = torch.tensor(
    [
        [1, 0, 0, 0, 0],
        [-2, 0, 0, 0, 0],
        [0, 4, 0, 0, 0],
        [0, 0, -1, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 2, -2, 2, 2],
        [-1, 1, 0, 1, -1],
        [2, 2, 2, 2, 0],
        [0, 0, 0, 0, 0],
    ],
    dtype=torch.float64,
)
exact_rows = st.lists(st.integers(0, len(EXACT_ROWS) - 1), min_size=1, max_size=24)


def groups(labels) -> set[frozenset[int]]:
    labels = [int(label) for label in labels]
    return {frozenset(i for i, other in enumerate(labels) if other == label) for label in labels}


@given(seeds, batch_sizes, st.integers(1, 12))
def test_equals_the_reference(seed, batch, width):
    features = randn(batch, width, 2, 3, seed=seed, dtype=torch.float64)
    assert groups(partition(features)) == groups(reference.partition(features))


@given(exact_rows)
def test_exact_ties_go_to_the_lowest_index_as_in_the_reference(rows):
    descriptors = EXACT_ROWS[rows]
    expected = reference.first_neighbours(descriptors.tolist())
    assert first_neighbours(descriptors).tolist() == expected
    assert groups(partition(descriptors)) == groups(reference.components(reference.adjacency(expected)))


@given(exact_rows)
def test_exact_ties_in_float32_equal_those_in_float64(rows):
    descriptors = EXACT_ROWS[rows]
    assert first_neighbours(descriptors.float()).tolist() == first_neighbours(descriptors).tolist()


@given(seeds, batch_sizes, channels)
def test_a_label_is_a_member_of_its_group(seed, batch, width):
    labels = partition(randn(batch, width, seed=seed))
    assert torch.equal(labels[labels], labels)
    assert labels.dtype == torch.int64


@given(seeds, batch_sizes, channels)
def test_neighbours_share_a_group_and_no_sample_is_alone(seed, batch, width):
    descriptors = randn(batch, width, seed=seed)
    labels = partition(descriptors)
    assert torch.equal(labels[first_neighbours(descriptors)], labels)
    assert labels.bincount(minlength=batch)[labels].min() >= 2


@given(seeds, batch_sizes, channels)
def test_there_are_as_many_groups_as_mutual_neighbour_pairs(seed, batch, width):
    descriptors = randn(batch, width, seed=seed)
    neighbours = first_neighbours(descriptors)
    mutual = neighbours[neighbours] == torch.arange(batch)
    labels = partition(descriptors)
    assert int(count_groups(labels)) == len(labels.unique()) == int(mutual.sum()) // 2


@given(seeds, batch_sizes, channels)
def test_permuting_the_batch_permutes_the_groups(seed, batch, width):
    descriptors = randn(batch, width, seed=seed, dtype=torch.float64)
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    moved = {frozenset(int(order[i]) for i in group) for group in groups(partition(descriptors[order]))}
    assert moved == groups(partition(descriptors))


@given(seeds, batch_sizes, channels)
def test_scaling_each_sample_changes_nothing(seed, batch, width):
    descriptors = randn(batch, width, seed=seed, dtype=torch.float64)
    scale = 2.0 ** torch.randint(-20, 20, (batch, 1), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(partition(descriptors * scale), partition(descriptors))


@given(seeds, st.integers(2, 12), channels)
def test_duplicates_share_a_group(seed, batch, width):
    descriptors = randn(batch, width, seed=seed, dtype=torch.float64).repeat(2, 1)
    labels = partition(descriptors)
    assert torch.equal(labels[:batch], labels[batch:])


@given(seeds, st.integers(20, 200), st.integers(3, 70))
def test_near_duplicates_in_float32_still_form_whole_groups(seed, batch, width):
    # Similarities differ by rounding only, which must not break the walks along neighbours.
    descriptors = randn(1, width, seed=seed) + 1e-4 * randn(batch, width, seed=seed + 1)
    labels = partition(descriptors)
    assert torch.equal(labels[first_neighbours(descriptors)], labels)
    assert torch.equal(labels[labels], labels)


@pytest.mark.parametrize("row", [[1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [0.1, 0.1, 0.1]])
@pytest.mark.parametrize("batch", [2, 3, 17])
def test_identical_samples_form_one_group(batch, row):
    assert partition(torch.tensor([row] * batch)).tolist() == [0] * batch


def test_a_single_sample_is_its_own_group():
    assert partition(torch.ones(1, 3, 2, 2)).tolist() == [0]


def test_an_empty_batch_has_no_groups():
    assert partition(torch.ones(0, 3)).tolist() == []


def test_a_zero_vector_joins_the_first_sample():
    descriptors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1], [0.0, 0.0]])
    assert first_neighbours(descriptors).tolist() == [1, 0, 3, 2, 0]


@given(st.integers(1, 60), st.data())
def test_components_follow_long_walks(batch, data):
    # Any tree of pointers towards lower indices, whose root 0 points at itself.
    parents = [0] + [data.draw(st.integers(0, i - 1)) for i in range(1, batch)]
    assert components(torch.tensor(parents)).tolist() == [0] * batch


def test_components_of_a_chain_as_long_as_the_batch():
    for batch in (2, 3, 8, 9, 64, 65):
        chain = torch.arange(batch).sub(1).clamp_min(0)
        chain[0] = 1
        assert components(chain).tolist() == [0] * batch


@pytest.mark.parametrize("rows_at_once", [1, 3, 7, 16])
def test_large_batches_are_split_as_small_ones(monkeypatch, rows_at_once):
    cases = [randn(23, 5, seed=seed) for seed in range(5)] + [EXACT_ROWS.repeat(3, 1)]
    cases[0][4, 2] = torch.nan
    whole = [first_neighbours(case) for case in cases]
    monkeypatch.setattr(partition_module, "ROWS_AT_ONCE", rows_at_once)
    assert all(torch.equal(first_neighbours(case), want) for case, want in zip(cases, whole, strict=True))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("whole_row", [True, False])
@pytest.mark.parametrize("bad", [0, 5, 11])
def test_a_poisoned_sample_is_alone_and_does_not_change_the_others(poison, whole_row, bad):
    descriptors = randn(12, 6, seed=bad, dtype=torch.float64)
    descriptors[bad, slice(None) if whole_row else 2] = poison
    labels = partition(descriptors)
    assert labels[bad] == bad
    assert (labels == bad).sum() == 1
    clean = groups(partition(without(descriptors, bad)))
    assert groups(without(labels, bad)) == clean


def test_opposite_samples_prefer_each_other_to_a_poisoned_one():
    assert first_neighbours(torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [-1.0, 0.0]])).tolist() == [2, 1, 0]


def test_the_only_healthy_sample_is_alone():
    assert first_neighbours(torch.tensor([[1.0, 0.0], [torch.nan, 0.0]])).tolist() == [0, 1]


@pytest.mark.parametrize("size", [2.0**-30, 2.0**60])
def test_very_small_and_very_large_values_are_split_by_direction(size):
    descriptors = size * randn(12, 6)
    assert torch.equal(partition(descriptors), partition(randn(12, 6)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_float32(dtype):
    descriptors = randn(16, 8).to(dtype)
    assert torch.equal(partition(descriptors), partition(descriptors.float()))
