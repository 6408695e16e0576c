"""Scenarios: the ways in which samples of several domains arrive."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Literal

import numpy as np

from findtta.data.dataset import CLEAN, SEVERITIES, DomainDataset, split_domain
from findtta.errors import OptionError
from findtta.options import Count, Number, option, require_int, require_number
from findtta.streams.order import Ints, Order, Scenario, batch_sizes, generator, serve, serve_shuffled

# Numbers that Wild draws at once; how draws fall into blocks is part of the result, so this must not change.
_BLOCK = 200_000


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
class Lifelong(Scenario):
    """CrossMix several times over, each time in another order, without a pause in between.

    The first round is the stream CrossMix of the same seed. Batches end where a round ends.
    """

    name = "lifelong"
    summary = "all domains mixed, the whole data several times over"

    rounds: Count = option(2, "passes over the data")

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids, rows = np.concatenate([mixed(dataset, seed, round_) for round_ in range(self.rounds)], axis=1)
        sizes = np.tile(batch_sizes([len(dataset)], batch_size), self.rounds)
        return Order(domain_ids, rows, sizes, passes=self.rounds)


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

    The paper says no more than that. Here half of every domain goes into single-domain batches, and all the rest
    is mixed: with batch statistics on ImageNet-C the paper reports for Shuffle just the mean of Static and
    CrossMix.
    """

    name = "shuffle"
    summary = "batches of one domain and batches of mixed domains in turn"

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        self.require_two_domains(dataset)
        singles_of = dataset.counts // 2 // batch_size
        if not singles_of.any():
            raise OptionError(
                f"stream {self.name!r} puts half of each domain into single-domain batches, so batch_size must be "
                f"at most half of the largest domain ({dataset.counts.max() // 2}), got {batch_size}: "
                "take a smaller batch_size or more samples."
            )
        singles = _without_neighbours(singles_of, generator(seed, "single-domain batches"))
        pool = np.repeat(np.arange(len(dataset.counts)), dataset.counts - singles_of * batch_size)
        pool = generator(seed, "mixed batches").permutation(pool)

        # The mixed half is never the smaller one, so single, mixed, single, ... leaves mixed batches at the end.
        in_turn = len(singles) * batch_size
        alternating = np.stack([np.repeat(singles, batch_size), pool[:in_turn]]).reshape(2, -1, batch_size)
        domain_ids = np.concatenate([alternating.swapaxes(0, 1).ravel(), pool[in_turn:]])
        sizes = batch_sizes([len(domain_ids)], batch_size)
        return Order(domain_ids, serve_shuffled(domain_ids, dataset, seed), sizes)


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
    batches of Shuffle, half of them of one domain, in random order.
    """

    name = "random"
    summary = "a random number of domains in each batch"

    variant: Literal["text", "paper"] = option(
        "text",
        "'text' (1 to all domains, each number as likely) or 'paper' (the batches of shuffle in random order)",
    )

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        if self.variant == "paper":
            self.require_two_domains(dataset)
            shuffled = Shuffle().arrange(dataset, batch_size, seed)
            return _reorder(shuffled, generator(seed, "order of batches"))
        domain_ids, sizes = _draw(dataset.counts, batch_size, generator(seed, "domains of batches"))
        return Order(domain_ids, serve_shuffled(domain_ids, dataset, seed), sizes)


def _reorder(order: Order, random: np.random.Generator) -> Order:
    """Return the same batches in random order."""
    ends = order.sizes.cumsum()
    chosen = random.permutation(len(ends))
    positions = np.concatenate([np.arange(ends[batch] - order.sizes[batch], ends[batch]) for batch in chosen])
    return Order(order.domain_ids[positions], order.rows[positions], order.sizes[chosen])


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
    """Random, and in each domain the classes come in runs.

    The order of labels is NOTE's: the samples of a domain are dealt into as many chunks as there are classes,
    those of one class by shares drawn from a Dirichlet distribution, and a chunk shows its classes one after the
    other. The smaller delta, the fewer classes a chunk has. Differences from NOTE's code:

    - Shares are drawn as logarithms of gamma variates. Closed chunks are left out before they become numbers, so
      that a small delta cannot underflow to shares that are all zero.
    - NOTE repeats the draw until no chunk is nearly empty, which for 100 classes can take thousands of draws; here
      the best of ``tries`` draws is taken.
    - No samples are dropped.
    """

    name = "wild"
    summary = "a random number of domains in each batch, and classes in runs"

    delta: Annotated[float, partial(require_number, low=1e-6, high=1e6)] = option(
        0.1, "concentration of the Dirichlet distribution; the smaller, the longer the runs"
    )
    least: Annotated[int, partial(require_int, low=0)] = option(10, "samples that every chunk should have")
    tries: Count = option(200, "draws after which the best is taken, though some chunk has fewer")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "delta", float(self.delta))  # 1 and 1.0 are the same stream

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        order = super().arrange(dataset, batch_size, seed)
        queues = [
            self.in_runs(dataset.labels(domain), len(dataset.classes), generator(seed, "runs of classes", index))
            for index, domain in enumerate(dataset.domains)
        ]
        return Order(order.domain_ids, serve(order.domain_ids, queues), order.sizes)

    def in_runs(self, labels: Ints, classes: int, random: np.random.Generator) -> Ints:
        """Return the rows of a domain, whose labels are given, in an order in which classes come in runs."""
        counts = np.bincount(labels, minlength=classes)
        pieces = self._deal(counts, random)
        # A stable sort keeps the order within a class, so rows are shuffled first.
        shuffled = random.permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        first = counts.cumsum() - counts
        starts = first[:, None] + pieces.cumsum(axis=1) - pieces
        runs = [np.empty(0, np.int64)]
        for chunk in range(pieces.shape[1]):
            for label in random.permutation(np.flatnonzero(pieces[:, chunk])):
                start = starts[label, chunk]
                runs.append(by_class[start : start + pieces[label, chunk]])
        return np.concatenate(runs)

    def _deal(self, counts: Ints, random: np.random.Generator) -> Ints:
        """Return how many samples of each class go into each chunk, shape (classes, chunks)."""
        classes = len(counts)
        wanted = self.least if counts.sum() >= self.least * classes else 0  # else no draw can have it
        best, best_smallest, tried = np.empty(0, np.int64), -1, 0
        while best_smallest < wanted and tried < self.tries:
            block = min(self.tries - tried, max(1, _BLOCK // classes**2))
            pieces = _deal_at_random(counts, self.delta, block, random)
            smallest = pieces.sum(axis=1).min(axis=1)
            enough = np.flatnonzero(smallest >= wanted)
            index = int(enough[0] if len(enough) else smallest.argmax())
            if smallest[index] > best_smallest:
                best, best_smallest = pieces[index], int(smallest[index])
            tried += block
        return best


def _deal_at_random(counts: Ints, delta: float, draws: int, random: np.random.Generator) -> Ints:
    """Deal classes into chunks several times over; returns sizes of shape (draws, classes, chunks)."""
    classes, total = len(counts), counts.sum()
    pieces = np.zeros((draws, classes, classes), np.int64)
    filled = np.zeros((draws, classes), np.int64)
    for label in np.flatnonzero(counts):
        # Gamma(delta) is Gamma(delta + 1) times a power of a uniform number; 1 - u lies in (0, 1].
        logs = np.log(random.standard_gamma(delta + 1, filled.shape))
        logs += np.log(1 - random.random(filled.shape)) / delta
        # As long as samples are left, some chunk has fewer than the average.
        logs[filled * classes >= total] = -np.inf
        shares = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
        shares /= shares[:, -1:]
        # Shares that add up to one but for rounding must not leave a sample over: add a little before the floor.
        cuts = np.floor(shares * counts[label] + 1e-6).astype(np.int64)
        pieces[:, label] = np.diff(cuts, axis=1, prepend=0)
        filled += pieces[:, label]
    return pieces


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
    kind.name: kind for kind in (Static, CrossMix, Shuffle, Random, Wild, Lifelong, Gradual, MostlyClean)
}
