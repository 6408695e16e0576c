"""What every scenario promises about the order of samples and the domains of batches."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stream_data import LabelsOnly, datasets, equal

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.errors import OptionError
from findtta.streams import SCENARIOS, make
from findtta.streams.scenarios import Random, Wild

batch_sizes = st.integers(1, 40)
seeds = st.integers(0, 2**32 - 1)
complete = st.sampled_from(
    [("static", {}), ("static", {"across": True}), ("crossmix", {}), ("random", {}), ("wild", {"delta": 0.05})]
)


def all_samples(dataset):
    return sorted(
        (d, row) for d, domain in enumerate(dataset.domains) for row in range(len(dataset.labels(domain)))
    )


def samples_of(stream, round_=0):
    return sorted(
        pair
        for batch in stream
        if batch.round == round_
        for pair in zip(batch.domain_ids.tolist(), batch.rows.tolist(), strict=True)
    )


def domains_per_batch(stream):
    return np.count_nonzero(stream.composition(), axis=1)


@given(datasets(), complete, batch_sizes, seeds)
def test_every_sample_comes_exactly_once(dataset, scenario, batch_size, seed):
    assume(len(dataset) >= batch_size)
    name, settings = scenario
    stream = make(name, dataset, batch_size=batch_size, seed=seed, **settings)
    assert samples_of(stream) == all_samples(dataset)
    assert stream.sizes.sum() == len(stream.rows) == len(dataset)
    assert 1 <= stream.sizes.min() <= stream.sizes.max() <= batch_size


@given(datasets(least_domains=2, least_count=20), st.integers(1, 10), seeds)
def test_shuffle_takes_turns_and_random_has_the_same_batches(dataset, batch_size, seed):
    shuffled = make("shuffle", dataset, batch_size=batch_size, seed=seed)
    assert samples_of(shuffled) == all_samples(dataset)
    assert (shuffled.sizes[:-1] == batch_size).all()

    singles = sum(len(dataset.labels(domain)) // 2 // batch_size for domain in dataset.domains)
    assert singles <= len(shuffled) - singles
    assert (domains_per_batch(shuffled)[: 2 * singles : 2] == 1).all()
    single_domains = shuffled.composition()[: 2 * singles : 2].argmax(axis=1)
    for index, domain in enumerate(dataset.domains):
        assert (single_domains == index).sum() == len(dataset.labels(domain)) // 2 // batch_size
    # The same domain twice in a row only if it has more than half of the single-domain batches.
    most = np.bincount(single_domains).max()
    repeats = (single_domains[1:] == single_domains[:-1]).sum()
    assert repeats == max(0, 2 * most - singles - 1)

    matched = make("random", dataset, batch_size=batch_size, seed=seed, variant="paper")
    assert Counter(map(as_tuples, matched)) == Counter(map(as_tuples, shuffled))


def as_tuples(batch):
    return (*batch.domain_ids.tolist(), *batch.rows.tolist())


@pytest.mark.parametrize("other", [1, 2])
def test_batches_of_shuffle_come_in_another_order_in_random_and_for_each_seed(other):
    dataset = equal(64, 4)
    shuffled, matched = (
        make("shuffle", dataset, batch_size=8),
        make("random", dataset, batch_size=8, variant="paper"),
    )
    assert list(map(as_tuples, shuffled)) != list(map(as_tuples, matched))
    reseeded = make("random", dataset, batch_size=8, variant="paper", seed=other)
    assert matched.domain_ids.tolist() != reseeded.domain_ids.tolist()


def test_sizes_of_the_benchmark():
    dataset = equal(10_000)
    static = make("static", dataset)
    assert (len(static), static.sizes[156], static.sizes[-1]) == (15 * 157, 16, 16)
    across = make("static", dataset, across=True)
    assert (len(across), across.sizes[-1]) == (2344, 48)
    assert (domains_per_batch(across) == 2).sum() == 11
    crossmix = make("crossmix", dataset)
    assert (len(crossmix), crossmix.sizes[-1]) == (2344, 48)
    shuffled = make("shuffle", dataset)
    assert (len(shuffled), shuffled.sizes[-1]) == (2344, 48)
    assert (domains_per_batch(shuffled) == 1).sum() == 1170
    assert len(make("random", dataset)) == len(make("random", dataset, variant="paper")) == 2344


@given(datasets(), batch_sizes, seeds)
def test_static_keeps_the_order_of_domains_and_ends_batches_with_them(dataset, batch_size, seed):
    assume(len(dataset) >= batch_size)
    stream = make("static", dataset, batch_size=batch_size, seed=seed)
    assert (np.diff(stream.domain_ids) >= 0).all()
    assert (domains_per_batch(stream) == 1).all()
    counts = [len(dataset.labels(domain)) for domain in dataset.domains]
    assert len(stream) == sum(-(-count // batch_size) for count in counts)
    across = make("static", dataset, batch_size=batch_size, seed=seed, across=True)
    assert (across.sizes[:-1] == batch_size).all()
    assert across.rows.tolist() == stream.rows.tolist()


def test_static_has_another_order_in_each_domain():
    stream = make("static", equal(100, 3), batch_size=10)
    first, second, third = stream.rows.reshape(3, 100).tolist()
    assert first != second != third != first


def test_crossmix_is_one_permutation_by_numpys_generator():
    stream = make("crossmix", equal(50, 3), batch_size=16, seed=5)
    order = np.random.default_rng(5).permutation(150)
    assert stream.domain_ids.tolist() == (order // 50).tolist()
    assert stream.rows.tolist() == (order % 50).tolist()


@pytest.mark.parametrize("domains", [2, 6, 15])
def test_crossmix_mixes_all_domains(domains):
    stream = make("crossmix", equal(4000, domains))
    expected = domains * (1 - (1 - 1 / domains) ** 64)
    assert domains_per_batch(stream)[:-1].mean() == pytest.approx(expected, abs=0.05)


def test_random_draws_the_number_of_domains_uniformly():
    stream = make("random", equal(20_000, 5))
    counts = stream.composition()[:1200]  # before any domain runs out
    assert (stream.composition()[:1200].sum(axis=0) < 20_000).all()
    chosen = np.count_nonzero(counts, axis=1)
    assert np.bincount(chosen, minlength=6)[1:] / 1200 == pytest.approx(np.full(5, 0.2), abs=0.04)
    for batch, number in zip(counts, chosen, strict=True):
        shares = batch[batch > 0]
        assert {64 // number, -(-64 // number)} >= set(shares.tolist())
    assert counts.sum(axis=0) / counts.sum() == pytest.approx(np.full(5, 0.2), abs=0.02)


def test_random_fills_every_batch_but_the_last_and_fits_domains_into_small_batches():
    dataset = LabelsOnly({"a": 5, "b": 400, "c": 31, "d": 0, "e": 100})
    stream = make("random", dataset, batch_size=3)
    assert (stream.sizes[:-1] == 3).all()
    assert stream.sizes[-1] == 536 % 3
    early = domains_per_batch(stream)[:20]
    assert set(early.tolist()) == {1, 2, 3}


@pytest.mark.parametrize(("delta", "measured"), [(0.1, 1.26), (0.01, 1.12), (0.005, 1.08)])
def test_wild_has_as_few_classes_in_a_row_as_notes_sampler(delta, measured):
    labels = np.arange(10_000) % 10
    means = []
    for seed in range(10):
        order = Wild(delta=delta).in_runs(labels, 10, np.random.default_rng(seed))
        assert np.array_equal(np.sort(order), np.arange(10_000))
        windows = labels[order][: 156 * 64].reshape(156, 64)
        means.append(np.mean([len(np.unique(window)) for window in windows]))
    assert np.mean(means) == pytest.approx(measured, abs=0.05)


@pytest.mark.parametrize(("delta", "measured"), [(0.1, 14.8), (0.01, 4.3)])
def test_wild_has_few_of_a_hundred_classes_in_a_row(delta, measured):
    labels = np.arange(10_000) % 100
    order = Wild(delta=delta).in_runs(labels, 100, np.random.default_rng(0))
    windows = labels[order][: 156 * 64].reshape(156, 64)
    assert np.mean([len(np.unique(window)) for window in windows]) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize("variant", ["text", "paper"])
def test_wild_is_random_with_other_rows_which_are_consecutive_in_each_domain(variant):
    dataset = equal(1000, 4)
    wild, random = make("wild", dataset, variant=variant), make("random", dataset, variant=variant)
    assert wild.domain_ids.tolist() == random.domain_ids.tolist()
    assert wild.sizes.tolist() == random.sizes.tolist()
    for index, domain in enumerate(dataset.domains):
        labels = dataset.labels(domain)[wild.rows[wild.domain_ids == index]]
        shuffled = dataset.labels(domain)[random.rows[random.domain_ids == index]]
        assert (labels[1:] != labels[:-1]).mean() < 0.1
        assert (shuffled[1:] != shuffled[:-1]).mean() > 0.8


@given(
    st.lists(st.integers(0, 4), max_size=60),
    st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 50.0, 1e6]),
    st.integers(0, 12),
    st.integers(1, 5),
    seeds,
)
def test_runs_of_classes_have_every_row_once_whatever_the_labels(labels, delta, least, tries, seed):
    labels = np.array(labels, np.int64)
    order = Wild(delta=delta, least=least, tries=tries).in_runs(labels, 5, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(labels)))


def test_wild_gives_up_after_its_tries_and_keeps_the_best_draw():
    counts = np.full(20, 50)
    small, large = (
        Wild(delta=0.1, least=49, tries=tries)._deal(counts, np.random.default_rng(0)) for tries in (1, 300)
    )
    assert small.sum(axis=1).tolist() == large.sum(axis=1).tolist() == counts.tolist()
    assert small.sum(axis=0).min() < large.sum(axis=0).min()
    assert Wild(delta=5.0, least=20)._deal(counts, np.random.default_rng(0)).sum(axis=0).min() >= 20


@given(datasets(), batch_sizes, seeds, st.integers(1, 4))
def test_every_round_of_lifelong_is_a_permutation_of_its_own(dataset, batch_size, seed, rounds):
    assume(len(dataset) >= batch_size)
    stream = make("lifelong", dataset, batch_size=batch_size, seed=seed, rounds=rounds)
    per_round = -(-len(dataset) // batch_size)
    assert stream.rounds.tolist() == np.repeat(np.arange(rounds), per_round).tolist()
    for round_ in range(rounds):
        assert samples_of(stream, round_) == all_samples(dataset)
    crossmix = make("crossmix", dataset, batch_size=batch_size, seed=seed)
    assert stream.rows[: len(dataset)].tolist() == crossmix.rows.tolist()
    orders = stream.boundaries[::per_round]
    if len(dataset) > 20:
        passes = [(stream.domain_ids[a:b].tolist(), stream.rows[a:b].tolist()) for a, b in pairwise(orders)]
        assert all(passes[i] != passes[j] for i in range(rounds) for j in range(i))


SEVERE = [f"{kind}@{level}" for kind in ("fog", "snow") for level in (3, 1, 5, 2, 4)]


def test_gradual_goes_up_and_down_and_shows_every_sample_once():
    dataset = LabelsOnly({domain: 11 for domain in SEVERE})
    stream = make("gradual", dataset, batch_size=4)
    assert samples_of(stream) == all_samples(dataset)
    names = [stream.domains[index] for index in stream.domain_ids]
    steps = [name for name, before in zip(names, [None, *names], strict=False) if name != before]
    levels = (1, 2, 3, 4, 5, 4, 3, 2, 1)
    assert steps == [f"{kind}@{level}" for kind in ("fog", "snow") for level in levels]
    assert names[:6] == ["fog@1"] * 6  # the larger half of 11
    assert stream.sizes.tolist() == [4, 2] * 4 + [4, 4, 3] + [4, 1] * 4 + [4, 2] * 4 + [4, 4, 3] + [4, 1] * 4
    assert make("gradual", dataset, batch_size=4, across=True).sizes.tolist() == [4] * 27 + [2]


@pytest.mark.parametrize(
    ("domains", "message"),
    [(["fog@1", "fog@2", "clean"], "'clean' has none"), (["fog@1", "fog@2", "snow@5"], "'snow' has one")],
)
def test_gradual_needs_severities(domains, message):
    with pytest.raises(OptionError, match=message):
        make("gradual", equal(10, domains), batch_size=4)


@given(
    st.integers(1, 400),
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
    st.floats(0.01, 0.99).map(lambda fraction: round(fraction, 2)),
)
def test_mostly_clean_has_the_fraction_and_no_sample_twice(clean, drifted, fraction):
    dataset = LabelsOnly({"clean": clean} | {f"domain {index}": count for index, count in enumerate(drifted)})
    try:
        stream = make("mostly-clean", dataset, batch_size=1, fraction=fraction)
    except OptionError:
        # One more than none would already be too many.
        assert clean * (1 - fraction) < len(drifted) * fraction + 1e-9
        return
    pairs = samples_of(stream)
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) <= set(all_samples(dataset))
    used = stream.composition().sum(axis=0)
    assert len(set(used[1:].tolist())) == 1
    assert abs(used[0] - fraction * used.sum()) <= 0.5 + 1e-9
    # It could not be longer.
    each = used[1] + 1
    assert each > min(drifted) or each * len(drifted) * fraction / (1 - fraction) > clean - 1e-6


def test_mostly_clean_counts_in_tenths_not_in_binary_fractions():
    dataset = LabelsOnly({"fog@5": 500, "clean": 900} | {f"domain {index}": 500 for index in range(9)})
    stream = make("mostly-clean", dataset, fraction=0.9)
    assert stream.composition().sum(axis=0).tolist() == [10, 900, *[10] * 9]
    assert 0.8 < stream.composition()[:, 1].sum() / 1000 < 1
    assert stream.composition()[0].tolist() != stream.composition()[1].tolist()


@pytest.mark.parametrize("domains", [["clean"], ["fog@5", "snow@5"]])
def test_mostly_clean_needs_clean_and_drifted_samples(domains):
    with pytest.raises(OptionError, match="needs the domain 'clean' and at least one drifted domain"):
        make("mostly-clean", equal(100, domains))


def test_mostly_clean_says_when_there_are_too_few_clean_samples():
    dataset = LabelsOnly({"clean": 98, "fog@5": 100})
    with pytest.raises(OptionError, match="needs 99 clean samples for one sample of each of the 1 drifted"):
        make("mostly-clean", dataset, fraction=0.99)


@pytest.mark.parametrize("name", ["static", "crossmix", "random", "wild", "lifelong"])
def test_clean_alone_is_a_stream_too(name):
    dataset = equal(100, ["clean", "fog@5"]).pick(["clean"])
    stream = make_with_own_identity(name, dataset)
    assert stream.domains == ("clean",)
    assert set(stream.domain_ids.tolist()) == {0}
    assert len(stream.rows) >= 100


def make_with_own_identity(name, dataset, **settings):
    dataset.__dict__["identity"] = "a part"  # instead of reading images
    return make(name, dataset, batch_size=16, **settings)


@pytest.mark.parametrize(("name", "settings"), [("shuffle", {}), ("random", {"variant": "paper"})])
def test_mixed_batches_need_two_domains(name, settings):
    with pytest.raises(OptionError, match=f"{name}' needs at least 2 domains with samples, but the dataset has 1"):
        make(name, LabelsOnly({"a": 500, "b": 0}), **settings)


def test_shuffle_needs_a_domain_of_two_batches():
    with pytest.raises(OptionError, match=r"at most half of the largest domain \(63\), got 64"):
        make("shuffle", equal(127, 15))


def test_each_scenario_picks_what_it_is_usually_made_of():
    dataset = equal(8, ["clean", *(f"{kind}@{level}" for kind in MAIN_CORRUPTIONS for level in range(1, 6))])
    for name, kind in SCENARIOS.items():
        part = kind.part(dataset, limit=3)
        expected = {"gradual": 75, "mostly-clean": 16}.get(name, 15)
        assert len(part.domains) == expected
        assert len(part) == 3 * expected
    assert SCENARIOS["gradual"].part(dataset, ["fog"], (2, 4)).domains == ("fog@2", "fog@4")
    assert SCENARIOS["mostly-clean"].part(dataset, ["fog"], 2).domains == ("clean", "fog@2")
    assert SCENARIOS["mostly-clean"].part(dataset, ["fog", "clean"]).domains == ("fog@5", "clean")
    assert SCENARIOS["crossmix"].part(dataset, ["fog"], 2).domains == ("fog@2",)


def test_variants_of_random_are_checked():
    with pytest.raises(OptionError, match="variant must be 'text' or 'paper', got 'test'"):
        Random(variant="test")
