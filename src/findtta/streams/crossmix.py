"""CrossMix: all samples of all domains in one uniformly random order, so that every batch mixes domains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from findtta.streams.scenario import Ints, Order, Samples, Scenario, batch_sizes


@dataclass(frozen=True)
class CrossMix(Scenario):
    """All domains mixed in every batch."""

    name = "crossmix"
    summary = "all domains mixed in every batch"

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        return Order.once(*mixed(samples, seed), batch_sizes(len(samples), batch_size))


def mixed(samples: Samples, seed: int, round_: int = 0) -> tuple[Ints, Ints]:
    """Return the domains and rows of all samples in a random order, another one for each round."""
    # A trailing zero does not change a seed: round 0 is numpy's default_rng(seed), the order that TTAB has.
    order = np.random.default_rng([seed, round_]).permutation(len(samples))
    domain_ids = np.repeat(np.arange(len(samples.domains)), samples.counts)
    rows = np.concatenate([np.arange(count) for count in samples.counts])
    return domain_ids[order], rows[order]
