"""A partitioner that is somebody else's function: what it returns is checked and put in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from findtta.errors import OptionError
from findtta.partitioners.base import Partitioner, isolate_poisoned


@dataclass(frozen=True)
class Custom(Partitioner):
    """Calls a function for labels, which may be any whole numbers."""

    name = "custom"
    summary = "a function of your own"

    function: Callable[[Tensor], Tensor]

    @property
    def exportable(self) -> bool:  # type: ignore[override]
        """Whether the function says of itself that it can be part of a fixed graph."""
        return bool(getattr(self.function, "exportable", False))

    def __call__(self, features: Tensor) -> Tensor:
        labels = self.function(features)
        _check(labels, features.shape[0])
        return isolate_poisoned(labels.to(features.device), features)


def _check(labels: object, batch: int) -> None:
    expected = f"partitioner must return a tensor of {batch} whole numbers, one label per sample"
    if not isinstance(labels, Tensor):
        raise OptionError(f"{expected}, but returned a {type(labels).__name__}.")
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise OptionError(f"{expected}, but returned {labels.dtype}. Convert the labels with .long().")
    if labels.shape != (batch,):
        raise OptionError(f"{expected}, shape ({batch},), but returned shape {tuple(labels.shape)}.")
