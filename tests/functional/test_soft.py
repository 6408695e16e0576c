import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import reference
from findtta.functional import (
    batch_moments,
    class_guard,
    common_share,
    drift_gate,
    gaussian_kl,
    in_source_units,
    instance_moments,
    log_drift,
    soft_neighbours,
    weighted_moments,
)
from nets import close, images, randn, same_bits, without

SOURCE = randn(4, seed=8, dtype=torch.float64), 0.5 + randn(4, seed=9, dtype=torch.float64).abs()
COUNTS, SEEDS, TEMPERATURES = st.integers(1, 12), st.integers(0, 10**6), st.floats(0.02, 5)
EPS = 1e-3  # large enough to be seen


def moments(count, seed=0, dtype=torch.float64):
    """Instance moments of samples that have drifted in several ways."""
    drift = 3 * randn(count, 4, 1, seed=seed + 1, dtype=dtype)
    return instance_moments(drift + drift.exp().sqrt() * randn(count, 4, 6, seed=seed, dtype=dtype))


def in_units(mean, variance):
    return in_source_units(mean, variance, *(statistic.to(mean.dtype) for statistic in SOURCE), EPS)


def neighbours(mean, variance, temperature=0.2):
    return soft_neighbours(*in_units(mean, variance), temperature)


def poisoned(pair, *indices):
    """The moments that samples with a NaN have: all NaN."""
    return tuple(values.index_fill(0, torch.tensor(indices), math.nan) for values in pair)


def reference_units(mean, variance):
    """Shift and stretch of every sample and channel, as the reference computes them."""
    rows, source = zip(mean.tolist(), variance.tolist(), strict=True), [part.tolist() for part in SOURCE]
    return [
        [reference.in_source_units(*channel, EPS) for channel in zip(m, v, *source, strict=True)] for m, v in rows
    ]


@given(COUNTS, SEEDS)
def test_units_equal_the_reference(count, seed):
    mean, variance = moments(count, seed)
    want = torch.tensor(reference_units(mean, variance), dtype=torch.float64)
    assert close(torch.stack(in_units(mean, variance), 2), want, 1e-12)


def test_a_sample_like_the_source_has_not_moved():
    shift, stretch = in_units(*(statistic.expand(3, 4) for statistic in SOURCE))
    assert close(shift, torch.zeros(3, 4), 1e-12)
    assert close(stretch, torch.ones(3, 4), 1e-12)


@given(COUNTS, SEEDS, TEMPERATURES)
def test_neighbours_equal_the_reference(count, seed, temperature):
    mean, variance = moments(count, seed)
    want = reference.soft_neighbours(reference_units(mean, variance), temperature)
    assert close(neighbours(mean, variance, temperature), torch.tensor(want, dtype=torch.float64), 1e-9)


@given(COUNTS, SEEDS, TEMPERATURES)
def test_weights_are_shares(count, seed, temperature):
    weights = neighbours(*moments(count, seed), temperature)
    assert weights.shape == (count, count)
    assert (weights >= 0).all()
    assert close(weights.sum(1), torch.ones(count), 1e-12)


@given(st.integers(2, 12), SEEDS, TEMPERATURES, st.sampled_from([torch.float32, torch.float64]))
def test_a_sample_weighs_for_itself_what_its_nearest_neighbour_does(count, seed, temperature, dtype):
    weights = neighbours(*moments(count, seed, dtype), temperature)
    others = weights.masked_fill(torch.eye(count, dtype=torch.bool), 0)
    assert torch.equal(weights.diagonal(), others.amax(1))


def test_two_opposite_samples_weigh_alike():
    # Their similarity is -1 up to rounding, the least there is.
    shift = randn(1, 4, dtype=torch.float32)
    weights = soft_neighbours(torch.cat([shift, -shift]), torch.ones(2, 4), 1e-6)
    assert torch.equal(weights, torch.full((2, 2), 0.5))


