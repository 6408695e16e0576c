"""Scenarios: the ways in which samples of several domains arrive."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Literal

import numpy as np

from findtta.data.dataset import CLEAN, SEVERITIES, DomainDataset, split_domain
from findtta.errors import OptionError
from findtta.options import Count, Number, option, require_number
from findtta.streams.order import Ints, Order, Scenario, batch_sizes, generator, labels_of, serve_shuffled


@dataclass(frozen=True)
class Static(Scenario):
    """One domain after the other, in the order of the dataset, as in continual adaptation.

    Batches end where a domain ends, so that each has one domain, as the FIND paper says of this scenario. TTAB
    cuts across: ``across=True``. TTAB also puts the images of all domains into the same order; here each has its
    own.
    """

    name = "static"
    summary = "one domain after the other"

    across: bool = option(False, "let batches run across from one domain to the next")

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domains, counts = zip(*self.steps(dataset), strict=True)
        domain_ids = np.repeat(np.array(domains), counts)
        sizes = batch_sizes([sum(counts)] if self.across else counts, batch_size)
        return Order(domain_ids, serve_shuffled(domain_ids, dataset, seed), sizes)

    def steps(self, dataset: DomainDataset) -> list[tuple[int, int]]:
        """Return which domains come after one another, and how many samples of each."""
        return list(enumerate(dataset.counts.tolist()))


@dataclass(frozen=True)
class Gradual(Static):
    """Each kind of drift grows severity by severity, then fades again; then comes the next kind.

    Severities 1, 2, 3, 4, 5, 4, 3, 2, 1. Every sample comes once: the domain of a severity that is passed twice
    shows one half of its samples on the way up and the other on the way down, and the worst severity shows all at
    once.
    """

    name = "gradual"
    summary = "each kind of drift grows and fades before the next one comes"
    usual_severity = SEVERITIES

    def steps(self, dataset: DomainDataset) -> list[tuple[int, int]]:
        steps = []
        for kind in _kinds(dataset.domains):
            *milder, worst = [(domain, int(dataset.counts[domain])) for domain in kind]
            steps += [(domain, (count + 1) // 2) for domain, count in milder]
            steps += [worst, *((domain, count // 2) for domain, count in reversed(milder))]
        return steps


def _kinds(domains: Sequence[str]) -> list[list[int]]:
    """Return for each kind of domain its domains, from the mildest to the worst."""
    kinds: dict[str, dict[int, int]] = {}
    for index, domain in enumerate(domains):
        kind, severity = split_domain(domain)
        if severity is None:
            raise OptionError(
                f"stream 'gradual' needs domains with severities such as 'fog@3', but {domain!r} has none: "
                "leave it out, for instance with dataset.pick(['fog'], severity=(1, 2, 3, 4, 5))."
            )
        kinds.setdefault(kind, {})[severity] = index
    for kind, by_severity in kinds.items():
        if len(by_severity) < 2:
            raise OptionError(
                f"stream 'gradual' needs at least 2 severities of every kind of domain, but {kind!r} has one: "
                "pick more, for instance with dataset.pick(severity=(1, 2, 3, 4, 5))."
            )
    return [[by_severity[level] for level in sorted(by_severity)] for by_severity in kinds.values()]


@dataclass(frozen=True)
class CrossMix(Scenario):
    """All samples of all domains in one uniformly random order, so that every batch mixes domains."""

    name = "crossmix"
    summary = "all domains mixed in every batch"

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        return Order(*mixed(dataset, seed), batch_sizes([len(dataset)], batch_size))


@dataclass(frozen=True)
class LabelSorted(Scenario):
    """One class after the other, each with the samples of all domains in random order.

    The order of the classes is drawn. Batches are cut without regard to classes, so that where every class has at
    least a batch of samples, a batch holds one or two of them.
    """

    name = "label-sorted"
    summary = "all domains mixed in every batch, one class after the other"

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids, rows = mixed(dataset, seed)
        places = generator(seed, "order of classes").permutation(len(dataset.classes))
        order = np.argsort(places[labels_of(dataset, domain_ids, rows)], kind="stable")
        return Order(domain_ids[order], rows[order], batch_sizes([len(dataset)], batch_size))


@dataclass(frozen=True)
class Lifelong(Scenario):
    """CrossMix several times over, each time in another order, without a pause in between.

    The first round is the stream CrossMix of the same seed. Batches end where a round ends.
    """

    name = "lifelong"
    summary = "all domains mixed, the whole data several times over"

    rounds: Count = option(2, "passes over the data")

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids, rows = np.concatenate([mixed(dataset, seed, round_) for round_ in range(self.rounds)], axis=1)
        sizes = batch_sizes([len(dataset)], batch_size)
        rounds = np.repeat(np.arange(self.rounds), len(sizes))
        return Order(domain_ids, rows, np.tile(sizes, self.rounds), rounds)


def mixed(dataset: DomainDataset, seed: int, round_: int = 0) -> tuple[Ints, Ints]:
    """Return the domains and rows of all samples in a random order, another one for each round."""
    # A trailing zero does not change a seed: round 0 is numpy's default_rng(seed), the order that TTAB has.
    order = np.random.default_rng([seed, round_]).permutation(len(dataset))
    domain_ids = np.repeat(np.arange(len(dataset.domains)), dataset.counts)
    rows = np.concatenate([np.arange(count) for count in dataset.counts])
    return domain_ids[order], rows[order]


@dataclass(frozen=True)
class Shuffle(Scenario):
    """Batches of one domain and batches of mixed domains in turn.

    The paper says no more than that. By default (``"paper"``) half of the batches (rounded down) have one domain,
    each domain in proportion to its samples, and all the rest is mixed: with batch statistics on ImageNet-C the
    paper reports for Shuffle just the mean of Static and CrossMix. If domains have too few samples for that many
    full batches, there are as many as possible, and mixed batches at the end.

    The authors' code of an earlier method (``"authors"``; BatchMixing with Interval_Seq in DYW77/DATTA) takes in
    turn a batch of Static, whose domains come one after the other and are cut across, and a batch of CrossMix, so
    that every sample comes twice. It leaves out the last batch of each where that is not full; here it is kept.
    """

    name = "shuffle"
    summary = "batches of one domain and batches of mixed domains in turn"

    variant: Literal["paper", "authors"] = option(
        "paper",
        "'paper' (every sample once, half of the batches of one domain) or 'authors' (every sample twice, the "
        "batches of static and of crossmix in turn)",
    )

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        self.require_two_domains(dataset)
        if self.variant == "authors":
            return _take_turns(_static_and_crossmix(dataset, batch_size, seed))
        if dataset.counts.max() < batch_size:
            raise OptionError(
                f"batch_size must be at most {dataset.counts.max()}, the number of samples of the largest domain, "
                f"or no batch can have one domain, got {batch_size}: take a smaller batch_size or more samples."
            )
        singles_of = _allot(dataset.counts, batch_size, generator(seed, "shares of domains"))
        singles = _without_neighbours(singles_of, generator(seed, "single-domain batches"))
        pool = np.repeat(np.arange(len(dataset.counts)), dataset.counts - singles_of * batch_size)
        pool = generator(seed, "mixed batches").permutation(pool)

        batches = np.split(pool, np.arange(batch_size, len(pool), batch_size))
        for place, domain in enumerate(singles):
            batches.insert(2 * place, np.full(batch_size, domain))
        domain_ids = np.concatenate(batches)
        sizes = batch_sizes([len(domain_ids)], batch_size)
        return Order(domain_ids, serve_shuffled(domain_ids, dataset, seed), sizes)


def _static_and_crossmix(dataset: DomainDataset, batch_size: int, seed: int) -> list[Order]:
    return [part.arrange(dataset, batch_size, seed) for part in (Static(across=True), CrossMix())]


def _take_turns(parts: Sequence[Order]) -> Order:
    """Return the batches of several passes over the data in turn: the first of each, then the second of each."""
    joined = Order(
        np.concatenate([part.domain_ids for part in parts]),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.repeat(np.arange(len(parts)), [len(part.sizes) for part in parts]),
    )
    places = np.concatenate([np.arange(len(part.sizes)) for part in parts])
    return _reorder(joined, np.argsort(places, kind="stable"))


def _reorder(order: Order, batches: Ints) -> Order:
    """Return the same batches in another order."""
    ends = order.sizes.cumsum()
    positions = np.concatenate([np.arange(ends[batch] - order.sizes[batch], ends[batch]) for batch in batches])
    rounds = None if order.rounds is None else order.rounds[batches]
    return Order(order.domain_ids[positions], order.rows[positions], order.sizes[batches], rounds)


def _allot(counts: Ints, batch_size: int, random: np.random.Generator) -> Ints:
    """Return how many batches of its own each domain has: half of all batches, in proportion to the samples."""
    total = counts.sum()
    number = -(-total // batch_size) // 2
    full = counts // batch_size
    domains = np.repeat(np.arange(len(counts)), full)
    earlier = np.concatenate([np.arange(batches) for batches in full])
    # By how much a domain is below its share, times the total, before each of the batches that it could have; the
    # largest of these are what the method of largest remainders takes.
    below = counts[domains] * number - earlier * total
    chosen = np.lexsort((random.random(len(below)), -below))[:number]
    return np.bincount(domains[chosen], minlength=len(counts))


def _without_neighbours(counts: Ints, random: np.random.Generator) -> Ints:
    """Return domain d ``counts[d]`` times in random order, the same twice in a row only if it must be."""
    left = counts.copy()
    order: list[int] = []
    for remaining in range(int(counts.sum()), 0, -1):
        weights = left.copy()
        if order:
            weights[order[-1]] = 0
        most = int(weights.argmax())
        if weights[most] > remaining // 2:
            chosen = most  # later it would meet itself
        elif weights[most] == 0:
            chosen = order[-1]  # only this one is left
        else:
            sums = weights.cumsum()
            chosen = int(np.searchsorted(sums, random.integers(sums[-1]), side="right"))
        order.append(chosen)
        left[chosen] -= 1
    return np.array(order, np.int64)


@dataclass(frozen=True)
class Random(Scenario):
    """A random number of domains in each batch.

    By the text of the paper (``"text"``), every batch draws the number of its domains uniformly, then which ones,
    and takes as evenly as possible from each. The paper's numbers fit another reading better (``"paper"``): the
    batches of Shuffle, half of them of one domain, in random order. The authors' code of an earlier method does
    that with the batches of its own Shuffle (``"authors"``; BatchMixing with Shuffle_Shuffle in DYW77/DATTA).
    """

    name = "random"
    summary = "a random number of domains in each batch"

    variant: Literal["text", "paper", "authors"] = option(
        "text",
        "'text' (1 to all domains, each number as likely), 'paper' or 'authors' (the batches of that variant of "
        "shuffle in random order)",
    )

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        if self.variant != "text":
            self.require_two_domains(dataset)
            return _in_random_order(Shuffle(variant=self.variant).arrange(dataset, batch_size, seed), seed)
        domain_ids, sizes = _draw(dataset.counts, batch_size, generator(seed, "domains of batches"))
        return Order(domain_ids, serve_shuffled(domain_ids, dataset, seed), sizes)


def _in_random_order(order: Order, seed: int) -> Order:
    return _reorder(order, generator(seed, "order of batches").permutation(len(order.sizes)))


def _draw(counts: Ints, batch_size: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw domains batch by batch until none has samples left; returns domain ids and batch sizes."""
    left = counts.copy()
    parts: list[Ints] = []
    while left.any():
        present = random.permutation(np.flatnonzero(left))
        # In a batch of 4 there is no room for 5 domains.
        chosen = int(random.integers(1, min(len(present), batch_size) + 1))
        taken = _share_out(left[present], chosen, batch_size)
        left[present] -= taken
        parts.append(np.repeat(present, taken))
    return np.concatenate(parts), np.array([len(part) for part in parts], np.int64)


