"""Source: the model as it was trained, frozen. The baseline of every comparison."""

from findtta.algorithms.base import Adapted


class Source(Adapted):
    """No adaptation: running statistics, evaluation mode."""

    name = "source"
    summary = "the model as trained, with its running statistics"
    citation = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
    weakness = "Accuracy falls as far as the inputs drift: nothing adapts."
    batch_dependent = False