def test_the_same_drift_half_as_strong_is_less_alike():
    # A direction alone, such as a cosine looks at, would not tell the second from the third.
    drift = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.5, 1.0], [-2.0, 1.0]])
    weights = soft_neighbours(drift, torch.ones(4, 2), 0.5)[0]
    assert weights[0] == weights[1] > weights[2] > weights[3]
    assert math.log(weights[1] / weights[2]) == pytest.approx((1 - 0.8) / 0.5, rel=1e-5)
    assert math.log(weights[1] / weights[3]) == pytest.approx(1 / 0.5, rel=1e-5)


def test_a_sample_on_its_own_is_its_only_neighbour():
    assert neighbours(*moments(1)).tolist() == [[1.0]]


def test_samples_that_have_not_drifted_weigh_alike():
    mean, variance = (statistic.expand(3, 4) for statistic in SOURCE)
    assert close(neighbours(mean, variance), torch.full((3, 3), 1 / 3, dtype=torch.float64), 1e-12)


@given(st.integers(2, 12), SEEDS)
def test_permuting_samples_permutes_weights(count, seed):
    mean, variance = moments(count, seed)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    got = neighbours(mean[order], variance[order])
    assert close(got, neighbours(mean, variance)[order][:, order], 1e-12)


def test_identical_samples_share_weights_and_statistics():
    mean, variance = (torch.cat([values, values[1:2]]) for values in moments(5))
    weights = neighbours(mean, variance)
    assert close(weights[5], weights[1], 1e-12)
    near_mean, near_variance = weighted_moments(mean, variance, weights)
    assert close(near_mean[5], near_mean[1], 1e-12)
    assert close(near_variance[5], near_variance[1], 1e-12)


@given(st.integers(3, 10), SEEDS, st.sampled_from([0.05, 0.2, 1.0, 1e3, 1e9]), st.data())
def test_poisoned_samples_weigh_nothing_for_others(count, seed, temperature, data):
    bad = data.draw(st.integers(0, count - 1))
    clean = moments(count, seed)
    weights = neighbours(*poisoned(clean, bad), temperature)
    assert without(weights[:, bad], bad).eq(0).all()
    assert weights[bad].tolist() == [float(index == bad) for index in range(count)]
    rest = neighbours(*(without(values, bad) for values in clean), temperature)
    assert close(without(without(weights, bad).T, bad).T, rest, 1e-12)


def test_with_none_but_poisoned_samples_around_a_sample_is_on_its_own():
    assert torch.equal(neighbours(*poisoned(moments(4), 0, 1, 3)), torch.eye(4, dtype=torch.float64))


@given(st.integers(2, 10), SEEDS)
def test_a_poisoned_sample_leaves_the_moments_of_others_alone(count, seed):
    pair = poisoned(moments(count, seed), 0)
    rest = tuple(values[1:] for values in pair)
    got = weighted_moments(*pair, neighbours(*pair))
    want = weighted_moments(*rest, neighbours(*rest))
    assert all(close(a[1:], b, 1e-12) for a, b in zip(got, want, strict=True))
    assert all(values.isfinite().all() for values in got)


@given(st.integers(2, 10), SEEDS)
def test_a_high_temperature_makes_one_neighbourhood_of_the_batch(count, seed):
    pair = poisoned(moments(count, seed), 1)
    got = weighted_moments(*pair, neighbours(*pair, 1e12))
    for near, batch in zip(got, batch_moments(*pair), strict=True):
        assert close(without(near, 1), batch.expand(count - 1, 4), 1e-9)


def test_a_low_temperature_leaves_a_sample_and_its_nearest_neighbour():
    weights = neighbours(*moments(9), 1e-6)
    assert close(weights.sort(1).values[:, -2:], torch.full((9, 2), 0.5), 1e-9)


