"""A stream in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from findtta.data.dataset import DomainDataset
from findtta.streams.stream import Stream


@dataclass(frozen=True)
class Summary:
    """What a stream is like.

    Attributes:
        batches: The number of batches.
        samples: The number of samples.
        domains: Distinct domains per batch, on average.
        classes: Distinct classes per batch, on average.
        digest: The digest of the stream.
    """

    batches: int
    samples: int
    domains: float
    classes: float
    digest: str

    def __str__(self) -> str:
        return (
            f"{self.samples:,} samples in {self.batches:,} batches, "
            f"on average {self.domains:.2f} domains and {self.classes:.2f} classes per batch\n"
            f"digest {self.digest}"
        )


def summarize(stream: Stream, dataset: DomainDataset) -> Summary:
    """Summarize a stream.

    Args:
        stream: The stream.
        dataset: The dataset it was made for.

    Returns:
        Its summary.
    """
    stream.check(dataset)
    labels = np.empty(len(stream.rows), np.int64)
    for index, domain in enumerate(stream.domains):
        where = np.flatnonzero(stream.domain_ids == index)
        labels[where] = dataset.labels(domain)[stream.rows[where]]
    batch = np.repeat(np.arange(len(stream)), stream.sizes)
    pairs = np.unique(batch * len(dataset.classes) + labels)
    return Summary(
        batches=len(stream),
        samples=len(stream.rows),
        domains=float(np.count_nonzero(stream.composition(), axis=1).mean()),
        classes=len(pairs) / len(stream),
        digest=stream.digest,
    )
