"""TBR: test-time batch renormalisation, the normalisation of DELTA.

Batch statistics are corrected to moving ones, which start with the first batch and then follow the stream. The
correction cancels the batch's own statistics in everything but the gradient. This method is the normalisation of
DELTA alone, without gradients, so it normalises with the moving statistics from before the batch.

As the authors have it, moving statistics are means and standard deviations. Difference from the authors: BatchNorm
layers of every dimension are adapted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.functional import batch_moments
from findtta.functional.moments import widen
from findtta.layers.adaptive import AdaptiveNorm
from findtta.options import Fraction, Options, option


@dataclass(frozen=True)
class TBROptions(Options):
    """Options of TBR."""

    momentum: Fraction = option(0.95, "fraction of the moving statistics that is kept in a batch (alpha)")


class RenormalizedNorm(AdaptiveNorm):
    """Normalises with the moving statistics of the stream; the first batch with its own."""

    moving_mean: Tensor
    moving_deviation: Tensor

    def __init__(self, norm: nn.Module, momentum: float) -> None:
        super().__init__(norm)
        self.momentum = momentum
        like = next((widen(tensor) for tensor in (*norm.buffers(), *norm.parameters())), torch.zeros(()))
        for name in ("moving_mean", "moving_deviation"):
            # NaN until the first batch: a flag would have to be read from the device.
            self.register_buffer(name, like.new_full((self.channels,), torch.nan))

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        batch_mean, batch_variance = batch_moments(mean, variance)
        used_mean = self._move(self.moving_mean, batch_mean, mean)
        used_deviation = self._move(self.moving_deviation, (batch_variance + self.eps).sqrt(), mean)
        return used_mean, (used_deviation.square() - self.eps).clamp_min(0)

    def _move(self, moving: Tensor, batch: Tensor, samples: Tensor) -> Tensor:
        """Move one of the statistics, ``(C,)``, and return it as it was before."""
        before = torch.where(moving.isnan(), batch, moving.to(batch.dtype))
        after = torch.lerp(batch, before, self.momentum)
        # A batch without a finite sample says nothing.
        moving.copy_(torch.where(samples.sum(1).isfinite().any(), after, moving))
        return before

    def reset(self) -> None:
        super().reset()
        self.moving_mean.fill_(torch.nan)
        self.moving_deviation.fill_(torch.nan)


class TBR(Adapted):
    """Test-time batch renormalisation."""

    name = "tbr"
    summary = "moving statistics of the stream, which start with the first batch"
    citation = "Zhao et al., DELTA: Degradation-Free Fully Test-Time Adaptation, ICLR 2023"
    weakness = (
        "The source statistics are forgotten with the first batch, which must be large. Samples of all kinds "
        "of drift get the same statistics, and for some twenty batches after a change of drift those of the drift "
        "before. On 7,500 images of CIFAR-10-C with a ResNet-20 it has an accuracy of 56.9 in batches of mixed "
        "domains, where FIND has 64.2, and of 60.6 in batches of one domain after the other."
    )
    options_type = TBROptions
    stateful = True

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return RenormalizedNorm(norm, self.options.momentum)
