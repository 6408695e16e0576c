"""The paper's own partitioner (LFD), and controls that show what its groups contribute.

All but ``random`` run on the device and can be part of a fixed graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from findtta.functional import partition
from findtta.options import Seed, option
from findtta.partitioners.base import Partitioner, is_usable


@dataclass(frozen=True)
class FirstNeighbor(Partitioner):
    """Samples connected by first neighbours share a group."""

    name = "first-neighbor"

    def label(self, features: Tensor) -> Tensor:
        return partition(features)


@dataclass(frozen=True)
class WholeBatch(Partitioner):
    """The whole batch is one group: FIND becomes alpha-BN with FIND's alpha."""

    name = "none"

    def label(self, features: Tensor) -> Tensor:
        index = torch.arange(features.shape[0], device=features.device)
        usable = is_usable(features)
        # The lowest usable index; before it there are poisoned samples only, which stay alone.
        first = torch.where(usable, index, features.shape[0]).cummin(0).values
        return torch.where(usable, first[-1:], index)


@dataclass(frozen=True)
class Instance(Partitioner):
    """Every sample is a group: FIND becomes instance statistics blended with the source's."""

    name = "instance"
    batch_dependent = False

    def label(self, features: Tensor) -> Tensor:
        return torch.arange(features.shape[0], device=features.device)


@dataclass(frozen=True)
class Random(Partitioner):
    """Groups of the same sizes as LFD's, with members exchanged by a random permutation.

    What FIND gains over this control comes from *which* samples share a group; the rest comes from the
    sizes of the groups. The permutation depends on the seed and the number of samples only: it is the same
    in every layer, so that what groups of different layers have in common under LFD they also have here.
    """

    name = "random"
    exportable = False  # a graph cannot draw from a generator of its own
    depends_on_order = True

    seed: Seed = option(0, "seed of the permutation")

    def label(self, features: Tensor) -> Tensor:
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
