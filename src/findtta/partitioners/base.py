"""What every partitioner has in common, and labels as FIND's layers want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from findtta.options import Options


@dataclass(frozen=True)
class Partitioner(Options):
    """A pure function from features to labels, whose settings are its fields.

    Labels name a group by the index of one of its members, so that they lie in ``0 .. B-1``. A sample
    whose features are not all finite forms a group of its own.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    #: Whether it computes on the CPU, so that a GPU has to wait for it in every layer.
    leaves_device: ClassVar[bool] = False
    #: Whether it can be part of a fixed graph.
    exportable: ClassVar[bool] = True
    #: Settings that make it what its library does when nothing is said.
    library_defaults: ClassVar[Mapping[str, Any]] = {}

    def __call__(self, features: Tensor) -> Tensor:
        """Label the samples of a batch.

        Args:
            features: Instance means of one layer, ``(B, C)``.

        Returns:
            Labels, int64 ``(B,)``, on the device of ``features``.
        """
        raise NotImplementedError


def outside_graphs(function: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """Call a function that a compiled graph cannot hold; compilation goes on after it."""
    if torch.compiler.is_compiling():
        # Not as a decorator: that would import the compiler, which takes seconds, for everybody.
        function = torch.compiler.disable(function)
    return function(features)


def is_usable(features: Tensor) -> Tensor:
    """Tell which rows of ``features``, ``(B, C)``, hold finite numbers only: bool ``(B,)``."""
    return features.isfinite().all(1)


def lowest_members(labels: Tensor) -> Tensor:
    """Rename groups: each sample gets the index of the first sample that has its label.

    Args:
        labels: Any whole numbers, ``(B,)``.

    Returns:
        Labels, int64 ``(B,)``, for the same groups.
    """
    index = torch.arange(labels.shape[0], device=labels.device)
    ordered, order = labels.sort(stable=True)
    begins = (index == 0) | (ordered != ordered.roll(1))
    # The last position, so far, at which a label began.
    first = order[torch.where(begins, index, 0).cummax(0).values]
    return torch.zeros_like(index).scatter(0, order, first)


def isolate_poisoned(labels: Tensor, features: Tensor) -> Tensor:
    """Put every sample that is not :func:`is_usable` into a group of its own.

    Args:
        labels: Any whole numbers, ``(B,)``.
        features: What they were made from, ``(B, C)``.

    Returns:
        Labels in the form of :func:`lowest_members`.
    """
    index = torch.arange(labels.shape[0], device=labels.device)
    alone = index + labels.shape[0]  # larger than every label after renaming
    return lowest_members(torch.where(is_usable(features), lowest_members(labels), alone))
