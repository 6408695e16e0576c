"""Control: groups of the same sizes as LFD's, with members drawn at random.

What FIND gains over this control is what it gains from *which* samples share a group; the rest
comes from the sizes of the groups alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from findtta.functional import partition
from findtta.options import option
from findtta.partitioners.base import Partitioner, is_usable, outside_graphs


@dataclass(frozen=True)
class Random(Partitioner):
    """Groups of LFD with their members exchanged by a random permutation.

    The permutation depends on the seed and the number of samples only: the same in every layer, so
    that whatever layers have in common under LFD they have in common here.
    """

    name = "random"
    summary = "control: groups as large as LFD's, of samples drawn at random"
    exportable = False  # a graph cannot draw from a generator of its own

    seed: int = option(0, "of the permutation")

    def __post_init__(self) -> None:
        self.require_seed("seed")

    def __call__(self, features: Tensor) -> Tensor:
        return outside_graphs(self._label, features)

    def _label(self, features: Tensor) -> Tensor:
        labels = partition(features)
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(len(labels), generator=generator).to(features.device)
        # Poisoned samples come last in both orders, so that they take nobody's place.
        usable = is_usable(features)
        index = torch.arange(len(labels), device=features.device)
        here = torch.where(usable, index, index + len(labels)).argsort()
        there = torch.where(usable, drawn, index + len(labels)).argsort()
        moved = torch.zeros_like(index).scatter(0, here, there)
        return torch.zeros_like(index).scatter(0, moved, moved[labels])
