"""EATA: entropy minimisation on samples that are reliable and not redundant, held near the source.

A sample is reliable if its entropy is below a margin, and redundant if its prediction is similar to the
average prediction of the samples learned from so far. Parameters that matter on source data
(by their Fisher information, if a table is given) are pulled back to their source values. Without a
table this is ETA, which is what the FIND paper compares with: it has no source data.

Differences from the authors: BatchNorm layers of every dimension are adapted. The margins of the paper's
comparison (``margins="ttab"``) are those of ImageNet for every dataset; on ten classes they select next to
nothing after the first batch. ``margins="dataset"`` scales them with the number of classes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.algorithms.learning import GradientAdapted, Snapshot, moving_average
from findtta.algorithms.presets import GradientOptions
from findtta.errors import InputError, OptionError, few
from findtta.functional import softmax_entropy
from findtta.options import AtLeastZero, Number, option

IMAGENET_ENTROPY_MARGIN = 0.4 * math.log(1000)


@dataclass(frozen=True)
class EATAOptions(GradientOptions):
    """Options of EATA."""

    margins: Literal["ttab", "dataset"] | None = option(
        None,
        "'ttab' (ImageNet's margins for every dataset, as in the paper's comparison) or 'dataset' (by classes)",
    )
    entropy_margin: Number | None = option(None, "a sample is reliable if its entropy is below this (E0)")
    redundancy_margin: Number | None = option(
        None, "a sample is not redundant if the cosine of its prediction to the average one is below this (d)"
    )
    fisher_weight: AtLeastZero | None = option(
        None, "weight of the penalty that holds parameters near the source, once a Fisher table is set"
    )

    def preset_values(self) -> dict[str, Any]:
        values = super().preset_values() | {"margins": "ttab", "fisher_weight": 2000.0}
        if self.preset == "official":
            values |= {"margins": "dataset", "fisher_weight": self.by_class_count(1.0, 1.0, 2000.0)}
        if (self.margins or values["margins"]) == "dataset":
            redundancy = self.by_class_count(ten=0.4, hundred=0.1, thousand=0.05)
            return values | {"entropy_margin": self.log_classes(0.4), "redundancy_margin": redundancy}
        return values | {"entropy_margin": IMAGENET_ENTROPY_MARGIN, "redundancy_margin": 0.05}


class EATA(GradientAdapted):
    """Efficient anti-forgetting test-time adaptation."""

    name = "eata"
    summary = "entropy minimisation on reliable, non-redundant samples, optionally held near the source"
    citation = "Niu et al., Efficient Test-Time Model Adaptation without Forgetting, ICML 2022"
    weakness = (
        "The margins decide everything. With ImageNet's on ten classes, next to nothing is selected after "
        "the first batch, and it is TBN; with loose margins it can collapse as TENT does."
    )
    options_type = EATAOptions
    remembered: ClassVar[Mapping[str, Any]] = {"average_prediction": None}

    average_prediction: Tensor | None
    #: By parameter name. It comes from the source, not from the stream, so reset() leaves it.
    fisher: dict[str, Tensor] | None = None

    def learn(self, inputs: Tensor) -> Tensor:
        logits = self.logits(inputs)
        entropy = softmax_entropy(logits)
        probabilities = logits.detach().softmax(1)
        self.reliable = entropy.detach() < self.options.entropy_margin
        self.selected = self.reliable & self._is_new(probabilities)
        if self.selected.any():
            chosen = entropy[self.selected]
            weight = torch.exp(self.options.entropy_margin - chosen.detach())
            if self.descend((weight * chosen).mean() + self._pull_to_source()):
                self.average_prediction = moving_average(
                    self.average_prediction, probabilities[self.selected].mean(0)
                )
        return logits

    def _is_new(self, probabilities: Tensor) -> Tensor:
        if self.average_prediction is None:
            return torch.ones(len(probabilities), dtype=torch.bool, device=probabilities.device)
        self.average_prediction = self.average_prediction.to(probabilities)  # where the model has moved
        similarity = F.cosine_similarity(self.average_prediction[None], probabilities, dim=1)
        return similarity.abs() < self.options.redundancy_margin

    def _pull_to_source(self) -> Tensor | float:
        if self.fisher is None or not self.options.fisher_weight:
            return 0.0
        penalties = [
            (self.fisher[name].to(parameter) * (parameter - source) ** 2).sum()
            for (name, parameter), source in zip(self.trained.items(), self.source.buffers(), strict=True)
        ]
        return self.options.fisher_weight * torch.stack(penalties).sum()

    def set_fisher(self, table: Mapping[str, Tensor] | None) -> None:
        """Hold parameters near the source by a table that :func:`estimate_fisher` returned; None: do not."""
        if table is None:
            self.fisher = None
            return
        expected = {name: tuple(parameter.shape) for name, parameter in self.trained.items()}
        given = {name: tuple(values.shape) for name, values in table.items()}
        if expected != given:
            differing = sorted(name for name in expected | given if expected.get(name) != given.get(name))
            raise OptionError(
                "table must hold a tensor of the parameter's shape for every trained parameter and nothing else, "
                f"but it differs at {few(differing)}. Make it with estimate_fisher(adapted, batches)."
            )
        self.fisher = {name: values.detach().clone() for name, values in table.items()}

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"fisher": self.fisher}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.set_fisher(state["fisher"])


def estimate_fisher(adapted: EATA, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return how much each trained parameter matters on batches of source images, for :meth:`EATA.set_fisher`.

    As the authors do it, with 2000 images, 64 at a time: the squared gradient of the batch's mean cross-entropy
    with its own predictions, averaged over the batches, at the source parameters. What the adapted model has
    learned is left as it is.
    """
    with torch.inference_mode(False), torch.enable_grad():
        learned = Snapshot(adapted.changing(adapted.model))
        parameters = adapted.trained
        table = {name: torch.zeros_like(parameter, requires_grad=False) for name, parameter in parameters.items()}
        count = 0
        try:
            adapted.source.copy_to(adapted.changing(adapted.model))
            for batch in batches:
                logits = adapted.logits(batch.clone() if batch.is_inference() else batch)
                if adapted.differentiate(F.cross_entropy(logits, logits.detach().argmax(1))):
                    count += 1
                    for name, parameter in parameters.items():
                        if parameter.grad is not None:
                            table[name] += parameter.grad**2
                adapted.optimizer.zero_grad()
        finally:
            learned.copy_to(adapted.changing(adapted.model))
    if not count:
        raise InputError("batches must hold at least one batch of finite inputs, got none that can be used.")
    return {name: squared / count for name, squared in table.items()}
