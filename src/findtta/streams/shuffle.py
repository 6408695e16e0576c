"""Shuffle: batches of a single domain and batches of mixed domains take turns.

The paper says no more than that. Here half of every domain goes into single-domain batches, and all the rest is
mixed: with batch statistics on ImageNet-C the paper reports for Shuffle just the mean of Static and CrossMix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from findtta.errors import OptionError
from findtta.streams.scenario import (
    Ints,
    Order,
    Samples,
    Scenario,
    batch_sizes,
    generator,
    serve,
    shuffled_rows,
)


@dataclass(frozen=True)
class Shuffle(Scenario):
    """Batches of one domain and batches of mixed domains in turn."""

    name = "shuffle"
    summary = "batches of one domain and batches of mixed domains in turn"

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        self.require_domains(samples, 2)
        singles_of = samples.counts // 2 // batch_size
        if not singles_of.any():
            raise OptionError(
                f"stream {self.name!r} puts half of each domain into single-domain batches, so batch_size must be "
                f"at most half of the largest domain ({samples.counts.max() // 2}), got {batch_size}: "
                "take a smaller batch_size or more samples."
            )
        singles = _without_neighbours(singles_of, generator(seed, "single-domain batches"))
        pool = np.repeat(np.arange(len(samples.counts)), samples.counts - singles_of * batch_size)
        pool = generator(seed, "mixed batches").permutation(pool)

        # The mixed half is never the smaller one, so single, mixed, single, ... leaves mixed batches at the end.
        in_turn = len(singles) * batch_size
        alternating = np.stack([np.repeat(singles, batch_size), pool[:in_turn]]).reshape(2, -1, batch_size)
        domain_ids = np.concatenate([alternating.swapaxes(0, 1).ravel(), pool[in_turn:]])
        sizes = batch_sizes(len(domain_ids), batch_size)
        return Order.once(domain_ids, serve(domain_ids, shuffled_rows(samples, seed)), sizes)


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