@given(COUNTS, SEEDS)
def test_weighted_moments_equal_the_reference(count, seed):
    mean, variance = moments(count, seed)
    weights = torch.softmax(randn(3, count, seed=seed, dtype=torch.float64), 1)
    got = torch.stack(weighted_moments(mean, variance, weights), 2)
    want = [
        [
            reference.mixture_moments(mean[:, c].tolist(), variance[:, c].tolist(), row.tolist())
            for c in range(mean.shape[1])
        ]
        for row in weights
    ]
    assert close(got, torch.tensor(want, dtype=torch.float64), 1e-11)


@given(COUNTS, SEEDS)
def test_uniform_weights_give_the_moments_of_the_batch(count, seed):
    pair = moments(count, seed)
    got = weighted_moments(*pair, torch.full((1, count), 1 / count, dtype=torch.float64))
    assert all(close(a[0], b, 1e-11) for a, b in zip(got, batch_moments(*pair), strict=True))


@given(COUNTS, SEEDS)
def test_weights_of_single_samples_give_their_own_moments(count, seed):
    pair = moments(count, seed)
    got = weighted_moments(*pair, torch.eye(count, dtype=torch.float64))
    assert all(close(a, b, 1e-11) for a, b in zip(got, pair, strict=True))


SHARES = [0.0, 0.1, 0.5, 0.9, 1.0, 0.3]


def test_log_drift_equals_the_reference():
    mean, variance = moments(6)
    variance = variance + EPS
    own_share = torch.tensor(SHARES, dtype=torch.float64)
    want = [
        reference.log_drift(list(zip(mean[i].tolist(), variance[i].tolist(), strict=True)), share)
        for i, share in enumerate(SHARES)
    ]
    assert close(log_drift(mean, variance, own_share), torch.tensor(want, dtype=torch.float64), 1e-12)


def test_no_drift_has_a_logarithm():
    none = log_drift(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([0.0, 1.0]))
    assert none.tolist() == pytest.approx([math.log(1e-6)] * 2)


@given(COUNTS, SEEDS)
def test_drift_is_the_divergence_of_the_paper(count, seed):
    mean, variance = moments(count, seed)
    shift, stretch = in_source_units(mean, variance, *SOURCE, 0.0)
    want = gaussian_kl(mean, variance, *SOURCE, 0.0).mean(1)
    assert close(log_drift(shift, stretch**2, torch.zeros(count)).exp(), want.clamp_min(1e-6), 1e-9)


GATES = st.integers(1, 60), st.floats(1e-3, 10), st.floats(0.1, 8)


@given(st.lists(st.floats(-13, 10), min_size=1, max_size=9), *GATES)
def test_the_gate_equals_the_reference(evidence, layers, threshold, sharpness):
    got = drift_gate(torch.tensor(evidence, dtype=torch.float64), layers, threshold, sharpness)
    want = [reference.drift_gate(value, layers, threshold, sharpness) for value in evidence]
    assert close(got, torch.tensor(want, dtype=torch.float64), 1e-12)
    assert ((got >= 0) & (got <= 1)).all()


@given(st.floats(-10, 10), st.floats(0.01, 5), *GATES)
def test_the_gate_opens_with_the_drift(evidence, more, layers, threshold, sharpness):
    drifts = torch.tensor([evidence, evidence + more], dtype=torch.float64)
    low, high = drift_gate(drifts, layers, threshold, sharpness)
    assume(high < 1 - 1e-12)  # not where it is open all the way
    assert low < high


@pytest.mark.parametrize("threshold", [1e-3, 0.07, 5.0])
def test_the_gate_is_half_open_at_the_threshold(threshold):
    at_threshold = torch.tensor([math.log(threshold)], dtype=torch.float64)
    assert drift_gate(at_threshold, 1, threshold, 4.0).item() == pytest.approx(0.5)
    assert drift_gate(at_threshold + 3, 1, threshold, 0.0).tolist() == [0.5]


