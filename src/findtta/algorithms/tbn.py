"""TBN: normalise with the statistics of the test batch (also known as BN adaptation or Norm)."""

from __future__ import annotations

from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.functional import batch_moments
from findtta.layers.adaptive import AdaptiveNorm


class BatchStatisticsNorm(AdaptiveNorm):
    """Normalises with the mean and biased variance of the batch."""

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return batch_moments(mean, variance)


class TBN(Adapted):
    """Test-time batch normalisation."""

    name = "tbn"
    summary = "statistics of the test batch in place of the source's"
    citation = "Bronskill et al., TaskNorm: Rethinking Batch Normalization for Meta-Learning, ICML 2020"

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return BatchStatisticsNorm(norm)
