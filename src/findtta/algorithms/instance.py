"""Instance: a fixed blend of the source statistics with those of each image.

It is FIND with every image a group of its own, and equals ``find`` with ``partitioner="instance"``, without the
partition. As a control it shows what FIND's groups add to the blend. What an image is predicted as does not depend
on the rest of its batch.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from findtta.algorithms.alpha_bn import AlphaNorm
from findtta.algorithms.base import Adapted
from findtta.layers.adaptive import AdaptiveNorm
from findtta.options import Fraction, Options, option


@dataclass(frozen=True)
class InstanceOptions(Options):
    """Options of the instance blend."""

    alpha: Fraction = option(
        0.8, "weight of the source statistics: 0 is instance statistics only, 1 the source model"
    )


class InstanceBlendNorm(AlphaNorm):
    """Normalises each sample with a blend of source and its own statistics."""

    def test_statistics(self, mean: Tensor, variance: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        return mean, variance


class Instance(Adapted):
    """FIND's blend with every image a group of its own."""

    name = "instance"
    summary = "a fixed blend of source statistics and those of each image: FIND with groups of one"
    citation = (
        "a control for Jiang et al., Feature-Based Instance Neighbor Discovery: Advanced Stable Test-Time "
        "Adaptation in Dynamic World, NeurIPS 2025"
    )
    weakness = (
        "Statistics of one image are noisy, the more so the smaller its feature maps are, and also say what "
        "the image shows: on inputs that have not drifted it costs some accuracy, and more the lower alpha is. "
        "Images of the same drift do not help each other."
    )
    options_type = InstanceOptions
    batch_dependent = False

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return InstanceBlendNorm(norm, self.options.alpha)
