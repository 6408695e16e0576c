"""ROID: certain and diverse samples count more, predictions are consistent, and weights stay near the source.

Samples that are predicted unlike the average so far are learned from, with a weight that grows with how unlike
they are and how certain. The loss is the soft likelihood ratio, whose gradient does not vanish for certain
predictions, and a symmetric cross-entropy with an augmented view. After each step the parameters return towards
the source by a hundredth. Logits are multiplied by the smoothed distribution of the batch's predicted classes.

Inputs are taken to be images in [0, 1] that the model normalises itself, as the authors have it; for
inputs that are normalised already, give ``mean`` and ``std``, so that they are augmented as images.
Differences from the authors: only BatchNorm layers are trained, not those that normalise otherwise, and the
average prediction moves only if the step was taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.algorithms.base import Cost
from findtta.algorithms.learning import moving_average
from findtta.algorithms.presets import OFFICIAL_FIRST, PRESETS
from findtta.algorithms.teacher import symmetric_cross_entropy
from findtta.algorithms.views import Augmenting, ViewOptions
from findtta.functional.moments import as_dtype, widen
from findtta.options import Fraction, Positive, option

LARGEST_PROBABILITY = 0.99  # from here on, a probability has no gradient
LOG_FLOOR = 1e-5


@dataclass(frozen=True)
class ROIDOptions(ViewOptions):
    """Options of ROID."""

    preset: PRESETS = option("official", OFFICIAL_FIRST)
    temperature: Positive = option(
        1 / 3, "temperature of the sample weights: the lower, the more certain and diverse samples stand out"
    )
    source_weight: Fraction = option(0.01, "fraction by which parameters return to the source after each step")
    prior_correction: bool = option(
        True, "multiply logits by the smoothed distribution of the batch's predicted classes"
    )

    def preset_values(self) -> dict[str, Any]:
        official = {"nesterov": self.by_class_count(False, False, True)} if self.preset == "official" else {}
        return super().preset_values() | official


class ROID(Augmenting):
    """Robust test-time adaptation by weight ensembling, certainty and diversity weighting and prior correction."""

    name = "roid"
    summary = "soft likelihood ratio on certain and diverse samples, consistent under views, held near the source"
    citation = (
        "Marsden et al., Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior "
        "Correction, WACV 2024"
    )
    weakness = (
        "It normalises with the statistics of the batch, as TBN does: small batches, batches that mix kinds of "
        "drift and batches of few classes get statistics that fit none of their samples, and learning repairs "
        "only a part of that. The prior correction trusts the predicted classes of the batch, also where they are "
        "unbalanced by mistake. Inputs must be images in [0, 1], or mean and std given."
    )
    options_type = ROIDOptions
    passes = Cost(forward=2, backward=1)
    mild_views = True
    remembered: ClassVar[Mapping[str, Any]] = {"average_prediction": None}

    average_prediction: Tensor | None

    def learn(self, inputs: Tensor) -> Tensor:
        logits = self.logits(inputs)
        wide = widen(logits)
        probabilities = wide.detach().softmax(1)
        average = self._average(probabilities)
        weight = sample_weights(probabilities, average, self.options.temperature)
        self.selected = kept = weight != 0  # a weight that is not finite ends in a step that is not taken
        views = widen(self.logits(self.augmented(inputs[kept])))
        loss = (weight * soft_likelihood_ratio(wide)).sum()
        loss = loss + (weight[kept] * symmetric_cross_entropy(wide[kept], views)).sum()
        if self.descend(loss / len(inputs)):
            self.average_prediction = moving_average(average, probabilities.mean(0))
            self._return_to_source()
        return self._corrected(logits)

    def predict(self, inputs: Tensor) -> Tensor:
        return self._corrected(super().predict(inputs))

    def _average(self, probabilities: Tensor) -> Tensor:
        """Return the average prediction so far, ``(K,)``: at first all classes alike."""
        if self.average_prediction is None:
            return torch.full_like(probabilities[0], 1 / probabilities.shape[1])
        return self.average_prediction.to(probabilities)  # where the model has moved

    @torch.no_grad()
    def _return_to_source(self) -> None:
        parameters: list[Tensor] = list(self.trained.values())
        torch._foreach_lerp_(parameters, list(self.source.buffers()), self.options.source_weight)

    def _corrected(self, logits: Tensor) -> Tensor:
        if not self.options.prior_correction or not len(logits):
            return logits
        return as_dtype(logits * smoothed_prior(widen(logits.detach())), logits.dtype)


def sample_weights(probabilities: Tensor, average: Tensor, temperature: float) -> Tensor:
    """Weigh samples, ``(B,)``, by how unlike the average prediction and how certain they are; 0: left out."""
    diversity = _scaled(1 - F.cosine_similarity(average[None], probabilities, dim=1))
    certainty = _scaled(torch.special.entr(probabilities).sum(1).neg())
    return torch.where(diversity < diversity.mean(), 0, torch.exp(diversity * certainty / temperature))


def _scaled(values: Tensor) -> Tensor:
    """Scale values to 0 for the lowest and 1 for the highest; all 0 if they are equal."""
    low, high = values.aminmax()
    return (values - low) / torch.where(high > low, high - low, 1)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """Negative log odds of the classes, weighed by their probabilities, ``(B,)``."""
    probabilities = logits.softmax(1).clamp_max(LARGEST_PROBABILITY)
    return -(probabilities * torch.log(probabilities / (1 - probabilities) + LOG_FLOOR)).sum(1)


def smoothed_prior(logits: Tensor) -> Tensor:
    """Return the distribution of the classes in a batch, ``(K,)``, smoothed the more, the flatter it is."""
    usable, classes = logits.isfinite().all(1, keepdim=True), logits.shape[1]
    count = usable.to(logits.dtype).sum().clamp_min(1)
    prior = torch.where(usable, logits.softmax(1), 0).sum(0) / count
    smoothing = (1 / count).clamp_min(1 / classes) / prior.max()
    return (prior + smoothing) / (1 + smoothing * classes)
