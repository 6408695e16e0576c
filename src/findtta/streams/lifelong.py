"""Life-long: CrossMix several times over, each time in another order, without a pause in between.

The first round is the stream CrossMix of the same seed. Batches end where a round ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from findtta.options import option
from findtta.streams.crossmix import mixed
from findtta.streams.scenario import Order, Samples, Scenario, batch_sizes


@dataclass(frozen=True)
class Lifelong(Scenario):
    """All domains mixed in every batch, and the whole data several times over."""

    name = "lifelong"
    summary = "all domains mixed, the whole data several times over"

    rounds: int = option(2, "passes over the data")

    def __post_init__(self) -> None:
        self.require_positive_int("rounds")

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        passes = [mixed(samples, seed, round_) for round_ in range(self.rounds)]
        sizes = batch_sizes(len(samples), batch_size)
        return Order(
            domain_ids=np.concatenate([domain_ids for domain_ids, _ in passes]),
            rows=np.concatenate([rows for _, rows in passes]),
            sizes=np.tile(sizes, self.rounds),
            rounds=np.repeat(np.arange(self.rounds), len(sizes)),
        )
