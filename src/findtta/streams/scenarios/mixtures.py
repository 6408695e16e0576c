"""Domains mixed in every batch, all of them or in shares: crossmix, lifelong, mostly-clean and the like."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from findtta.data.dataset import CLEAN, PAIRED_CORRUPTIONS, DomainDataset, split_domain
from findtta.errors import OptionError
from findtta.options import Count, Number, option
from findtta.streams.order import Ints, Order, Scenario, batch_sizes, generator, mixed, serve_shuffled


@dataclass(frozen=True)
class CrossMix(Scenario):
    """All samples of all domains in one uniformly random order, so that every batch mixes domains."""

    name = "crossmix"
    summary = "all domains mixed in every batch"

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        return Order(*mixed(dataset, seed), batch_sizes([len(dataset)], batch_size))


@dataclass(frozen=True)
class Clean(CrossMix):
    """Clean samples in random order: what a method costs where nothing has drifted."""

    name = "clean"
    summary = "clean samples alone"
    usual_domains = (CLEAN,)


@dataclass(frozen=True)
class Pairs(CrossMix):
    """CrossMix of images that have two corruptions each, such as ``"fog+gaussian_noise@3"``.

    They are made on the fly, so that the dataset must be one whose drift is. At severity 5 little of an image is
    left, hence the usual 3.
    """

    name = "pairs"
    summary = "two corruptions on every image, all pairs mixed in every batch"
    usual_domains = PAIRED_CORRUPTIONS
    usual_severity = 3


@dataclass(frozen=True)
class Lifelong(Scenario):
    """CrossMix several times over, each time in another order, without a pause in between.

    The first round is the stream CrossMix of the same seed. Batches end where a round ends.
    """

    name = "lifelong"
    summary = "all domains mixed, the whole data several times over"

    rounds: Count = option(2, "passes over the data")

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids, rows = np.concatenate([mixed(dataset, seed, round_) for round_ in range(self.rounds)], axis=1)
        sizes = batch_sizes([len(dataset)], batch_size)
        rounds = np.repeat(np.arange(self.rounds), len(sizes))
        return Order(domain_ids, rows, np.tile(sizes, self.rounds), rounds)


@dataclass(frozen=True)
class MostlyClean(Scenario):
    """Clean samples with a few drifted ones among them.

    A fraction of the samples is clean, and the drifted domains share the rest equally; all are mixed as in
    CrossMix. No sample comes twice, so the stream is as long as the domain that runs out first allows, and of the
    others only a random part is used.
    """

    name = "mostly-clean"
    summary = "clean samples with a few drifted ones among them"
    needs_clean = True

    fraction: Number = option(0.9, "part of the samples that is clean")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.fraction < 1:
            raise OptionError(
                f"fraction must be a number between 0 and 1, got {self.fraction!r}: for clean "
                "samples alone, take the stream 'clean'."
            )

    def arrange(self, dataset: DomainDataset, batch_size: int, seed: int) -> Order:
        domain_ids = np.repeat(np.arange(len(dataset.domains)), self._used(dataset))
        domain_ids = generator(seed, "mostly clean").permutation(domain_ids)
        rows = serve_shuffled(domain_ids, dataset, seed)
        return Order(domain_ids, rows, batch_sizes([len(domain_ids)], batch_size))

    def _used(self, dataset: DomainDataset) -> Ints:
        """Return how many samples of each domain the stream has."""
        if CLEAN not in dataset.domains or len(dataset.domains) < 2:
            raise OptionError(
                f"stream {self.name!r} needs the domain {CLEAN!r} and at least one drifted domain, but the "
                f"dataset has {', '.join(dataset.domains)}: pick both."
            )
        clean = dataset.domains.index(CLEAN)
        drifted = np.delete(dataset.counts, clean)
        fraction = Fraction(str(float(self.fraction)))  # 0.9 as it is written: nine tenths
        clean_per_drifted = len(drifted) * fraction / (1 - fraction)
        each = min(int(drifted.min()), int(dataset.counts[clean] / clean_per_drifted))
        if each < 1:
            raise OptionError(
                f"stream {self.name!r} with fraction={self.fraction} needs {float(clean_per_drifted):.4g} clean "
                f"samples for one sample of each of the {len(drifted)} drifted domains, but there are "
                f"{dataset.counts[clean]} clean ones and {drifted.min()} of the smallest drifted domain: take a "
                "smaller fraction, fewer domains or more samples."
            )
        used = np.full(len(dataset.domains), each, np.int64)
        used[clean] = min(int(dataset.counts[clean]), round(each * clean_per_drifted))
        return used


@dataclass(frozen=True)
class Potpourri(MostlyClean):
    """Every kind of drift that there is in one stream, with a share of clean samples, as in MoETTA's benchmark.

    By default these are all corruptions, the pairs of them (see ``pairs``) and all other domains of the dataset,
    such as those of the datasets that are joined in it. Drifted domains have equally many samples.
    """

    name = "potpourri"
    summary = "every kind of drift and a share of clean samples, mixed in every batch"

    fraction: Number = option(0.2, "part of the samples that is clean")

    @classmethod
    def part(
        cls,
        dataset: DomainDataset,
        domains: Sequence[str] | None = None,
        severity: int | Sequence[int] | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> DomainDataset:
        if domains is None:
            pairs = [f"{kind}@{Pairs.usual_severity}" for kind in PAIRED_CORRUPTIONS]
            kinds = dict.fromkeys(split_domain(domain)[0] for domain in dataset.domains)
            extended = dataset.extended(PAIRED_CORRUPTIONS).domains
            domains = [*kinds, *(pair for pair in pairs if pair in extended)]
        return super().part(dataset, domains, severity, limit, seed)
