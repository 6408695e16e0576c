"""What all scenarios share: the order they give, and how they draw and cut."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from findtta.data.dataset import CLEAN, DomainDataset
from findtta.errors import OptionError
from findtta.options import Options

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """What a scenario gives: the samples one after the other, and where batches end."""

    domain_ids: Ints  # the domain of each position, shape (n,)
    rows: Ints  # the row of each position in its domain, shape (n,)
    sizes: Ints  # the size of each batch, shape (batches,)
    rounds: Ints | None = None  # for each batch the pass over the data that it belongs to; None: there is one pass


@dataclass(frozen=True)
class Scenario(Options, ABC):
    """A way for samples to arrive; its fields are its settings."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for lists
    usual_domains: ClassVar[tuple[str, ...] | None] = None  # unless others are asked for; None: those of ``pick``
    usual_severity: ClassVar[int | tuple[int, ...]] = 5  # of its domains, unless others are asked for
    needs_clean: ClassVar[bool] = False  # whether it needs clean samples beside drifted ones

    @abstractmethod
    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        """Put the samples into an order that depends on the seed, and cut it into batches."""

    @classmethod
    def part(
        cls,
        dataset: DomainDataset,
        domains: Sequence[str] | None = None,
        severity: int | Sequence[int] | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> DomainDataset:
        """Return the part of a dataset that this scenario is usually made of.

        The arguments are those of :meth:`DomainDataset.pick`; what is None is left to the scenario.
        """
        domains = cls.usual_domains if domains is None else domains
        severity = cls.usual_severity if severity is None else severity
        if cls.needs_clean and CLEAN in dataset.domains:
            picked = dataset.pick(domains, severity).domains
            domains = picked if CLEAN in picked else (CLEAN, *picked)
        return dataset.pick(domains, severity, limit, seed)

    def require_two_domains(self, dataset: DomainDataset) -> None:
        """Raise unless at least two domains have samples."""
        present = np.count_nonzero(dataset.counts)
        if present < 2:
            raise OptionError(
                f"stream {self.name!r} needs at least 2 domains with samples, but the dataset has "
                f"{present}: pick more domains, or take the stream 'crossmix'."
            )


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Return a generator of its own for every seed, purpose and index."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), index])


def serve_shuffled(domain_ids: Ints, dataset: DomainDataset, seed: int) -> Ints:
    """Return the row at each position, where every domain serves its rows in a random order of its own."""
    rows = np.empty(len(domain_ids), np.int64)
    for index, count in enumerate(dataset.counts):
        where = np.flatnonzero(domain_ids == index)
        rows[where] = generator(seed, "rows", index).permutation(count)[: len(where)]
    return rows


def mixed(dataset: DomainDataset, seed: int, round_: int = 0) -> tuple[Ints, Ints]:
    """Return the domains and rows of all samples in a random order, another one for each round."""
    # A trailing zero does not change a seed: round 0 is numpy's default_rng(seed), the order that TTAB has.
    order = np.random.default_rng([seed, round_]).permutation(len(dataset))
    domain_ids = np.repeat(np.arange(len(dataset.domains)), dataset.counts)
    rows = np.concatenate([np.arange(count) for count in dataset.counts])
    return domain_ids[order], rows[order]


def labels_of(dataset: DomainDataset, domain_ids: Ints, rows: Ints) -> Ints:
    """Return the label at each position."""
    labels = [dataset.labels(domain) for domain in dataset.domains]
    starts = dataset.counts.cumsum() - dataset.counts
    return np.concatenate(labels)[starts[domain_ids] + rows]


def batch_sizes(counts: Iterable[int], batch_size: int) -> Ints:
    """Cut stretches of samples into full batches; the last of each stretch may be smaller."""
    sizes = [min(batch_size, count - start) for count in counts for start in range(0, count, batch_size)]
    return np.array(sizes, np.int64)
