"""A method that learns: pseudo-labels for confident samples, over the biases of the BatchNorm layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from findtta import GradientAdapted, GradientOptions, option
from findtta.options import Fraction


@dataclass(frozen=True)
class PseudoLabelOptions(GradientOptions):
    """What all methods that learn have (lr, optimizer, ...), and one option more; None: from the preset."""

    confidence: Fraction | None = option(None, "probability from which a sample is learned from")

    def preset_values(self) -> dict[str, Any]:
        values = super().preset_values() | {"confidence": 0.5}
        return values | {"confidence": 0.9} if self.preset == "official" else values


class PseudoLabel(GradientAdapted):
    """Cross-entropy with the model's own confident predictions."""

    name = "pseudo-label"
    summary = "pseudo-labels of confident samples, over the biases of the BatchNorm layers"
    citation = "an example of the documentation"
    weakness = "Confident mistakes are learned too."
    options_type = PseudoLabelOptions
    remembered: ClassVar[dict[str, Any]] = {"learned": 0}  # attributes that are saved, and reset

    def parameters_to_train(self, model: nn.Module, sites: Sequence[Any]) -> list[str]:
        names = super().parameters_to_train(model, sites)  # weights and biases of the BatchNorm layers
        return [name for name in names if name.endswith("bias")]

    def learn(self, inputs: Tensor) -> Tensor:
        logits = self.logits(inputs)  # one forward pass, with the statistics of the batch
        confidence, labels = logits.detach().softmax(1).max(1)
        chosen = confidence >= self.options.confidence
        if chosen.any() and self.descend(F.cross_entropy(logits[chosen], labels[chosen])):
            self.learned += int(chosen.sum())
        return logits  # the predictions from before the update