def _share_out(available: Ints, chosen: int, batch_size: int) -> Ints:
    """Take evenly from the first ``chosen`` domains; what some lack, others give, the chosen ones first."""
    taken = np.zeros_like(available)
    each, rest = divmod(batch_size, chosen)
    taken[:chosen] = each
    taken[:rest] += 1
    taken = np.minimum(taken, available)
    spare = available - taken
    missing = batch_size - taken.sum() - (spare.cumsum() - spare)  # after those before have given all they have
    return taken + np.clip(missing, 0, spare)


@dataclass(frozen=True)
class Wild(Random):
    """Random, and in each batch few classes.

    The domains of a batch are those of Random. Its classes have probabilities drawn from a Dirichlet distribution,
    the same for all its domains, whose concentrations are delta on average and proportional to what these domains
    have left of each class. What a domain lacks of the classes it draws comes from other classes of the batch, or
    else from the class that fills most of the gap. The order within a batch is random.

    The paper applies NOTE's sampler to each domain, which deals its samples into as many chunks as there are
    classes: the number of classes in a batch then depends on the number of images. Here it depends on delta, the
    batch size and the number of classes only, apart from what domains lack: a batch that takes 64 images from a
    domain with 13 of each class has at least 5 classes.

    In the authors' code of an earlier method (DYW77/DATTA) that sampler sorts all domains together, after mixing
    them (``"authors"``; CrossHeterMixture), or each domain, as a third pass over the data whose batches join those
    of its Random (``"authors-random"``; BatchMixing with Homo&Cross&Heter and Shuffle_Shuffle). The paper's
    numbers fit the second. It draws anew where a chunk has nearly no samples, which is left out here.
    """

    name = "wild"
    summary = "a random number of domains in each batch, and few classes"

    variant: Literal["text", "paper", "authors", "authors-random"] = option(  # type: ignore[assignment]
        "text",
        "'text' or 'paper' (the domains of that variant of random), 'authors' (all domains mixed, in pieces of "
        "one class) or 'authors-random' (the batches of random:variant=authors, and of domains sorted so)",
    )
    delta: Annotated[float, partial(require_number, low=1e-6, high=1e6)] = option(
        0.1, "concentration of the Dirichlet distribution; the smaller, the fewer classes in a batch"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "delta", float(self.delta))  # 1 and 1.0 are the same stream

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        if self.variant == "authors":
            return self._in_pieces(dataset, [mixed(dataset, seed)], batch_size, seed)
        if self.variant == "authors-random":
            self.require_two_domains(dataset)
            each_domain = [(np.full(count, index), np.arange(count)) for index, count in enumerate(dataset.counts)]
            sorted_domains = self._in_pieces(dataset, each_domain, batch_size, seed)
            passes = [*_static_and_crossmix(dataset, batch_size, seed), sorted_domains]
            return _in_random_order(_take_turns(passes), seed)
        order = super().arrange(dataset, batch_size, seed)
        domain_ids, rows = mixed(dataset, seed)
        classes = len(dataset.classes)
        cells = domain_ids * classes + labels_of(dataset, domain_ids, rows)
        numbers = np.arange(len(dataset.domains) * classes).reshape(-1, classes)
        left = np.bincount(cells, minlength=numbers.size).reshape(numbers.shape)
        random = generator(seed, "classes of batches")
        batches = np.split(order.domain_ids, order.sizes.cumsum()[:-1])
        # Those that draw last get what is left, of many classes: in random order, they are all over the stream.
        for index in random.permutation(len(batches)):
            domains, sizes = np.unique(batches[index], return_counts=True)
            taken = _draw_classes(left[domains], sizes, self.delta, random)
            left[domains] -= taken
            batches[index] = random.permutation(np.repeat(numbers[domains].ravel(), taken.ravel()))
        served = np.concatenate(batches)
        in_order = np.empty_like(rows)
        in_order[np.argsort(served, kind="stable")] = rows[np.argsort(cells, kind="stable")]
        return Order(served // classes, in_order, order.sizes)

    def _in_pieces(
        self, dataset: DomainDataset, stretches: Sequence[tuple[Ints, Ints]], batch_size: int, seed: int
    ) -> Order:
        """Return stretches of samples one after the other, each sorted into pieces of one class."""
        parts = []
        for index, (domain_ids, rows) in enumerate(stretches):
            labels, random = labels_of(dataset, domain_ids, rows), generator(seed, "pieces of one class", index)
            order = _sort_into_pieces(labels, len(dataset.classes), self.delta, random)
            parts.append((domain_ids[order], rows[order]))
        domain_ids, rows = np.concatenate(parts, axis=1)
        return Order(domain_ids, rows, batch_sizes([len(dataset)], batch_size))


def _sort_into_pieces(labels: Ints, classes: int, delta: float, random: np.random.Generator) -> Ints:
    """Return positions in the order of NOTE's sampler.

    The samples of every class are dealt, in shares of a Dirichlet distribution, to as many chunks as there are
    classes, but to none that has its part of all samples already. In a chunk one class comes after the other.
    """
    positions = random.permutation(len(labels))
    labels = labels[positions]
    chunks, sizes = np.empty_like(labels), np.zeros(classes, np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        unfilled = np.flatnonzero(sizes < len(labels) / classes)
        # The sampler sets the shares of filled chunks to 0 and scales the others: those have this distribution.
        cuts = random.dirichlet(np.full(len(unfilled), delta)).cumsum()[:-1] * len(members)
        chunks[members] = unfilled[np.searchsorted(cuts.astype(np.int64), np.arange(len(members)), side="right")]
        sizes += np.bincount(chunks[members], minlength=classes)
    places = random.permuted(np.tile(np.arange(classes), (classes, 1)), axis=1)
    return positions[np.lexsort((places[chunks, labels], chunks))]


def _draw_classes(left: Ints, sizes: Ints, delta: float, random: np.random.Generator) -> Ints:
    """Draw how many samples of each class every domain of a batch gives, shape (domains, classes).

    ``left`` is what the domains have of each class, of the same shape; ``sizes`` is what each gives altogether.
    """
    present = np.flatnonzero(left.any(axis=0))
    concentration = delta * left.shape[1] * left[:, present].sum(axis=0) / left.sum()
    # Gamma(c) is Gamma(c + 1) times a power of a uniform number, as logarithms, so that a small delta cannot
    # underflow to shares that are all zero; 1 - u lies in (0, 1].
    logs = np.full(left.shape[1], -np.inf)
    logs[present] = np.log(random.standard_gamma(concentration + 1))
    logs[present] += np.log(1 - random.random(len(present))) / concentration
    shares = np.exp(logs - logs.max())
    taken = np.minimum(random.multinomial(sizes, shares / shares.sum()), left)
    while (missing := sizes - taken.sum(axis=1)).any():
        fills = np.minimum(left - taken, missing[:, None])
        filled = fills.sum(axis=0)
        # A class that the batch has, or else the one that fills most; of equal ones the most probable.
        chosen = np.lexsort((logs, filled, taken.any(axis=0) & (filled > 0)))[-1]
        taken[:, chosen] += fills[:, chosen]
    return taken


@dataclass(frozen=True)
class MostlyClean(Scenario):
    """Clean samples with a few drifted ones among them.

    A fraction of the samples is clean, and the drifted domains share the rest equally; all are mixed as in
    CrossMix. No sample comes twice, so the stream is as long as the domain that runs out first allows, and of the
    others only a random part is used.
    """

    name = "mostly-clean"
    summary = "clean samples with a few drifted ones among them"
    needs_clean = True

    fraction: Number = option(0.9, "part of the samples that is clean")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.fraction < 1:
            raise OptionError(
                f"fraction must be a number between 0 and 1, got {self.fraction!r}: for clean "
                "samples alone, take the stream 'crossmix' of dataset.pick(['clean'])."
            )

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids = np.repeat(np.arange(len(dataset.domains)), self._used(dataset))
        domain_ids = generator(seed, "mostly clean").permutation(domain_ids)
        rows = serve_shuffled(domain_ids, dataset, seed)
        return Order(domain_ids, rows, batch_sizes([len(domain_ids)], batch_size))

    def _used(self, dataset: DomainDataset) -> Ints:
        """Return how many samples of each domain the stream has."""
        if CLEAN not in dataset.domains or len(dataset.domains) < 2:
            raise OptionError(
                f"stream {self.name!r} needs the domain {CLEAN!r} and at least one drifted domain, but the "
                f"dataset has {', '.join(dataset.domains)}: pick both."
            )
        clean = dataset.domains.index(CLEAN)
        drifted = np.delete(dataset.counts, clean)
        fraction = Fraction(str(float(self.fraction)))  # 0.9 as it is written: nine tenths
        clean_per_drifted = len(drifted) * fraction / (1 - fraction)
        each = min(int(drifted.min()), int(dataset.counts[clean] / clean_per_drifted))
        if each < 1:
            raise OptionError(
                f"stream {self.name!r} with fraction={self.fraction} needs {float(clean_per_drifted):.4g} clean "
                f"samples for one sample of each of the {len(drifted)} drifted domains, but there are "
                f"{dataset.counts[clean]} clean ones and {drifted.min()} of the smallest drifted domain: take a "
                "smaller fraction, fewer domains or more samples."
            )
        used = np.full(len(dataset.domains), each, np.int64)
        used[clean] = min(int(dataset.counts[clean]), round(each * clean_per_drifted))
        return used


#: The scenarios by name.
SCENARIOS: dict[str, type[Scenario]] = {
    kind.name: kind
    for kind in (Static, CrossMix, Shuffle, Random, Wild, LabelSorted, Lifelong, Gradual, MostlyClean)
}
