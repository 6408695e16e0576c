"""FIND: split the batch into groups of like features in every layer, and normalise each group.

Layer-wise feature disentanglement (LFD) makes the groups; feature-aware batch normalisation (FABN)
normalises each with a blend of the source's statistics and its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted, Options, option
from findtta.functional import blend, count_groups, group_moments, partition
from findtta.layers.adaptive import AdaptiveNorm


@dataclass(frozen=True)
class FINDOptions(Options):
    """Options of FIND."""

    alpha: float = option(0.8, "weight of the source statistics, 0 (groups only) to 1 (source)")

    def __post_init__(self) -> None:
        self.require_fraction("alpha")


class FABN(AdaptiveNorm):
    """Normalises each group of like samples with a blend of source and group statistics."""

    def __init__(self, norm: nn.Module, alpha: float) -> None:
        super().__init__(norm)
        self.alpha = alpha
        # In a dict, because setting an attribute of a module is slow. Only for reports.
        self.last_batch: dict[str, Tensor] = {}

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        if self.alpha == 1:
            return self.source_statistics(mean, variance)
        labels = partition(mean)
        if not torch.compiler.is_compiling():
            self.last_batch["labels"] = labels
        return self.blended(mean, variance, group_moments(mean, variance, labels))

    def blended(self, mean: Tensor, variance: Tensor, test: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Blend the statistics chosen for the test data with the source's (equations 5 and 6)."""
        source_mean, source_variance = self.source_statistics(mean, variance)
        return blend(test[0], source_mean, self.alpha), blend(test[1], source_variance, self.alpha)

    def reset(self) -> None:
        self.last_batch.clear()

    def describe(self) -> dict[str, Any]:
        labels = self.last_batch.get("labels")
        return {"groups": None if labels is None else int(count_groups(labels)), "split": True}


class FIND(Adapted):
    """Feature-based instance neighbour discovery."""

    name = "find"
    summary = "groups of like features per layer, each normalised with a blend of source and own statistics"
    citation = (
        "Jiang et al., Feature-Based Instance Neighbor Discovery: Advanced Stable Test-Time Adaptation "
        "in Dynamic World, NeurIPS 2025"
    )
    weakness = (
        "Groups are small, so their statistics are noisy: on inputs that have not drifted it costs some "
        "accuracy, and more the lower alpha is. Groups follow likeness of features, which in deep layers "
        "may mean class rather than drift. In a batch of one each sample is its own group."
    )
    options_type = FINDOptions

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return FABN(norm, self.options.alpha)
