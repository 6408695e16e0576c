"""What every scenario promises about the order of samples and the domains of batches."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stream_data import LabelsOnly, datasets, equal

from findtta.data import load
from findtta.data.dataset import ALL_CORRUPTIONS, MAIN_CORRUPTIONS, PAIRED_CORRUPTIONS
from findtta.errors import OptionError, UnknownNameError
from findtta.streams import SCENARIOS, make, parse
from findtta.streams.scenarios import Random
from findtta.streams.scenarios.classes import _draw_classes, _sort_into_pieces

batch_sizes = st.integers(1, 40)
seeds = st.integers(0, 2**32 - 1)
complete = st.sampled_from(
    [
        ("static", {}),
        ("static", {"across": True}),
        ("crossmix", {}),
        ("random", {}),
        *(("wild", {"delta": delta}) for delta in (1e-6, 0.05, 1e6)),
        *(("wild", {"delta": delta, "variant": "authors"}) for delta in (1e-6, 0.05, 1e6)),
        ("label-sorted", {}),
        *(("markov", {"domain_stay": stay, "class_stay": 1 - stay}) for stay in (0, 0.5, 1)),
        ("markov", {"domain_stay": 1, "class_stay": 1}),
        ("clean", {}),
        ("pairs", {}),
    ]
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


@given(datasets(least_domains=2, least_count=20), st.integers(1, 40), seeds)
def test_shuffle_takes_turns_and_random_has_the_same_batches(dataset, batch_size, seed):
    assume(dataset.counts.max() >= batch_size)
    shuffled = make("shuffle", dataset, batch_size=batch_size, seed=seed)
    assert samples_of(shuffled) == all_samples(dataset)
    assert (shuffled.sizes[:-1] == batch_size).all()

    # Half of the batches have one domain, unless there are not that many full batches.
    full = dataset.counts // batch_size
    singles = min(len(shuffled) // 2, full.sum())
    assert (domains_per_batch(shuffled)[: 2 * singles : 2] == 1).all()
    single_domains = shuffled.composition()[: 2 * singles : 2].argmax(axis=1)
    of_domain = np.bincount(single_domains, minlength=len(full))
    assert (of_domain <= full).all()
    shares = dataset.counts * (len(shuffled) // 2) / len(dataset)
    if (full >= shares).all():
        assert (np.abs(of_domain - shares) < 1).all()
    # The same domain twice in a row only if it has more than half of the single-domain batches.
    repeats = (single_domains[1:] == single_domains[:-1]).sum()
    assert repeats == max(0, 2 * of_domain.max() - singles - 1)

    matched = make("random", dataset, batch_size=batch_size, seed=seed, variant="paper")
    assert Counter(map(as_tuples, matched)) == Counter(map(as_tuples, shuffled))


@given(st.one_of(st.integers(64, 700).map(lambda n: [n] * 15), st.lists(st.integers(64, 700), min_size=5)))
def test_half_of_the_batches_of_shuffle_have_one_domain_at_any_size(counts):
    stream = make("shuffle", LabelsOnly({f"domain {index}": count for index, count in enumerate(counts)}))
    singles = (domains_per_batch(stream)[: len(stream) // 2 * 2 : 2] == 1).sum()
    assert abs(singles - len(stream) / 2) < 1
    assert (domains_per_batch(stream)[1 : len(stream) // 2 * 2 : 2] > 1).all()


@pytest.mark.parametrize(("images", "share"), [(64, 7 / 15), (128, 0.5), (255, 0.5), (256, 0.5), (500, 0.5)])
def test_the_share_of_single_domains_does_not_depend_on_the_number_of_images(images, share):
    for name, settings in (("shuffle", {}), ("random", {"variant": "paper"}), ("wild", {"variant": "paper"})):
        assert (domains_per_batch(make(name, equal(images), **settings)) == 1).mean() == pytest.approx(share)


def test_the_seed_decides_which_of_equal_domains_have_one_batch_more():
    made = [make("shuffle", equal(64, 15), seed=seed) for seed in range(20)]
    chosen = [frozenset(stream.composition()[:14:2].argmax(axis=1).tolist()) for stream in made]
    assert all(len(domains) == 7 for domains in chosen)
    assert len(set(chosen)) > 15


def test_shuffle_has_all_the_batches_of_one_domain_that_there_are_samples_for():
    stream = make("shuffle", LabelsOnly({"a": 64, "b": 130} | {f"small {index}": 63 for index in range(9)}))
    assert sorted(stream.composition()[[0, 2, 4]].argmax(axis=1).tolist()) == [0, 1, 1]
    assert (domains_per_batch(stream) == 1).tolist() == [True, False] * 3 + [False] * (len(stream) - 6)


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


@given(datasets(least_domains=2, least_count=1), batch_sizes, seeds, st.sampled_from([1e-6, 0.1, 1e6]))
def test_streams_of_the_authors_show_every_sample_once_in_every_pass(dataset, batch_size, seed, delta):
    assume(len(dataset) >= batch_size)
    arguments = {"dataset": dataset, "batch_size": batch_size, "seed": seed}
    shuffled, random = (make(name, variant="authors", **arguments) for name in ("shuffle", "random"))
    wild = make("wild", variant="authors-random", delta=delta, **arguments)
    for stream, passes in ((shuffled, 2), (random, 2), (wild, 3)):
        assert len(stream) == passes * -(-len(dataset) // batch_size)
        assert all(samples_of(stream, round_) == all_samples(dataset) for round_ in range(passes))

    # In turn a batch of static and one of crossmix; random has the same batches, and wild has them too.
    parts = make("static", across=True, **arguments), make("crossmix", **arguments)
    for round_, part in enumerate(parts):
        assert shuffled.rounds[round_::2].tolist() == [round_] * len(part)
        for stream in (shuffled, random, wild):
            of_the_pass = [as_tuples(batch) for batch in stream if batch.round == round_]
            assert Counter(of_the_pass) == Counter(map(as_tuples, part))
    assert [as_tuples(batch) for batch in shuffled if batch.round == 0] == list(map(as_tuples, parts[0]))


@pytest.mark.parametrize("images", [100, 500, 2000])
def test_half_of_the_batches_of_the_authors_have_one_domain_but_where_domains_meet(images):
    dataset = equal(images)
    batches = -(-15 * images // 64)
    # Where a domain ends within a batch, the batch has two domains.
    straddling = sum(end * images % 64 > 0 for end in range(1, 15))
    for name in ("shuffle", "random"):
        domains = domains_per_batch(make(name, dataset, variant="authors"))
        assert (len(domains), (domains == 1).sum(), (domains == 2).sum()) == (
            2 * batches,
            batches - straddling,
            straddling,
        )
    orders = {make("random", dataset, variant="authors", seed=seed).rounds.tobytes() for seed in range(3)}
    assert len(orders) == 3


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
    assert (domains_per_batch(shuffled) == 1).sum() == 1172
    assert len(make("random", dataset)) == len(make("random", dataset, variant="paper")) == 2344
    authors = make("random", dataset, variant="authors")
    assert (len(authors), (domains_per_batch(authors) == 2).sum()) == (2 * 2344, 11)


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


def classes_per_batch(stream, dataset):
    return np.array([len(np.unique(dataset.batch_labels(batch))) for batch in stream])


def expected_classes(delta, classes, batch_size=64):
    """How many classes a batch has on average whose probabilities are from Dirichlet(delta, ..., delta)."""
    absent = np.prod([(delta * (classes - 1) + drawn) / (delta * classes + drawn) for drawn in range(batch_size)])
    return classes * (1 - absent)


@pytest.mark.parametrize("variant", ["text", "paper"])
@pytest.mark.parametrize(
    ("images", "delta", "classes", "tolerance"),
    [(2000, 0.1, 10, 0.05), (2000, 1.0, 10, 0.03), (2000, 0.1, 100, 0.08), (500, 0.1, 10, 0.12)],
)
def test_wild_has_as_many_classes_in_a_batch_as_its_distribution(variant, images, delta, classes, tolerance):
    dataset = equal(images, 15, classes)
    means = [
        classes_per_batch(make("wild", dataset, variant=variant, delta=delta, seed=seed), dataset).mean()
        for seed in range(3000 // images)
    ]
    assert np.mean(means) == pytest.approx(expected_classes(delta, classes), rel=tolerance)


def test_wild_has_few_classes_at_every_size_and_to_the_end():
    small, large = equal(128), equal(2000)
    means = [classes_per_batch(make("wild", small, seed=seed), small).mean() for seed in range(10)]
    assert np.mean(means) < 5  # 3.8 where domains have enough of every class
    counts = classes_per_batch(make("wild", large, delta=0.01), large)
    assert counts.mean() < 2
    assert counts[-60:].mean() < 2.5
    assert counts[:60].mean() > 1.2


@pytest.mark.parametrize("variant", ["text", "paper"])
def test_wild_has_the_domains_of_random(variant):
    dataset = LabelsOnly({"a": 300, "b": 0, "c": 1000, "d": 77})
    wild, random = make("wild", dataset, variant=variant), make("random", dataset, variant=variant)
    assert wild.sizes.tolist() == random.sizes.tolist()
    assert wild.composition().tolist() == random.composition().tolist()
    for batch in wild:
        if len(np.unique(batch.domain_ids)) > 2:
            assert (np.diff(batch.domain_ids) < 0).any()  # in random order


def test_the_domains_of_a_batch_of_wild_have_the_same_classes():
    dataset = equal(2000, 4)
    shared = [
        len(set.intersection(*classes)) / len(set.union(*classes))
        for batch in make("wild", dataset, delta=0.01)
        if len(classes := classes_of_domains(batch, dataset)) > 1
    ]
    assert np.mean(shared) > 0.6  # 0.1 if domains drew on their own


def classes_of_domains(batch, dataset):
    labels = dataset.batch_labels(batch)
    return [set(labels[batch.domain_ids == domain].tolist()) for domain in np.unique(batch.domain_ids)]


def test_rare_classes_are_rare_in_wild():
    dataset = LabelsOnly({"a": 3000, "b": 3000}, classes=3)
    dataset._labels = {domain: np.repeat([0, 1, 2], [2700, 240, 60]) for domain in "ab"}
    stream = make("wild", dataset)
    present = [np.isin([0, 1, 2], dataset.batch_labels(batch)) for batch in stream]
    often, seldom, rare = np.mean(present, axis=0)
    assert often > 0.9
    assert often > seldom > rare > 0


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=4),
    st.sampled_from([1e-6, 0.1, 1e6]),
    st.data(),
)
def test_domains_give_what_they_have_and_few_classes(left, delta, data):
    left = np.array(left)
    assume(left.any())
    sizes = np.array([data.draw(st.integers(0, int(count))) for count in left.sum(axis=1)])
    taken = _draw_classes(left, sizes, delta, np.random.default_rng(0))
    assert taken.sum(axis=1).tolist() == sizes.tolist()
    assert ((taken >= 0) & (taken <= left)).all()
    enough = (left >= sizes[:, None]).all(axis=0)
    if delta == 1e-6 and enough.all():
        assert np.count_nonzero(taken.any(axis=0)) <= 1


def test_what_a_domain_lacks_comes_from_classes_of_the_batch_and_else_from_the_one_that_fills_most():
    # With a delta this small, one class is drawn. The first domain lacks 6 of class 0, which class 2 fills, and 1
    # of class 1; the second lacks 4 of class 2, which 0 and 1 fill; both lack 4 of class 3, which 1 fills.
    left = np.array([[0, 5, 8, 2], [10, 9, 2, 2]])
    found = set()
    for seed in range(40):
        taken = _draw_classes(left, np.array([6, 6]), 1e-6, np.random.default_rng(seed))
        found.add(tuple(np.flatnonzero(taken.any(axis=0)).tolist()))
    assert found == {(0, 2), (1, 2), (1, 3)}


@pytest.mark.parametrize(
    ("classes", "delta", "mean"), [(10, 0.1, 1.26), (10, 0.01, 1.12), (100, 0.1, 14.8), (100, 0.01, 4.3)]
)
def test_wild_of_the_authors_has_the_classes_of_the_sampler_of_note(classes, delta, mean):
    """The means are of an implementation of its own, on a domain of 10,000 images."""
    dataset = equal(10_000, 1, classes)
    streams = [make("wild", dataset, variant="authors", delta=delta, seed=seed) for seed in range(6)]
    assert np.mean([classes_per_batch(stream, dataset).mean() for stream in streams]) == pytest.approx(
        mean, rel=0.05
    )


def test_wild_of_the_authors_mixes_domains_in_every_batch_or_sorts_each_domain():
    dataset = equal(2000)
    together = make("wild", dataset, variant="authors")
    assert domains_per_batch(together)[:-1].mean() == pytest.approx(15 * (1 - (14 / 15) ** 64), abs=0.1)
    assert classes_per_batch(together, dataset).mean() < 1.3
    joined = make("wild", dataset, variant="authors-random")
    of_passes = [classes_per_batch(joined, dataset)[joined.rounds == round_].mean() for round_ in range(3)]
    assert min(of_passes[:2]) > 9.9
    assert 1.5 < of_passes[2] < 3
    assert (domains_per_batch(joined)[joined.rounds == 2] > 1).sum() == 11  # where domains meet


@given(
    st.lists(st.integers(0, 4), min_size=0, max_size=60).map(np.array), st.sampled_from([1e-6, 0.1, 1e6]), seeds
)
def test_a_chunk_has_one_piece_of_each_class(labels, delta, seed):
    labels = labels.astype(np.int64)
    order = _sort_into_pieces(labels, 5, delta, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(labels)))
    # Five chunks of at most five pieces each.
    assert np.count_nonzero(np.diff(labels[order])) < 25


@given(datasets(), batch_sizes, seeds)
def test_label_sorted_shows_one_class_after_the_other(dataset, batch_size, seed):
    assume(len(dataset) >= batch_size)
    stream = make("label-sorted", dataset, batch_size=batch_size, seed=seed)
    labels = np.concatenate([dataset.batch_labels(batch) for batch in stream])
    assert np.count_nonzero(np.diff(labels)) == len(np.unique(labels)) - 1
    assert (stream.sizes[:-1] == batch_size).all()
    if np.bincount(labels)[np.unique(labels)].min() >= batch_size:
        assert classes_per_batch(stream, dataset).max() <= 2


def test_label_sorted_mixes_all_domains_and_draws_the_order_of_classes():
    dataset = equal(4000, 6)
    stream = make("label-sorted", dataset)
    assert domains_per_batch(stream)[:-1].mean() == pytest.approx(6 * (1 - (5 / 6) ** 64), abs=0.05)
    assert classes_per_batch(stream, dataset).mean() < 1.1
    firsts = {int(dataset.batch_labels(make("label-sorted", dataset, seed=seed)[0])[0]) for seed in range(12)}
    assert len(firsts) > 4


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


@given(datasets(), batch_sizes, seeds, st.integers(1, 5), st.booleans())
def test_recurring_comes_back_to_every_domain_and_shows_every_sample_once(
    dataset, batch_size, seed, visits, across
):
    assume(len(dataset) >= batch_size)
    stream = make("recurring", dataset, batch_size=batch_size, seed=seed, visits=visits, across=across)
    assert sorted(zip(stream.domain_ids.tolist(), stream.rows.tolist(), strict=True)) == all_samples(dataset)
    # The order of domains starts again with each visit, and visits show equal parts of a domain.
    starts = [0, *(np.flatnonzero(np.diff(stream.domain_ids) < 0) + 1).tolist(), len(stream.rows)]
    assert len(starts) - 1 <= visits
    parts = [np.bincount(stream.domain_ids[a:b], minlength=len(dataset.domains)) for a, b in pairwise(starts)]
    if len(parts) == visits:
        assert np.ptp(parts, axis=0).max() <= 1
    if not across:
        assert (domains_per_batch(stream) == 1).all()
    assert (np.diff(stream.rounds) >= 0).all()
    assert make("recurring", dataset, batch_size=batch_size, seed=seed, visits=1, across=across).rows.tolist() == (
        make("static", dataset, batch_size=batch_size, seed=seed, across=across).rows.tolist()
    )


def test_recurring_is_a_b_c_a_b_c_and_its_rounds_are_the_visits():
    stream = make("recurring", equal(20, ["a", "b", "c"]), batch_size=10, visits=2)
    assert stream.domain_ids.tolist() == np.repeat([0, 1, 2, 0, 1, 2], 10).tolist()
    assert stream.rounds.tolist() == [0, 0, 0, 1, 1, 1]


def repeats(values):
    return np.mean(values[1:] == values[:-1])


@pytest.mark.parametrize("class_stay", [0.0, 0.9])
@pytest.mark.parametrize("domain_stay", [0.0, 0.9])
def test_markov_keeps_domain_and_class_as_often_as_asked(domain_stay, class_stay):
    dataset = equal(2000, 5)
    stream = make("markov", dataset, domain_stay=domain_stay, class_stay=class_stay)
    labels = np.concatenate([dataset.batch_labels(batch) for batch in stream])
    # Who does not stay may draw the same again: one in five domains, one in ten classes.
    assert repeats(stream.domain_ids) == pytest.approx(domain_stay + (1 - domain_stay) / 5, abs=0.02)
    assert repeats(labels) == pytest.approx(class_stay + (1 - class_stay) / 10, abs=0.02)
    # The two are independent of each other.
    both = np.mean((np.diff(stream.domain_ids) == 0) & (np.diff(labels) == 0))
    assert both == pytest.approx(repeats(stream.domain_ids) * repeats(labels), abs=0.02)
    # Neither domain nor class runs out before the others: halves are alike.
    half = len(labels) // 2
    assert np.bincount(stream.domain_ids[:half]) / half == pytest.approx(np.full(5, 0.2), abs=0.03)


@pytest.mark.parametrize(("domain_ratio", "class_ratio"), [(10, 1), (1, 10), (4, 4)])
def test_markov_has_as_many_of_the_rarest_as_asked(domain_ratio, class_ratio):
    dataset = equal(2000, 5)
    stream = make("markov", dataset, domain_ratio=domain_ratio, class_ratio=class_ratio)
    labels = np.concatenate([dataset.batch_labels(batch) for batch in stream])
    for values, ratio in ((stream.domain_ids, domain_ratio), (labels, class_ratio)):
        counts = np.sort(np.bincount(values))[::-1]
        assert counts / counts[0] == pytest.approx(ratio ** -np.linspace(0, 1, len(counts)), rel=0.05)
    pairs = samples_of(stream)
    assert len(set(pairs)) == len(pairs)
    rarest = {
        int(make("markov", dataset, domain_ratio=10, seed=seed).composition().sum(0).argmin()) for seed in range(9)
    }
    assert len(rarest) > 1  # which one it is is drawn


@given(datasets(least_count=1), batch_sizes, seeds, st.floats(1, 20), st.floats(0, 1))
def test_markov_of_any_shares_shows_no_sample_twice(dataset, batch_size, seed, ratio, stay):
    settings = {"domain_ratio": ratio, "class_ratio": 1, "domain_stay": stay, "class_stay": stay}
    try:
        stream = make("markov", dataset, batch_size=batch_size, seed=seed, **settings)
    except OptionError:
        assert batch_size > len(dataset) / ratio - len(dataset.domains) * len(dataset.classes)
        return
    pairs = samples_of(stream)
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) <= set(all_samples(dataset))


def test_markov_without_memory_is_a_mixture_of_everything():
    dataset = equal(2000)
    stream = make("markov", dataset, domain_stay=0, class_stay=0)
    assert domains_per_batch(stream)[:-1].mean() == pytest.approx(15 * (1 - (14 / 15) ** 64), abs=0.1)
    assert classes_per_batch(stream, dataset).mean() > 9.9


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


def test_potpourri_has_every_kind_of_drift_and_a_share_of_clean_samples():
    on_the_fly = load("shapes", count=100)
    part = SCENARIOS["potpourri"].part(on_the_fly)
    assert part.domains == (
        "clean",
        *(f"{kind}@5" for kind in ALL_CORRUPTIONS),
        *(f"{kind}@3" for kind in PAIRED_CORRUPTIONS),
    )
    used = make_with_own_identity("potpourri", part).composition().sum(axis=0)
    assert used.tolist() == [100, *[16] * 25]
    other = LabelsOnly({"clean": 30, "sketch": 30, "fog@5": 30})
    assert SCENARIOS["potpourri"].part(other).domains == ("clean", "sketch", "fog@5")
    assert SCENARIOS["potpourri"].part(on_the_fly, ["snow"]).domains == ("clean", "snow@5")


def test_pairs_has_two_corruptions_on_every_image_and_clean_none():
    dataset = load("shapes", count=20)
    assert SCENARIOS["pairs"].part(dataset).domains == tuple(f"{kind}@3" for kind in PAIRED_CORRUPTIONS)
    assert SCENARIOS["pairs"].part(dataset, severity=5).domains[0] == "snow+motion_blur@5"
    assert SCENARIOS["clean"].part(dataset).domains == ("clean",)
    with pytest.raises(UnknownNameError, match="no 'snow\\+motion_blur@3'"):
        SCENARIOS["pairs"].part(equal(10))


@pytest.mark.parametrize("domains", [["clean"], ["fog@5", "snow@5"]])
def test_mostly_clean_needs_clean_and_drifted_samples(domains):
    with pytest.raises(OptionError, match="needs the domain 'clean' and at least one drifted domain"):
        make("mostly-clean", equal(100, domains))


def test_mostly_clean_says_when_there_are_too_few_clean_samples():
    dataset = LabelsOnly({"clean": 98, "fog@5": 100})
    with pytest.raises(OptionError, match="needs 99 clean samples for one sample of each of the 1 drifted"):
        make("mostly-clean", dataset, fraction=0.99)


@pytest.mark.parametrize("name", ["static", "crossmix", "random", "wild", "label-sorted", "lifelong"])
def test_clean_alone_is_a_stream_too(name):
    dataset = equal(100, ["clean", "fog@5"]).pick(["clean"])
    stream = make_with_own_identity(name, dataset)
    assert stream.domains == ("clean",)
    assert set(stream.domain_ids.tolist()) == {0}
    assert len(stream.rows) >= 100


def make_with_own_identity(name, dataset, **settings):
    dataset.__dict__["identity"] = "a part"  # instead of reading images
    return make(name, dataset, batch_size=16, **settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("shuffle", {}),
        ("shuffle", {"variant": "authors"}),
        ("random", {"variant": "paper"}),
        ("random", {"variant": "authors"}),
        ("wild", {"variant": "authors-random"}),
    ],
)
def test_mixed_batches_need_two_domains(name, settings):
    with pytest.raises(OptionError, match=f"{name}' needs at least 2 domains with samples, but the dataset has 1"):
        make(name, LabelsOnly({"a": 500, "b": 0}), **settings)


@pytest.mark.parametrize("text", ["shuffle", "random:variant=paper", "wild:variant=paper"])
def test_batches_of_one_domain_need_a_domain_with_a_full_batch(text):
    name, settings = parse(text)
    with pytest.raises(OptionError, match=r"at most 63, the number of samples of the largest domain, .* got 64"):
        make(name, equal(63, 15), **settings)


def test_each_scenario_picks_what_it_is_usually_made_of():
    dataset = equal(8, ["clean", *(f"{kind}@{level}" for kind in MAIN_CORRUPTIONS for level in range(1, 6))])
    for name, kind in SCENARIOS.items():
        if name == "pairs":
            continue
        part = kind.part(dataset, limit=3)
        expected = {"gradual": 75, "mostly-clean": 16, "potpourri": 16, "clean": 1}.get(name, 15)
        assert len(part.domains) == expected
        assert len(part) == 3 * expected
    assert SCENARIOS["gradual"].part(dataset, ["fog"], (2, 4)).domains == ("fog@2", "fog@4")
    assert SCENARIOS["mostly-clean"].part(dataset, ["fog"], 2).domains == ("clean", "fog@2")
    assert SCENARIOS["mostly-clean"].part(dataset, ["fog", "clean"]).domains == ("fog@5", "clean")
    assert SCENARIOS["crossmix"].part(dataset, ["fog"], 2).domains == ("fog@2",)


def test_variants_of_random_are_checked():
    with pytest.raises(OptionError, match="variant must be 'text' or 'paper' or 'authors', got 'test'"):
        Random(variant="test")
