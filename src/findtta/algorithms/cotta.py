"""CoTTA: a student learns from a teacher that averages over augmented views, and forgets at random.

The teacher is a moving average of the student, and predicts. Where the source model is not confident of a batch,
the teacher's logits are averaged over augmented views. After each step, numbers of the student that are drawn at
random are reset to the source. All parameters are trained, and BatchNorm layers use the statistics of the batch.

Inputs are taken to be images in [0, 1] that the model normalises itself, as the authors have it; for
inputs that are normalised already, give ``mean`` and ``std``, so that they are augmented as images.
Where the source model is confident and the loss is one-sided (10 and 100 classes), student and teacher agree at
the start, so the gradient consists of rounding errors only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Cost
from findtta.algorithms.presets import OFFICIAL_FIRST, PRESETS
from findtta.algorithms.teacher import TeacherStudent
from findtta.algorithms.views import ViewOptions
from findtta.functional.moments import widen
from findtta.layers.surgery import NormSite
from findtta.options import Count, Fraction, option


@dataclass(frozen=True)
class CoTTAOptions(ViewOptions):
    """Options of CoTTA."""

    preset: PRESETS = option("official", OFFICIAL_FIRST)
    views: Count = option(32, "augmented forward passes that the teacher's prediction is averaged over")
    threshold: Fraction | None = option(
        None, "mean confidence of the source model below which the teacher averages over views (p_th)"
    )
    ema: Fraction = option(0.999, "fraction of the teacher's parameters that is kept in a step")
    restore_probability: Fraction | None = option(
        None, "probability that a trained number is reset to its source value after a step"
    )
    symmetric: bool | None = option(
        None, "use the cross-entropy in both directions: student to teacher and teacher to student"
    )

    def preset_values(self) -> dict[str, Any]:
        values = super().preset_values()
        values |= self.by_class_count(
            {"threshold": 0.92, "restore_probability": 0.01, "symmetric": False},
            {"threshold": 0.72, "restore_probability": 0.01, "symmetric": False},
            {"threshold": 0.1, "restore_probability": 0.001, "symmetric": True},
        )
        if self.preset == "official":
            values |= self.by_class_count({}, {}, {"lr": 0.01, "nesterov": True})
        return values


class CoTTA(TeacherStudent):
    """Continual test-time adaptation."""

    name = "cotta"
    summary = "a student of all parameters, a teacher that averages over augmented views, and random restoring"
    citation = "Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022"
    weakness = (
        "Up to 34 forward passes per batch, and a second replica of all parameters with their gradients. It "
        "normalises with the statistics of the batch, so it fails where TBN does: small batches, batches that mix "
        "kinds of drift, few classes. The teacher moves by a thousandth per batch, so short streams gain from the "
        "averaged views alone. Inputs must be images in [0, 1], or mean and std given."
    )
    options_type = CoTTAOptions
    passes = Cost(forward=34, backward=1)

    def parameters_to_train(self, model: nn.Module, sites: Sequence[NormSite]) -> list[str]:
        skipped = self.options.skip_layers
        return [name for name, _ in model.named_parameters() if not any(part in name for part in skipped)]

    def learn(self, inputs: Tensor) -> Tensor:
        teacher_logits = self._teacher_logits(inputs)
        if self.imitate(inputs, teacher_logits):
            self.follow(self.trained_names, 1 - self.options.ema)
            self.restore_some(self.options.restore_probability)
        return teacher_logits

    def predict(self, inputs: Tensor) -> Tensor:
        usable, drawn = inputs.isfinite().flatten(1).all(1), self.generator.get_state()
        # Samples that are not finite must not change what is drawn for the others, nor for later batches.
        known = self._teacher_logits(inputs[usable] if usable.any() else inputs)
        self.generator.set_state(drawn)
        if len(known) == len(inputs):
            return known
        return known.new_full((len(inputs), known.shape[1]), torch.nan).index_put((usable,), known)

    @torch.no_grad()
    def _teacher_logits(self, inputs: Tensor) -> Tensor:
        with self._source_parameters():
            confidence = widen(self.logits(inputs)).softmax(1).amax(1).mean()
        if not confidence < self.options.threshold:
            return self.logits(inputs)
        total = self.logits(self.augmented(inputs))
        for _ in range(self.options.views - 1):
            total = total + self.logits(self.augmented(inputs))
        return total / self.options.views

    @contextmanager
    def _source_parameters(self) -> Iterator[None]:
        """Let the parameters of the model point to the source's numbers: no third replica is needed."""
        parameters = [self.model.get_parameter(name) for name in self.trained_names]
        learned = [parameter.data for parameter in parameters]
        try:
            for parameter, original in zip(parameters, self.source.buffers(), strict=True):
                parameter.data = original
            yield
        finally:
            for parameter, kept in zip(parameters, learned, strict=True):
                parameter.data = kept

    @property
    def cost(self) -> Cost:
        predictions = 2 if self.options.predict == "after" else 1
        return Cost(predictions * (1 + self.options.views) + 1, 1)
