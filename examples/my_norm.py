"""A method that changes normalisation: each sample gets a blend of the source statistics and its own."""

from dataclasses import dataclass

from torch import Tensor, nn

from findtta import Adapted, AdaptiveNorm, Options, option
from findtta.functional import blend
from findtta.options import Fraction


@dataclass(frozen=True)
class InstanceBlendOptions(Options):
    """Options of the method; each value is checked by its type."""

    alpha: Fraction = option(0.9, "weight of the source statistics: 1 is the source model")


class InstanceBlendNorm(AdaptiveNorm):
    """Stands in for one BatchNorm layer and chooses its statistics."""

    def __init__(self, norm: nn.Module, alpha: float) -> None:
        super().__init__(norm)
        self.alpha = alpha

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        source_mean, source_variance = self.source_statistics(mean, variance)  # (C,); mean, variance: (B, C)
        return blend(mean, source_mean, self.alpha), blend(variance, source_variance, self.alpha)


class InstanceBlend(Adapted):
    """A fixed blend of source and instance statistics."""

    name = "instance-blend"
    summary = "a fixed blend of source and instance statistics"
    citation = "an example of the documentation"
    weakness = "Statistics of one image are noisy, the more so the smaller its feature maps are."
    options_type = InstanceBlendOptions
    batch_dependent = False  # the other samples of the batch do not matter

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return InstanceBlendNorm(norm, self.options.alpha)