def test_the_threshold_falls_with_depth():
    evidence = torch.tensor([math.log(0.05)], dtype=torch.float64)
    gates = [drift_gate(evidence, layers, 0.15, 4.0).item() for layers in (1, 5, 25, 60)]
    assert gates == sorted(gates)
    assert gates[0] < 0.1
    assert gates[-1] > 0.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_have_the_dtype_of_the_moments(dtype):
    pair = instance_moments(images(5, dtype=dtype))
    weights = soft_neighbours(*pair, 0.2)
    assert weights.dtype == dtype
    assert all(values.dtype == dtype for values in weighted_moments(*pair, weights))
    assert same_bits(weights, soft_neighbours(*pair, 0.2))


def shifts(count, seed=0):
    """Shifts of samples that have a part in common."""
    return randn(1, 5, seed=seed, dtype=torch.float64) + randn(count, 5, seed=seed + 1, dtype=torch.float64)


def drifts(count, seed=0):
    """Logarithms of the drift of samples."""
    return randn(count, seed=seed + 2, dtype=torch.float64)


@given(COUNTS, SEEDS)
def test_the_common_share_equals_the_reference(count, seed):
    got = [value.item() for value in common_share(shifts(count, seed), drifts(count, seed))]
    want = reference.common_share(shifts(count, seed).tolist(), drifts(count, seed).tolist())
    assert got == pytest.approx(want, abs=1e-9)


@given(st.integers(2, 12), SEEDS, st.floats(-9, 9))
def test_the_common_share_does_not_see_the_order_a_scale_or_a_shift_of_all_channels(count, seed, offset):
    shift, drift = shifts(count, seed), drifts(count, seed)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    got, want = common_share(3 * shift[order] + offset, drift[order] + offset)[0], common_share(shift, drift)[0]
    assert close(got, want, 1e-9)


def test_the_common_share_of_equal_opposite_and_single_samples():
    one, same = shifts(1), torch.zeros(6, dtype=torch.float64)
    assert common_share(one.expand(6, 5), same)[0].item() == pytest.approx(1)
    assert common_share(torch.cat([one, -one]), same[:2])[0].item() == pytest.approx(-1)
    assert common_share(one, same[:1])[0].item() == pytest.approx(0, abs=1e-9)
    assert common_share(torch.zeros(3, 5), torch.zeros(3))[0] <= 0


def test_samples_of_strong_drift_hardly_count_in_the_common_share():
    shift = torch.cat([shifts(1).expand(8, 5), torch.eye(5, dtype=torch.float64)[:4]])
    drift = torch.tensor([3.0] * 8 + [0.0] * 4, dtype=torch.float64)
    assert common_share(shift, -drift)[0] > 0.95
    assert common_share(shift, drift)[0] < 0.05


@given(st.integers(2, 10), SEEDS)
def test_poisoned_samples_have_no_part_in_the_common_share(count, seed):
    shift, drift = shifts(count, seed), drifts(count, seed)
    poisoned = (values.index_fill(0, torch.tensor([1]), math.nan) for values in (shift, drift))
    got, want = common_share(*poisoned), common_share(without(shift, 1), without(drift, 1))
    assert [value.item() for value in got] == pytest.approx([value.item() for value in want], abs=1e-12)


SHARES_OF_LAYERS = st.floats(-0.3, 1)


@given(SHARES_OF_LAYERS, st.lists(SHARES_OF_LAYERS, min_size=1, max_size=4), st.floats(0.01, 1))
def test_the_guard_equals_the_reference(share, earlier, concentration):
    values = (share, sum(earlier) / len(earlier), concentration)
    got = class_guard(*(torch.tensor(value, dtype=torch.float64) for value in values)).item()
    assert got == pytest.approx(reference.class_guard(share, earlier, concentration), abs=1e-9)


def test_the_guard_tells_a_class_from_drift():
    def guard(share, earlier, count=40):
        return class_guard(*map(torch.tensor, (share, earlier, 1 / count))).item()

    assert guard(0.25, 0.15) < 0.01  # in common in the last layers, though hardly before: a class
    assert guard(0.15, 0.3) > 0.9  # in common all the way: drift
    assert guard(0.02, 0.1) > 0.9  # nothing in common
    assert guard(0.2, 0.1, count=2) > 0.9  # chance
