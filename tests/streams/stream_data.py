"""Datasets for the tests of streams: labels and counts only."""

import hashlib
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from findtta.data.dataset import MAIN_CORRUPTIONS, DomainDataset
from findtta.streams.order import labels_of


class LabelsOnly(DomainDataset):
    """Labels that go round through the classes; asking for an image fails."""

    name = "labels only"
    image_size = (1, 1)

    def __init__(self, counts: dict[str, int], classes: int = 10) -> None:
        self.domains = tuple(counts)
        self.classes = tuple(f"class {index}" for index in range(classes))
        self._labels = {domain: np.arange(count) * 7 % classes for domain, count in counts.items()}

    @property
    def identity(self) -> str:
        # Of its own, so that the recorded digests do not depend on how real datasets are identified.
        text = repr([(domain, self._labels[domain].tolist()) for domain in self.domains])
        return hashlib.sha256(f"{len(self.classes)} {text}".encode()).hexdigest()[:16]

    def labels(self, domain):
        return self._labels[domain]

    def batch_labels(self, batch):
        return labels_of(self, batch.domain_ids, batch.rows)

    def images(self, domain, rows):
        raise AssertionError("a stream must not look at images")


def equal(count: int, domains: int | Sequence[str] = 15, classes: int = 10) -> LabelsOnly:
    """So many samples in every domain, as in the corrupted versions of one test set."""
    names = [f"{kind}@5" for kind in MAIN_CORRUPTIONS[:domains]] if isinstance(domains, int) else domains
    return LabelsOnly(dict.fromkeys(names, count), classes)


@st.composite
def datasets(draw, least_domains: int = 1, least_count: int = 0):
    counts = draw(st.lists(st.integers(least_count, 90), min_size=least_domains, max_size=6))
    return LabelsOnly({f"domain {index}": count for index, count in enumerate(counts)}, draw(st.integers(1, 6)))
