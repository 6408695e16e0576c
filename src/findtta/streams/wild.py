"""Wild: Random, and in each domain the classes come in runs.

The order of labels is NOTE's: the samples of a domain are dealt into as many chunks as there are classes, those of
one class by shares drawn from a Dirichlet distribution, and a chunk shows its classes one after the other. The
smaller delta, the fewer classes a chunk has. Differences from NOTE's code:

- Shares are drawn as logarithms of gamma variates. Closed chunks are left out before they become numbers, so that
  a small delta cannot underflow to shares that are all zero.
- NOTE repeats the draw until no chunk is nearly empty, which for 100 classes can take thousands of draws; here the
  best of ``tries`` draws is taken.
- No samples are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from findtta.options import option, require_int, require_number
from findtta.streams.order import Ints, Order, Samples, Scenario, generator, serve
from findtta.streams.scenarios import VARIANTS, Random

# Numbers drawn at once; how draws fall into blocks is part of the result, so this must not change.
_BLOCK = 200_000


@dataclass(frozen=True)
class Wild(Scenario):
    """A random number of domains in each batch, and classes in runs."""

    name = "wild"
    summary = "a random number of domains in each batch, and classes in runs"

    delta: float = option(0.1, "concentration of the Dirichlet distribution; the smaller, the longer the runs")
    variant: str = option("text", "how batches choose their domains, as for the stream 'random'")
    least: int = option(10, "samples that every chunk should have")
    tries: int = option(200, "draws after which the best is taken, though some chunk has fewer")

    def __post_init__(self) -> None:
        require_number("delta", self.delta, 1e-6, 1e6)
        object.__setattr__(self, "delta", float(self.delta))  # 1 and 1.0 are the same stream
        self.require_choice("variant", *VARIANTS)
        require_int("least", self.least, 0)
        self.require_positive_int("tries")

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        self.require_domains(samples, 2 if self.variant == "paper" else 1)
        order = Random(variant=self.variant).arrange(samples, batch_size, seed)
        queues = [
            self.in_runs(labels, samples.classes, generator(seed, "runs of classes", index))
            for index, labels in enumerate(samples.labels)
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
