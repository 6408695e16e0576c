"""alpha-BN: mix the source statistics with those of the test batch, the same way in every layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from findtta.algorithms.base import Adapted, Options, option
from findtta.functional import batch_moments, blend
from findtta.layers.adaptive import AdaptiveNorm


@dataclass(frozen=True)
class AlphaBNOptions(Options):
    """Options of alpha-BN."""

    alpha: float = option(0.1, "weight of the source statistics, 0 (TBN) to 1 (source)")

    def __post_init__(self) -> None:
        self.require_fraction("alpha")


class AlphaNorm(AdaptiveNorm):
    """Normalises with a blend of source and batch statistics."""

    def __init__(self, norm: nn.Module, alpha: float) -> None:
        super().__init__(norm)
        self.alpha = alpha

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        source_mean, source_variance = self.source_statistics(mean, variance)
        if self.alpha == 1:
            return source_mean, source_variance
        batch_mean, batch_variance = batch_moments(mean, variance)
        return blend(batch_mean, source_mean, self.alpha), blend(batch_variance, source_variance, self.alpha)


class AlphaBN(Adapted):
    """A fixed mixture of source and test-batch statistics."""

    name = "alpha-bn"
    summary = "a fixed mixture of source and test-batch statistics"
    citation = "You et al., Test-time Batch Statistics Calibration for Covariate Shift, arXiv 2021"
    Options = AlphaBNOptions

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return AlphaNorm(norm, self.options.alpha)
