"""Partitioners: what splits a batch into groups for FIND, as a function and as a class with options."""

from dataclasses import dataclass

import torch
from torch import Tensor

from findtta import option
from findtta.options import AtLeastTwo
from findtta.partitioners import Partitioner
from findtta.partitioners.base import isolate_poisoned


def by_sign(features: Tensor) -> Tensor:
    """Return labels, whole numbers ``(B,)``, of instance means ``(B, C)``: by the sign of their sum."""
    return (features.sum(1) > 0).long()


@dataclass(frozen=True)
class ByLength(Partitioner):
    """Groups of samples whose features have a similar length; ``partitioner_options={"groups": 4}`` sets it."""

    name = "by-length"

    groups: AtLeastTwo = option(2, "number of groups")

    def label(self, features: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(features.nan_to_num(), dim=1)
        rank = (length[:, None] > length).sum(1)  # how many samples are shorter
        # Groups get the index of their first member; a sample with NaN stays alone.
        return isolate_poisoned(rank * self.groups // len(features), features)
