import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from findtta.functional import batch_moments, blend, group_moments, instance_moments, partition
from nets import close, randn, without

moments_module = sys.modules[instance_moments.__module__]
SHAPES = [(5, 4), (5, 4, 1), (5, 4, 7), (3, 2, 4, 5), (2, 3, 2, 3, 4), (1, 3, 2, 2)]


def exact_moments(features):
    """Instance moments in float64 by torch's own variance."""
    flat = features.double().flatten(2) if features.ndim > 2 else features.double()[..., None]
    return flat.mean(2), flat.var(2, correction=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_instance_moments_equal_the_reference(shape):
    features = 3 + randn(*shape, dtype=torch.float64)
    mean, variance = instance_moments(features)
    assert close(mean, torch.tensor(reference.instance_means(features), dtype=torch.float64), 1e-10)
    one_group_each = reference.group_moments(features, list(range(shape[0])))
    assert close(variance, one_group_each[1], 1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_group_moments_equal_the_reference(shape):
    features = 3 + randn(*shape, dtype=torch.float64)
    moments = instance_moments(features)
    labels = partition(features)
    for got, want in zip(
        group_moments(*moments, labels), reference.group_moments(features, labels.tolist()), strict=True
    ):
        assert close(got, want, 1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_moments_equal_the_reference(shape):
    features = 3 + randn(*shape, dtype=torch.float64)
    got = batch_moments(*instance_moments(features))
    assert all(close(a, b, 1e-10) for a, b in zip(got, reference.batch_moments(features), strict=True))


@pytest.mark.parametrize("estimator", reference.ESTIMATORS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dense", [True, False])
def test_every_estimator_of_the_variance_equals_the_reference(monkeypatch, estimator, shape, dense):
    if not dense:
        monkeypatch.setattr(moments_module, "DENSE_SAMPLES_CPU", 0)
    features = 3 + randn(*shape, dtype=torch.float64)
    moments, positions = instance_moments(features), features[0, 0].numel()
    labels = torch.arange(len(features)) // 2
    got = group_moments(*moments, labels, estimator, positions, eps=1e-3)
    want = reference.group_moments(features, labels.tolist(), estimator, eps=1e-3)
    assert all(close(a, b, 1e-10) for a, b in zip(got, want, strict=True))
    got = batch_moments(*moments, estimator, positions)
    assert all(close(a, b, 1e-10) for a, b in zip(got, reference.batch_moments(features, estimator), strict=True))


@pytest.mark.parametrize("estimator", reference.ESTIMATORS)
def test_a_poisoned_sample_does_not_count_in_any_estimator(estimator):
    features = randn(5, 3, 4, dtype=torch.float64)
    want = batch_moments(*instance_moments(without(features, 2)), estimator, positions=4)
    features[2, 1, 0] = torch.nan
    got = batch_moments(*instance_moments(features), estimator, positions=4)
    assert all(close(a, b, 1e-12) for a, b in zip(got, want, strict=True))


@given(st.lists(st.integers(0, 9), min_size=10, max_size=10))
def test_any_labels_give_the_moments_of_their_groups(labels):
    features = randn(10, 3, 4, dtype=torch.float64)
    got = group_moments(*instance_moments(features), torch.tensor(labels))
    assert all(close(a, b, 1e-10) for a, b in zip(got, reference.group_moments(features, labels), strict=True))


def test_one_group_equals_the_batch():
    moments = instance_moments(randn(9, 4, 3, 3))
    grouped = group_moments(*moments, torch.zeros(9, dtype=torch.int64))
    for group, batch in zip(grouped, batch_moments(*moments), strict=True):
        assert close(group, batch.expand_as(group), 1e-6)


@pytest.mark.parametrize("slab_bytes", [1, 100, 1000])
@pytest.mark.parametrize("channels_last", [False, True])
def test_slabs_give_the_moments_of_the_whole(monkeypatch, slab_bytes, channels_last):
    features = randn(7, 4, 3, 3)
    if channels_last:
        features = features.to(memory_format=torch.channels_last)
    whole = instance_moments(features)
    monkeypatch.setattr(moments_module, "SLAB_BYTES", slab_bytes)
    assert all(close(a, b, 1e-6) for a, b in zip(instance_moments(features), whole, strict=True))


@pytest.mark.parametrize("bad", [None, 4])
def test_scattered_averages_equal_dense_ones(monkeypatch, bad):
    features = randn(30, 4, 5, dtype=torch.float64)
    if bad is not None:
        features[bad, 1] = torch.nan
    moments, labels = instance_moments(features), partition(features)
    dense = group_moments(*moments, labels)
    monkeypatch.setattr(moments_module, "DENSE_SAMPLES_CPU", 8)
    assert all(close(a, b, 1e-12) for a, b in zip(group_moments(*moments, labels), dense, strict=True))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 1e200])
@pytest.mark.parametrize(
    "where", [(slice(None), slice(None)), (1, slice(None)), (1, 3)], ids=["all", "row", "one"]
)
@pytest.mark.parametrize("dense", [True, False])
def test_a_poisoned_sample_does_not_touch_the_moments_of_the_others(monkeypatch, poison, where, dense):
    # In float64 the square of 1e200 overflows: such a sample has an infinite variance.
    if not dense:
        monkeypatch.setattr(moments_module, "DENSE_SAMPLES_CPU", 1)
    features = randn(9, 4, 6, dtype=torch.float64)
    clean_mean, clean_variance = instance_moments(without(features, 3))
    features[3][where] = poison
    features[3, 1, 0] = -features[3, 1, 0]
    mean, variance = instance_moments(features)

    clean_labels = partition(clean_mean)
    labels = torch.cat([clean_labels[:3], torch.tensor([8]), clean_labels[3:]])
    got = group_moments(mean, variance, labels)
    want = group_moments(clean_mean, clean_variance, clean_labels)
    assert all(close(without(a, 3), b, 1e-12) for a, b in zip(got, want, strict=True))

    want = batch_moments(clean_mean, clean_variance)
    assert all(close(a, b, 1e-12) for a, b in zip(batch_moments(mean, variance), want, strict=True))


def test_statistics_of_half_precision_are_float32():
    features = randn(4, 3, 8, 8).half()
    assert {tensor.dtype for tensor in instance_moments(features)} == {torch.float32}


def blended_variance(features, running_mean, running_variance, alpha=0.8):
    mean, variance = instance_moments(features)
    labels = partition(features)
    test_mean, test_variance = group_moments(mean, variance, labels)
    blend(test_mean, running_mean, alpha)
    return blend(test_variance, running_variance, alpha), labels


@pytest.mark.parametrize("positions", [1, 49, 1024, 12544])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("source", ["zero", "mean"])
@pytest.mark.parametrize(("ratio", "tolerance"), [(0, 1e-5), (30, 1e-5), (1000, 1e-3)])
def test_variance_is_accurate_however_large_the_mean(positions, channels_last, source, ratio, tolerance):
    side = int(positions**0.5)
    features = (ratio + randn(6, 3, side, side, seed=positions, dtype=torch.float64)).float()
    if channels_last:
        features = features.to(memory_format=torch.channels_last)
    running_mean = torch.full((3,), float(ratio) if source == "mean" else 0.0)
    running_variance = torch.full((3,), 0.9)
    got, labels = blended_variance(features, running_mean, running_variance)
    want = 0.8 * running_variance.double() + 0.2 * group_moments(*exact_moments(features), labels)[1]
    assert ((got.double() - want).abs() / want).max() <= tolerance


@pytest.mark.parametrize("positions", [49, 1024, 12544])
@pytest.mark.parametrize("channels_last", [False, True])
def test_variance_is_accurate_where_samples_have_different_large_offsets(positions, channels_last):
    side = int(positions**0.5)
    offsets = 1000 * torch.tensor([1.0, -1.0, 3.0, 5.0, -2.0, 4.0])[:, None, None, None]
    features = (offsets + randn(6, 3, side, side, dtype=torch.float64)).float()
    if channels_last:
        features = features.to(memory_format=torch.channels_last)
    running_variance = torch.full((3,), 0.9)
    got, labels = blended_variance(features, torch.zeros(3), running_variance)
    want = 0.8 * running_variance.double() + 0.2 * group_moments(*exact_moments(features), labels)[1]
    assert ((got.double() - want).abs() / want).max() <= 1e-3
    _, variance = instance_moments(features)
    exact = exact_moments(features)[1]
    assert ((variance.double() - exact).abs() / exact).max() <= 1e-3


def test_batch_variance_is_accurate_however_large_the_mean():
    features = (1000 + randn(16, 3, 32, 32, dtype=torch.float64)).float()
    got = batch_moments(*instance_moments(features))[1]
    want = batch_moments(*exact_moments(features))[1]
    assert ((got.double() - want).abs() / want).max() <= 1e-3
