"""Control: every sample on its own. FIND becomes instance statistics blended with the source's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from findtta.partitioners.base import Partitioner


@dataclass(frozen=True)
class Instance(Partitioner):
    """Every sample is a group."""

    name = "instance"
    summary = "control: every sample is a group (instance statistics)"

    def __call__(self, features: Tensor) -> Tensor:
        return torch.arange(features.shape[0], device=features.device)
