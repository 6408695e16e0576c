"""Gradual: each kind of drift grows severity by severity, then fades again; then comes the next kind.

Severities 1, 2, 3, 4, 5, 4, 3, 2, 1. Every sample comes once: the domain of a severity that is passed twice shows
one half of its samples on the way up and the other on the way down, and the worst severity shows all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from findtta.data.dataset import SEVERITIES, DomainDataset, split_domain
from findtta.errors import OptionError
from findtta.options import option
from findtta.streams.scenario import Order, Samples, Scenario, batch_sizes_within, serve, shuffled_rows


@dataclass(frozen=True)
class Gradual(Scenario):
    """Each kind of drift grows and fades before the next one comes."""

    name = "gradual"
    summary = "each kind of drift grows and fades before the next one comes"

    across: bool = option(False, "let batches run across from one severity to the next")

    def __post_init__(self) -> None:
        self.require_flag("across")

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        steps = [step for kind in _kinds(samples.domains) for step in _up_and_down(kind, samples)]
        counts = [count for _, count in steps]
        domain_ids = np.repeat(np.array([domain for domain, _ in steps]), counts)
        sizes = batch_sizes_within(counts, batch_size, self.across)
        return Order.once(domain_ids, serve(domain_ids, shuffled_rows(samples, seed)), sizes)

    @classmethod
    def part(
        cls,
        dataset: DomainDataset,
        domains: Sequence[str] | None = None,
        severity: int | Sequence[int] | None = None,
        limit: int | None = None,
    ) -> DomainDataset:
        return dataset.pick(domains, SEVERITIES if severity is None else severity, limit)


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


def _up_and_down(kind: Sequence[int], samples: Samples) -> list[tuple[int, int]]:
    """Return the steps of one kind: which domain, and how many samples of it."""
    *milder, worst = [(domain, int(samples.counts[domain])) for domain in kind]
    up = [(domain, (count + 1) // 2) for domain, count in milder]
    down = [(domain, count // 2) for domain, count in reversed(milder)]
    return [*up, worst, *down]
