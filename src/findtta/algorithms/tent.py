"""TENT: minimise the entropy of the predictions over the affine parameters of the BatchNorm layers.

Difference from the authors: BatchNorm layers of every dimension are adapted, not only 2-D ones.
"""

from torch import Tensor

from findtta.algorithms.learning import GradientAdapted
from findtta.functional import softmax_entropy


class Tent(GradientAdapted):
    """Test-time entropy minimisation."""

    name = "tent"
    summary = "entropy minimisation over the affine parameters, with the statistics of the test batch"
    citation = "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"
    weakness = (
        "It keeps learning from its own mistakes: on long streams, with a high learning rate, small "
        "batches, mixed drift or few classes at a time, predictions collapse onto few classes (see "
        "adapted.collapse)."
    )

    def learn(self, inputs: Tensor) -> Tensor:
        logits = self.logits(inputs)
        self.descend(softmax_entropy(logits).mean())
        return logits
