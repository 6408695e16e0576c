"""Control: no split at all. FIND becomes alpha-BN with FIND's alpha."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from findtta.partitioners.base import Partitioner, is_usable


@dataclass(frozen=True)
class WholeBatch(Partitioner):
    """The whole batch is one group."""

    name = "none"
    summary = "control: the whole batch is one group (alpha-BN)"

    def __call__(self, features: Tensor) -> Tensor:
        index = torch.arange(features.shape[0], device=features.device)
        usable = is_usable(features)
        # The lowest usable index; before it there are poisoned samples only, which stay alone.
        first = torch.where(usable, index, features.shape[0]).cummin(0).values
        return torch.where(usable, first[-1:], index)
