"""Random: how many domains a batch has is itself random.

By the text of the paper ("text"), every batch draws the number of its domains uniformly, then which ones, and
takes as evenly as possible from each. The paper's numbers fit another reading better ("paper"): the batches of
Shuffle, half of them of one domain, in random order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from findtta.options import option
from findtta.streams.scenario import Ints, Order, Samples, Scenario, generator, serve, shuffled_rows
from findtta.streams.shuffle import Shuffle

VARIANTS = ("text", "paper")


@dataclass(frozen=True)
class Random(Scenario):
    """A random number of domains in each batch."""

    name = "random"
    summary = "a random number of domains in each batch"

    variant: str = option(
        "text",
        "'text' (1 to all domains, each number as likely) or 'paper' (the batches of shuffle in random order)",
    )

    def __post_init__(self) -> None:
        self.require_choice("variant", *VARIANTS)

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        if self.variant == "paper":
            self.require_domains(samples, 2)
            shuffled = Shuffle().arrange(samples, batch_size, seed)
            return _reorder(shuffled, generator(seed, "order of batches"))
        domain_ids, sizes = _draw(samples.counts, batch_size, generator(seed, "domains of batches"))
        return Order.once(domain_ids, serve(domain_ids, shuffled_rows(samples, seed)), sizes)


def _reorder(order: Order, random: np.random.Generator) -> Order:
    """Return the same batches in random order."""
    ends = order.sizes.cumsum()
    chosen = random.permutation(len(ends))
    positions = np.concatenate([np.arange(ends[batch] - order.sizes[batch], ends[batch]) for batch in chosen])
    return Order.once(order.domain_ids[positions], order.rows[positions], order.sizes[chosen])


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
    missing = batch_size - taken.sum()
    for index in range(len(available)):
        if missing == 0:
            break
        more = min(missing, available[index] - taken[index])
        taken[index] += more
        missing -= more
    return taken
