"""TBN: normalise with the statistics of the test batch (also known as BN adaptation or Norm)."""

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.functional import batch_moments
from findtta.functional.moments import widen
from findtta.layers.adaptive import AdaptiveNorm


class BatchStatisticsNorm(AdaptiveNorm):
    """Normalises with the mean and biased variance of the batch."""

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return batch_moments(mean, variance)

    def _normalize(self, features: Tensor, overwrite: bool = False) -> Tensor:
        if not torch.is_grad_enabled() or not len(features):
            return super()._normalize(features, overwrite)
        # torch's own operator has a backward pass in one piece, which is several times as fast. (Its
        # functional form refuses a batch of one sample with one position; the operator does not.)
        self.record()
        wide = widen(features)
        weight, bias = (None if affine is None else affine.to(wide.dtype) for affine in self.affine())
        fused = torch.backends.cudnn.enabled
        return torch.batch_norm(wide, weight, bias, None, None, True, 0.0, self.eps, fused).to(features.dtype)


class TBN(Adapted):
    """Test-time batch normalisation."""

    name = "tbn"
    summary = "statistics of the test batch in place of the source's"
    citation = "Bronskill et al., TaskNorm: Rethinking Batch Normalization for Meta-Learning, ICML 2020"
    weakness = (
        "The statistics need a large batch of one kind of drift with many classes. Small batches, batches "
        "that mix kinds of drift and batches of few classes get statistics that fit none of their "
        "samples. On inputs that have not drifted it costs accuracy."
    )

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return BatchStatisticsNorm(norm)
