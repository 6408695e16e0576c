"""Descriptions of images, and clusters of them that follow a stream."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from findtta.functional.domains import (
    DESCRIPTION,
    Domains,
    Joined,
    describe_images,
    describe_moments,
    frequencies,
    join_domains,
    natural_images,
    neighbouring_domains,
    recall,
    remember,
)
from nets import close, randn, same_bits, without

DOUBLE = torch.float64
SEEDS = st.integers(0, 10**6)


def photos(count=3, side=8, seed=0, channels=3):
    """Images between 0 and 1 with more energy at low frequencies, as photos have."""
    coarse = (
        randn(count, channels, side // 4, side // 4, seed=seed, dtype=DOUBLE)
        .repeat_interleave(4, 2)
        .repeat_interleave(4, 3)
    )
    return (0.5 + 0.15 * coarse + 0.05 * randn(count, channels, side, side, seed=seed + 1, dtype=DOUBLE)).clamp(
        0, 1
    )


def free(places=6, dimensions=3):
    return Domains(torch.zeros(places, dimensions, dtype=DOUBLE), *torch.zeros(2, places, dtype=DOUBLE))


def points(count, seed=0, dimensions=3, spread=3.0):
    """Points around a few centres."""
    kind = torch.arange(count) % 3
    return spread * randn(3, dimensions, seed=99, dtype=DOUBLE)[kind] + 0.3 * randn(
        count, dimensions, seed=seed, dtype=DOUBLE
    )


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 4, 12), (5, 8, 4)])
def test_frequencies_equal_the_reference(shape):
    batch = torch.rand(2, *shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)).clamp(0.2, 0.9)
    want = torch.tensor([reference.frequencies(image) for image in batch], dtype=DOUBLE)
    assert close(frequencies(batch), want, 1e-10)


@given(st.floats(0.01, 300), st.floats(-100, 100), SEEDS)
def test_distances_do_not_depend_on_the_unit_of_pixels(scale, offset, seed):
    batch = photos(seed=seed)
    want = torch.cdist(describe_images(batch), describe_images(batch))
    # Pixels at the end of the range are told by comparing: a change of unit must not move them across.
    assert close(torch.cdist(*[describe_images(scale * batch + offset)] * 2), want, 1e-6)


@pytest.mark.parametrize("shape", [(3, 33, 41), (3, 3, 5), (1, 16, 16), (12, 9, 4)])
def test_images_of_any_size_and_number_of_channels_are_described(shape):
    found = describe_images(torch.rand(2, *shape))
    assert found.shape == (2, DESCRIPTION)
    assert found.isfinite().all()


@pytest.mark.parametrize("value", [0.0, 0.7, -3.0])
def test_an_image_of_one_colour_has_a_description(value):
    assert describe_images(torch.full((2, 3, 8, 8), value)).isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_image_that_is_not_finite_has_none(value):
    batch = photos(3)
    batch[1, 0, 2, 2] = value
    found = describe_images(batch)
    assert not found[1].isfinite().all()
    assert same_bits(without(found, 1), describe_images(without(batch, 1)))


def test_small_images_do_not_scatter_much_more_than_large_ones():
    small, large = (describe_images(photos(40, side)) for side in (8, 32))
    scatters = [float((found - found.mean(0)).square().sum(1).mean()) for found in (small, large)]
    assert scatters[0] < 5 * scatters[1]  # with a sixteenth of the blocks


def test_noise_is_told_from_content():
    batch = photos(20, 32)
    noisy = (batch + 0.2 * randn(*batch.shape, seed=5, dtype=DOUBLE)).clamp(0, 1)
    found, other = describe_images(batch), describe_images(noisy)
    between = (found.mean(0) - other.mean(0)).square().sum()
    assert between > 4 * (found - found.mean(0)).square().sum(1).mean()


def test_what_is_known_of_natural_images_is_consistent():
    mean, directions, shrink, unit = natural_images(DOUBLE, torch.device("cpu"))
    assert mean.shape == (DESCRIPTION,)
    assert close(directions @ directions.T, torch.eye(len(shrink), dtype=DOUBLE), 5e-3)  # stored in half precision
    assert ((shrink > 0) & (shrink < 1)).all()
    assert unit > 0


@pytest.mark.parametrize("channels", [2, 49, 60])
def test_moments_describe_samples_by_their_first_channels(channels):
    shift, stretch = randn(4, channels), 1 + randn(4, channels, seed=1).abs()
    used = min(channels, 49)
    want = torch.stack([shift, stretch.log()], 2)[:, :used].flatten(1) / math.sqrt(used)
    found = describe_moments(shift, stretch)
    assert found.shape == (4, DESCRIPTION)
    assert close(found[:, : 2 * used], want, 1e-6)
    assert not found[:, 2 * used :].any()


def as_reference(memory):
    """The domains of a reference as tensors."""
    empty = {"centre": None, "count": 0.0, "usage": 0.0}
    found = [domain or empty for domain in memory.domains]
    return [torch.tensor([domain[name] for domain in found], dtype=DOUBLE) for name in ("count", "usage")]


@given(SEEDS, st.integers(1, 9), st.floats(0.2, 5), st.integers(3, 30))
def test_joining_equals_the_reference(seed, count, spread, memory):
    domains, want = free(), reference.ReferenceMemory(6, memory, 50.0)
    for step in range(5):
        batch = points(count, seed + step, spread=spread * (1 + step % 3))
        places = want.join(batch.tolist())
        domains, joined = join_domains(batch, domains, memory, 50.0)
        assert joined.members.argmax(1).tolist() == places
        for got, expected in zip((domains.counts, domains.usage), as_reference(want), strict=True):
            assert close(got, expected, 1e-9)
        for place, domain in enumerate(want.domains):
            if domain is not None:
                assert close(domains.centres[place], torch.tensor(domain["centre"], dtype=DOUBLE), 1e-9)
        weights = torch.zeros(count, 6, dtype=DOUBLE)
        for i, place in enumerate(places):
            for k, weight in want.weights(place).items():
                weights[i, k] = weight
        assert close(joined.weights, weights, 1e-9)


@given(SEEDS, st.integers(1, 12))
def test_everything_stays_bounded(seed, count):
    domains = free(4)
    for step in range(6):
        domains, joined = join_domains(points(count, seed + step, spread=10.0), domains, 5.0, 20.0)
        assert domains.counts.max() <= max(5, count)
        assert ((joined.kept >= 0) & (joined.kept <= 1)).all()
        assert close(joined.weights.sum(1), torch.ones(count), 1e-9)
        assert close(joined.members.sum(1), torch.ones(count), 0)
        assert ((joined.chance > 0) & (joined.chance <= 8 + 1e-9)).all()


@given(SEEDS, st.integers(0, 7))
def test_a_sample_that_is_not_finite_changes_nothing(seed, index):
    domains, _ = join_domains(points(8, seed), free(), 16.0, 50.0)
    batch = points(8, seed + 1)
    batch[index, 1] = math.nan
    dirty, joined = join_domains(batch, domains, 16.0, 50.0)
    clean, others = join_domains(without(batch, index), domains, 16.0, 50.0)
    assert all(close(got, want, 1e-9) for got, want in zip(dirty, clean, strict=True))
    assert not joined.members[index].any()
    assert close(without(joined.members, index), others.members, 0)
    assert close(without(joined.weights, index), others.weights, 1e-9)


def test_a_batch_of_samples_that_are_not_finite_changes_nothing():
    batch = torch.full((3, 3), math.nan, dtype=DOUBLE)
    domains, joined = join_domains(batch, free(), 16.0, 50.0)
    assert all(close(got, want, 0) for got, want in zip(domains, free(), strict=True))
    assert not joined.members.any()
    assert not joined.weights.any()


def test_kinds_that_are_far_apart_are_domains_of_their_own():
    domains = free(12)
    for step in range(30):
        domains, joined = join_domains(points(6, step, spread=6.0), domains, 64.0, 500.0)
    places = joined.members.argmax(1).tolist()
    kinds = [set(places[kind::3]) for kind in range(3)]
    assert all(not one & other for one, other in [kinds[:2], kinds[1:], kinds[::2]])


def test_what_is_new_takes_the_place_of_what_was_not_used():
    domains = free(3)
    old = torch.tensor([[0.0, 0, 0], [20, 0, 0], [0, 20, 0]], dtype=DOUBLE)
    domains, _ = join_domains(old, domains, 16.0, 50.0)
    domains, _ = join_domains(old[[0, 2, 2]], domains, 16.0, 50.0)
    domains, joined = join_domains(torch.tensor([[0.0, 0, 20]], dtype=DOUBLE), domains, 16.0, 50.0)
    assert joined.members.tolist() == [[0, 1, 0]]
    assert joined.kept.tolist() == [1, 0, 1]
    assert domains.counts.tolist() == [2, 1, 3]


def test_new_domains_share_with_all_near_and_well_known_ones_do_not():
    centres = torch.tensor([[0.0, 0], [1.2, 0], [9, 0]], dtype=DOUBLE)
    few, many = (neighbouring_domains(centres, torch.full((3,), count, dtype=DOUBLE)) for count in (1.0, 100.0))
    assert few[0, :2].tolist() == [0.5, 0.5]
    assert many[0, 1] < 0.001
    assert few[0, 2] < 1e-12


@given(SEEDS)
def test_what_is_recalled_is_the_mean_of_what_was_remembered(seed):
    table, members = randn(7, 4, seed=seed, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE)[torch.arange(7) % 2]
    joined = Joined(torch.ones(3, dtype=DOUBLE), members, members, torch.ones(7, dtype=DOUBLE))
    sums = remember(
        table[:4],
        torch.zeros(3, 5, dtype=DOUBLE),
        Joined(*(part[:4] if len(part) == 7 else part for part in joined)),
    )
    sums = remember(table[4:], sums, Joined(*(part[4:] if len(part) == 7 else part for part in joined)))
    found, known = recall(sums, torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0, 1]], dtype=DOUBLE))
    assert close(found[:2], torch.stack([table[::2].mean(0), table[1::2].mean(0)]), 1e-12)
    assert known.flatten().tolist() == [1, 0.5, 0]


def test_a_sample_without_moments_is_not_remembered():
    table = randn(3, 2, dtype=DOUBLE)
    table[1] = math.nan
    members = torch.ones(3, 1, dtype=DOUBLE)
    sums = remember(
        table,
        torch.zeros(1, 3, dtype=DOUBLE),
        Joined(torch.ones(1, dtype=DOUBLE), members, members, members[:, 0]),
    )
    assert close(sums, torch.cat([without(table, 1).sum(0), torch.tensor([2.0])])[None], 1e-12)


def test_averages_of_few_samples_are_far_from_the_source_by_chance():
    domains = free()
    for step in range(30):
        domains, joined = join_domains(points(3, step, spread=9.0), domains, 500.0, 500.0)
        if step == 0:
            assert close(joined.chance, torch.full((3,), 8.0), 1e-6)
    assert (joined.chance < 1).all()
