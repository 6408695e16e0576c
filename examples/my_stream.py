"""A stream: bursts of a few batches of one domain, in a random order."""

from dataclasses import dataclass

import numpy as np

from findtta import option
from findtta.data import DomainDataset
from findtta.options import Count
from findtta.streams import Order, Scenario, batch_sizes, generator, serve_shuffled


@dataclass(frozen=True)
class Bursts(Scenario):
    """Each domain is cut into stretches of ``length`` batches, and the stretches are shuffled."""

    name = "bursts"
    summary = "a few batches of one domain, then of another, in a random order"

    length: Count = option(2, "batches in a burst")

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        bursts = [  # (domain, number of samples)
            (domain, size)
            for domain, count in enumerate(dataset.counts.tolist())
            for size in batch_sizes([count], self.length * batch_size).tolist()
        ]
        order = generator(seed, "bursts").permutation(len(bursts))
        domains, sizes = np.array(bursts)[order].T
        domain_ids = np.repeat(domains, sizes)  # the domain of each position
        rows = serve_shuffled(domain_ids, dataset, seed)  # its row there: every sample comes once
        return Order(domain_ids, rows, batch_sizes(sizes, batch_size))
