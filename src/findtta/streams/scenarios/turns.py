"""Batches of one domain and batches of several: shuffle and random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from findtta.data.dataset import DomainDataset
from findtta.errors import OptionError
from findtta.options import option
from findtta.streams.order import Ints, Order, Scenario, batch_sizes, generator, serve_shuffled
from findtta.streams.scenarios.mixtures import CrossMix
from findtta.streams.scenarios.sequences import Static


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
            return take_turns(static_and_crossmix(dataset, batch_size, seed))
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


def static_and_crossmix(dataset: DomainDataset, batch_size: int, seed: int) -> list[Order]:
    """Return two passes over the data."""
    return [part.arrange(dataset, batch_size, seed) for part in (Static(across=True), CrossMix())]


def take_turns(parts: Sequence[Order]) -> Order:
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
            return in_random_order(Shuffle(variant=self.variant).arrange(dataset, batch_size, seed), seed)
        domain_ids, sizes = _draw(dataset.counts, batch_size, generator(seed, "domains of batches"))
        return Order(domain_ids, serve_shuffled(domain_ids, dataset, seed), sizes)


def in_random_order(order: Order, seed: int) -> Order:
    """Return the batches in random order."""
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
