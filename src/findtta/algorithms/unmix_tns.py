"""UnMix-TNS: every layer keeps a mixture of components, and each instance corrects those it is similar to.

The components start around the source statistics and follow the stream. An instance is assigned softly, by the
cosine similarity of its mean to theirs; its statistics are those of the mixture in which every component has moved
towards it by its assignment. Components then move by the average over the batch, at a rate that grows with the
number of samples.

As the authors have it, BatchNorm1d layers keep the source statistics. Differences from them: BatchNorm3d layers
are adapted too, and the random start has a seed of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.algorithms.source import SourceNorm
from findtta.functional.moments import replace_nan, widen
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite
from findtta.options import AtLeastTwo, Count, Fraction, Options, Positive, Seed, option


@dataclass(frozen=True)
class UnMixTNSOptions(Options):
    """Options of UnMix-TNS."""

    components: AtLeastTwo = option(16, "components per layer (K); the authors use 128 for mixed domains")
    temperature: Positive = option(0.07, "temperature of the assignment: the lower, the fewer components share it")
    momentum: Fraction = option(0.1, "fraction by which components move in a batch of reference_batch samples")
    reference_batch: Count = option(64, "number of samples that momentum is for; the authors use 16 on ImageNet")
    seed: Seed = option(0, "seed of the random components at the start")


class UnMixNorm(AdaptiveNorm):
    """Normalises each instance with the moments of a mixture that it corrects.

    Args:
        norm: The layer to stand in for, with running statistics.
        options: Options of the method.
        directions: Standard normal numbers, ``(K, C)``, that spread the components at the start.
    """

    component_mean: Tensor
    component_variance: Tensor
    directions: Tensor

    def __init__(self, norm: nn.Module, options: UnMixTNSOptions, directions: Tensor) -> None:
        super().__init__(norm)
        self.options = options
        directions = directions.to(widen(norm.running_mean))  # type: ignore[arg-type]
        self.register_buffer("directions", directions, persistent=False)
        for name in ("component_mean", "component_variance"):
            self.register_buffer(name, torch.empty_like(directions))
        self._start()

    def _start(self) -> None:
        """Spread the components so that the mixture has the moments of the source, in expectation."""
        source_mean, source_variance = (widen(kept) for kept in (self.norm.running_mean, self.norm.running_var))  # type: ignore[arg-type]
        count = len(self.directions)
        spread = math.sqrt(count / (2 * (count - 1))) * source_variance.sqrt()
        self.component_mean.copy_(source_mean + spread * self.directions)
        self.component_variance.copy_((source_variance / 2).expand_as(self.directions))

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        means, variances = self.component_mean.to(mean.dtype), self.component_variance.to(mean.dtype)
        similarity = F.normalize(mean, dim=1) @ F.normalize(means, dim=1).T
        share = (similarity / self.options.temperature).softmax(1)  # (B, K)
        # All means are taken from the centre of the components, so that no large numbers cancel.
        centre = means.mean(0)
        own, offsets = mean - centre, means - centre
        mixed = mixture_moments(own, variance, offsets, variances, share)
        self._move(own, variance, offsets, variances, share)
        return mixed[0] + centre, mixed[1]

    def _move(self, mean: Tensor, variance: Tensor, means: Tensor, variances: Tensor, share: Tensor) -> None:
        usable = mean.sum(1).isfinite()
        count = usable.to(mean.dtype).sum()
        rate = 1 - torch.pow(1 - self.options.momentum, count / self.options.reference_batch)
        # Samples that are not finite have no share, and their zeros change no sum.
        share = torch.where(usable[:, None], share, 0).T * (rate / count.clamp_min(1))
        total = share.sum(1, keepdim=True)
        self.component_mean += share @ replace_nan(mean) - total * means
        self.component_variance += share @ replace_nan(variance) - total * variances

    def reset(self) -> None:
        super().reset()
        self._start()


def mixture_moments(
    mean: Tensor, variance: Tensor, means: Tensor, variances: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Moments, ``(B, C)`` each, of equal mixtures of components that have moved towards each instance.

    Args:
        mean: Instance means, ``(B, C)``.
        variance: Instance variances, ``(B, C)``.
        means: Means of the components, ``(K, C)``.
        variances: Variances of the components, ``(K, C)``.
        share: How far component k moves towards instance i, ``(B, K)``; each row sums to 1.
    """
    count, kept = len(means), 1 - share
    mixed_mean = (kept @ means + mean) / count
    # The average of ((1 - p) mu + p m)^2 over the components, expanded: a table (B, K, C) is not needed.
    squares = (
        kept.square() @ means.square()
        + 2 * mean * ((kept * share) @ means)
        + mean.square() * share.square().sum(1, keepdim=True)
    )
    return mixed_mean, (kept @ variances + variance + squares) / count - mixed_mean.square()


class UnMixTNS(Adapted):
    """Unmixing test-time normalisation statistics."""

    name = "unmix-tns"
    summary = "a mixture of components per layer, which follows the stream and is corrected by each instance"
    citation = (
        "Tomar et al., Un-Mixing Test-Time Normalization Statistics: Combatting Label Temporal Correlation, "
        "ICLR 2024"
    )
    weakness = (
        "It warms up slowly: the components start at random and move by a tenth in 64 samples. On 7,500 images "
        "of CIFAR-10-C with a ResNet-20, in batches of mixed domains, it has an accuracy of 50.3 in the first "
        "pass and 56.0 in the sixth (K 16), where FIND has 64.2."
    )
    options_type = UnMixTNSOptions
    stateful = True
    batch_dependent = False

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        self.generator = torch.Generator().manual_seed(self.options.seed)

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        if isinstance(norm, nn.BatchNorm1d) or norm.running_mean is None:
            return SourceNorm(norm)
        directions = torch.randn(self.options.components, len(norm.running_mean), generator=self.generator)  # type: ignore[arg-type]
        return UnMixNorm(norm, self.options, directions)
