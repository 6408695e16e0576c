"""SAR: entropy minimisation on reliable samples, in flat regions of the loss, with recovery of the source.

Each step first moves to the worst point near the parameters (sharpness-aware minimisation) and then
descends with the gradient found there. When the loss has been very low for a while, a symptom of
collapse, the parameters are reset to the source.

Differences from the authors' code, each offered as an option where numbers may depend on it: after a
recovery the average loss and the momentum are forgotten (``sticky_recovery`` keeps both, so that
recovery repeats for some batches); a batch in which nothing is selected takes no step
(``momentum_on_empty`` lets the momentum carry on); BatchNorm layers of every dimension are adapted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Cost
from findtta.algorithms.learning import GradientAdapted, Snapshot, moving_average
from findtta.algorithms.presets import GradientOptions
from findtta.functional import softmax_entropy
from findtta.options import AtLeastZero, Number, Text, option

NORM_FLOOR = 1e-12  # a zero gradient must not divide by zero


@dataclass(frozen=True)
class SAROptions(GradientOptions):
    """Options of SAR."""

    skip_layers: tuple[Text, ...] = option(("layer4",), "layers whose name contains one of these are not trained")
    entropy_margin: Number | None = option(None, "a sample is reliable if its entropy is below this (E0)")
    rho: AtLeastZero = option(
        0.05, "radius of the sharpness-aware step: how far parameters move before the second pass"
    )
    recovery_threshold: AtLeastZero = option(
        0.2, "moving average of the loss below which parameters are reset to the source; 0: never"
    )
    sticky_recovery: bool = option(False, "keep the average loss and the momentum after a reset, as published")
    momentum_on_empty: bool = option(
        False, "take a step with the momentum alone when no sample is selected, as published"
    )

    def preset_values(self) -> dict[str, Any]:
        margin = self.log_classes(0.4) if self.preset == "official" else 0.4 * math.log(1000)
        return super().preset_values() | {"optimizer": "sgd", "nesterov": False, "entropy_margin": margin}


class SAR(GradientAdapted):
    """Sharpness-aware and reliable entropy minimisation."""

    name = "sar"
    summary = "sharpness-aware entropy minimisation on reliable samples, with recovery of the source"
    citation = "Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023"
    weakness = (
        "Twice the cost of TENT. ImageNet's entropy margin filters nothing on ten classes. Recovery "
        "notices a collapse only after the loss has fallen, and starts again from the source."
    )
    options_type = SAROptions
    passes = Cost(forward=2, backward=2)

    remembered: ClassVar[Mapping[str, Any]] = {"average_loss": None, "recoveries": 0}

    average_loss: float | None
    recoveries: int

    def learn(self, inputs: Tensor) -> Tensor:
        logits = self.logits(inputs)
        entropy = softmax_entropy(logits)
        self.reliable = self.selected = entropy.detach() < self.options.entropy_margin
        if not self.reliable.any():
            self._step_on_nothing()
        elif self.differentiate(entropy[self.reliable].mean()):
            self._descend_from_above(inputs, self.reliable)
        self.optimizer.zero_grad()
        self._recover_if_low()
        return logits

    def _descend_from_above(self, inputs: Tensor, reliable: Tensor) -> None:
        parameters = list(self.trained.values())
        here = Snapshot(parameters)
        try:
            self._climb(parameters)
            entropy = softmax_entropy(self.logits(inputs))
            self.selected = reliable & (entropy.detach() < self.options.entropy_margin)
            loss = entropy[self.selected].mean() if self.selected.any() else None
            usable = loss is not None and self.differentiate(loss)
        finally:
            here.copy_to(parameters)
        if loss is None:
            self._step_on_nothing()
        elif usable:
            self.optimizer.step()
            self.average_loss = moving_average(self.average_loss, float(loss.detach()))

    @torch.no_grad()
    def _climb(self, parameters: list[nn.Parameter]) -> None:
        slopes = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        # One length over all parameters, not one each.
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([slope for _, slope in slopes])))
        scale = self.options.rho / (length + NORM_FLOOR)
        for parameter, slope in slopes:
            parameter.addcmul_(slope, scale)
        self.optimizer.zero_grad()

    def _step_on_nothing(self) -> None:
        if self.options.momentum_on_empty:
            for parameter in self.trained.values():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()

    def _recover_if_low(self) -> None:
        if self.average_loss is None or self.average_loss >= self.options.recovery_threshold:
            return
        self.source.copy_to(self.changing(self.model))
        self.recoveries += 1
        if not self.options.sticky_recovery:
            self.reset_optimizer()
            self.average_loss = None
