"""Mostly clean: a stream in which drift is the exception.

A fraction of the samples is clean, and the drifted domains share the rest equally; all are mixed as in CrossMix.
No sample comes twice, so the stream is as long as the domain that runs out first allows, and of the others only a
random part is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from findtta.data.dataset import CLEAN, DomainDataset
from findtta.errors import OptionError
from findtta.options import option
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
class MostlyClean(Scenario):
    """Clean samples with a few drifted ones among them."""

    name = "mostly-clean"
    summary = "clean samples with a few drifted ones among them"

    fraction: float = option(0.9, "part of the samples that is clean")

    def __post_init__(self) -> None:
        self.require_number("fraction")
        if not 0 < self.fraction < 1:
            raise OptionError(
                f"fraction must be a number between 0 and 1, got {self.fraction!r}: for clean "
                "samples alone, take the stream 'crossmix' of dataset.pick(['clean'])."
            )

    def arrange(self, samples: Samples, batch_size: int, seed: int) -> Order:
        domain_ids = np.repeat(np.arange(len(samples.domains)), self._used(samples))
        domain_ids = generator(seed, "mostly clean").permutation(domain_ids)
        rows = serve(domain_ids, shuffled_rows(samples, seed))
        return Order.once(domain_ids, rows, batch_sizes(len(domain_ids), batch_size))

    @classmethod
    def part(
        cls,
        dataset: DomainDataset,
        domains: Sequence[str] | None = None,
        severity: int | Sequence[int] | None = None,
        limit: int | None = None,
    ) -> DomainDataset:
        severity = 5 if severity is None else severity
        picked = dataset.pick(domains, severity).domains
        with_clean = picked if CLEAN in picked or CLEAN not in dataset.domains else (CLEAN, *picked)
        return dataset.pick(with_clean, severity, limit)

    def _used(self, samples: Samples) -> Ints:
        """Return how many samples of each domain the stream has."""
        if CLEAN not in samples.domains or len(samples.domains) < 2:
            raise OptionError(
                f"stream {self.name!r} needs the domain {CLEAN!r} and at least one drifted domain, but the "
                f"dataset has {', '.join(samples.domains)}: pick both."
            )
        clean = samples.domains.index(CLEAN)
        drifted = np.delete(samples.counts, clean)
        fraction = Fraction(str(float(self.fraction)))  # 0.9 as it is written: nine tenths
        clean_per_drifted = len(drifted) * fraction / (1 - fraction)
        each = min(int(drifted.min()), int(samples.counts[clean] / clean_per_drifted))
        if each < 1:
            raise OptionError(
                f"stream {self.name!r} with fraction={self.fraction} needs {float(clean_per_drifted):.4g} clean "
                f"samples for one sample of each of the {len(drifted)} drifted domains, but there are "
                f"{samples.counts[clean]} clean ones and {drifted.min()} of the smallest drifted domain: take a "
                "smaller fraction, fewer domains or more samples."
            )
        used = np.full(len(samples.domains), each, np.int64)
        used[clean] = min(int(samples.counts[clean]), round(each * clean_per_drifted))
        return used
