"""RoTTA: robust statistics, and a student that learns from a timely, balanced memory of the stream.

The teacher predicts, with statistics that move slowly. After every ``update_every`` samples, also in the
middle of a batch, the student learns to agree with the teacher on a strongly augmented memory.

Inputs are taken to be images in [0, 1] that the model normalises itself, as the authors have it; for
inputs that are normalised already, give ``mean`` and ``std``, so that they are augmented as images.
Differences from the authors: BatchNorm layers of every dimension are replaced, and statistics move
only if the step that they belong to was taken.

The preset "paper" has the learning rate of the FIND paper, and Adam, which its authors set for RoTTA in the code
of an earlier method (DYW77/DATTA).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Cost
from findtta.algorithms.memory_bank import TimelyBank
from findtta.algorithms.moving import MovingStatistics, learning_statistics
from findtta.algorithms.teacher import TeacherStudent, teacher_cross_entropy
from findtta.algorithms.views import ViewOptions
from findtta.functional import batch_moments
from findtta.functional.moments import widen
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite
from findtta.options import AtLeastZero, Count, Fraction, option

LOG_FLOOR = 1e-6


@dataclass(frozen=True)
class RoTTAOptions(ViewOptions):
    """Options of RoTTA."""

    alpha: Fraction = option(
        0.05, "weight of the batch in the moving statistics: 0 is the source, 1 the batch alone"
    )
    nu: Fraction = option(0.001, "fraction by which the teacher moves towards the student in an update")
    memory_size: Count = option(64, "number of images that the memory holds")
    update_every: Count = option(64, "number of samples between two updates")
    timeliness: AtLeastZero = option(1.0, "weight of an image's age when the memory drops one (lambda_t)")
    uncertainty: AtLeastZero = option(1.0, "weight of its uncertainty when the memory drops one (lambda_u)")

    def preset_values(self) -> dict[str, Any]:
        official = {"lr": 1e-3} if self.preset == "official" else {}
        return super().preset_values() | {"optimizer": "adam"} | official


class RobustNorm(AdaptiveNorm):
    """Normalises with statistics that move slowly towards those it learns from."""

    def __init__(self, norm: nn.Module, alpha: float) -> None:
        super().__init__(norm)
        self.moving = MovingStatistics(norm, alpha)

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        if self.moving.known and not self.moving.learning:
            return self.moving.mean, self.moving.variance
        return self.moving.propose(*batch_moments(mean, variance))


class RoTTA(TeacherStudent):
    """Robust test-time adaptation."""

    name = "rotta"
    summary = "slowly moving statistics, and a student that learns from a timely, balanced memory"
    citation = "Yuan et al., Robust Test-Time Adaptation in Dynamic Scenarios, CVPR 2023"
    weakness = (
        "Statistics move by a twentieth per 64 samples, so it adapts late to abrupt changes of drift, and not "
        "at all to mixed batches. Inputs must be images in [0, 1], or mean and std given, or its augmentation "
        "destroys them."
    )
    options_type = RoTTAOptions
    batch_dependent = False
    passes = Cost(forward=3, backward=1)

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        super().prepare(model, sites)
        self.bank = TimelyBank(self.options.memory_size, self.options.timeliness, self.options.uncertainty)

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return RobustNorm(norm, self.options.alpha)

    def learn(self, inputs: Tensor) -> Tensor:
        logits = self.predict(inputs)
        probabilities = widen(logits).softmax(1)
        uncertainty = -(probabilities * torch.log(probabilities + LOG_FLOOR)).sum(1)
        # The one transfer to the host: a class number is exact in float32.
        labels, uncertainties = torch.stack([probabilities.argmax(1).to(uncertainty), uncertainty]).tolist()
        if not all(value == value for value in uncertainties):
            self.warn_skipped("its logits contain NaN or Inf")
            return logits
        classes = [int(label) for label in labels]
        start, every = 0, self.options.update_every
        while start < len(inputs):
            part = slice(start, start + every - self.bank.offers % every)
            self.bank.insert(inputs[part], classes[part], uncertainties[part], logits.shape[1])
            start = part.stop
            if self.bank.offers % every == 0:
                self._update()
        return logits

    def _update(self) -> None:
        images = self.bank.contents()
        # Old images count less. The authors compute the weights in float32 for every precision of the model.
        age = torch.tensor([age / self.options.memory_size for age in self.bank.ages()], device=images.device)
        weight = torch.exp(-age) / (1 + torch.exp(-age))
        with learning_statistics(self.model, self.student) as accept_statistics:
            teacher_logits = self.predict(images)
            student_logits = self.student(self.augmented(images))
            loss = (weight * teacher_cross_entropy(student_logits, teacher_logits)).mean()
            if self.descend(loss):
                accept_statistics()
                self.follow(self.trained_names, self.options.nu)
