"""Static: one domain after the other, as in continual adaptation.

Batches end where a domain ends, so that each has one domain, as the FIND paper says of this scenario. TTAB cuts
across: ``across=True``. TTAB also puts the images of all domains into the same order; here each has its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from findtta.options import option
from findtta.streams.scenario import Order, Samples, Scenario, batch_sizes_within, serve, shuffled_rows


@dataclass(frozen=True)
class Static(Scenario):
    """One domain after the other, in the order of the dataset."""

    name = "static"
    summary = "one domain after the other"

    across: bool = option(False, "let batches run across from one domain to the next")

    def __post_init__(self) -> None:
        self.require_flag("across")

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        domain_ids = np.repeat(np.arange(len(samples.domains)), samples.counts)
        sizes = batch_sizes_within(samples.counts.tolist(), batch_size, self.across)
        return Order.once(domain_ids, serve(domain_ids, shuffled_rows(samples, seed)), sizes)
