"""Source: the model as it was trained, frozen. The baseline of every comparison."""

from torch import Tensor

from findtta.algorithms.base import Adapted
from findtta.layers.adaptive import AdaptiveNorm


class SourceNorm(AdaptiveNorm):
    """Normalises with the source statistics, for methods that leave some layers as they are."""

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return self.source_statistics(mean, variance)


class Source(Adapted):
    """No adaptation: running statistics, evaluation mode."""

    name = "source"
    summary = "the model as trained, with its running statistics"
    citation = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
    weakness = "Accuracy falls as far as the inputs drift: nothing adapts."
    batch_dependent = False
