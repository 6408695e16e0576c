"""alpha-BN: mix the source statistics with those of the test batch, the same way in every layer.

The variance of the batch is biased, as in BatchNorm itself; ``variance="unbiased"`` is the convention of
the TTAB toolkit, which reads the batch's variance from a running buffer.

The preset "paper" has the source weight that the authors of FIND set in the code of an earlier method
(DYW77/DATTA). The authors of alpha-BN published no code, and their value could not be verified; "official" is 0.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.algorithms.presets import PresetOptions
from findtta.functional import batch_moments, blend
from findtta.functional.moments import Estimator
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite
from findtta.options import Fraction, option


@dataclass(frozen=True)
class AlphaBNOptions(PresetOptions):
    """Options of alpha-BN."""

    alpha: Fraction | None = option(
        None, "weight of the source statistics: 0 is TBN, 1 the source model; None: from the preset"
    )
    variance: Literal["biased", "unbiased"] = option(
        "biased", "estimator of the batch variance: 'biased' (as in BatchNorm) or 'unbiased' (as in TTAB)"
    )

    def preset_values(self) -> dict[str, Any]:
        return {"alpha": 0.1 if self.preset == "official" else 0.6}


class AlphaNorm(AdaptiveNorm):
    """Normalises with a blend of source and batch statistics; subclasses blend others with the source's."""

    needs_features = True

    def __init__(self, norm: nn.Module, alpha: float, variance: Estimator = "biased") -> None:
        super().__init__(norm)
        self.alpha = alpha
        self.variance: Estimator = variance

    def statistics(  # type: ignore[override]
        self, mean: Tensor, variance: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        source_mean, source_variance = self.source_statistics(mean, variance)
        if self.alpha == 1:
            return source_mean, source_variance
        test_mean, test_variance = self.test_statistics(mean, variance, math.prod(features.shape[2:]))
        return blend(test_mean, source_mean, self.alpha), blend(test_variance, source_variance, self.alpha)

    def test_statistics(self, mean: Tensor, variance: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Return statistics of the test data, ``(C,)`` or ``(B, C)``; instances have ``positions`` values each."""
        return batch_moments(mean, variance, self.variance, positions, self.eps)


class AlphaBN(Adapted):
    """A fixed mixture of source and test-batch statistics."""

    name = "alpha-bn"
    summary = "a fixed mixture of source and test-batch statistics"
    citation = "You et al., Test-time Batch Statistics Calibration for Covariate Shift, arXiv 2021"
    weakness = (
        "Fails where TBN fails, more mildly: one mixture for all layers and all samples of the batch. The "
        "best alpha depends on how strong the drift is."
    )
    options_type = AlphaBNOptions

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        self.options = self.options.resolve(model)

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return AlphaNorm(norm, self.options.alpha, self.options.variance)
