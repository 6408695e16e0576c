"""The paper's own: components of the graph of first neighbours (LFD)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from findtta.functional import partition
from findtta.partitioners.base import Partitioner


@dataclass(frozen=True)
class FirstNeighbor(Partitioner):
    """Samples joined by first neighbours share a group."""

    name = "first-neighbor"
    summary = "samples that are joined by first neighbours (LFD, the paper's own)"

    def __call__(self, features: Tensor) -> Tensor:
        return partition(features)
