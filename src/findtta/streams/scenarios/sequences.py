"""One domain after the other: static, gradual, recurring."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from findtta.data.dataset import SEVERITIES, DomainDataset, split_domain
from findtta.errors import OptionError
from findtta.options import Count, option
from findtta.streams.order import Ints, Order, Scenario, batch_sizes, serve_shuffled


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
class Recurring(Static):
    """One domain after the other, and all of them again: A B C A B C.

    Every sample comes once: each visit to a domain shows another part of its samples. The visits are the rounds of
    the stream, so that a result has the accuracy of each.
    """

    name = "recurring"
    summary = "one domain after the other, and all of them again"

    visits: Count = option(3, "how often each domain comes")

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        order = super().arrange(dataset, batch_size, seed)
        visits = np.repeat(np.arange(self.visits), self._parts(dataset).sum(axis=1))
        return dataclasses.replace(order, rounds=visits[order.sizes.cumsum() - order.sizes])

    def steps(self, dataset: DomainDataset) -> list[tuple[int, int]]:
        return [step for part in self._parts(dataset).tolist() for step in enumerate(part)]

    def _parts(self, dataset: DomainDataset) -> Ints:
        """Return how many samples of each domain every visit shows, shape (visits, domains)."""
        ends = np.arange(self.visits + 1)[:, None] * dataset.counts // self.visits
        return np.diff(ends, axis=0)
