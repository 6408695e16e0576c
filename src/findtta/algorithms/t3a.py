"""T3A: the classifier is replaced by the mean features of each class, collected from confident predictions.

Iwasawa and Matsuo, Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, NeurIPS 2021.
The rows of the classifier's weight are the first supports. Every image joins the supports of the class that it is
predicted as, before the predictions of its batch are made, and each class keeps the ``supports`` ones of lowest
entropy, weight rows among them. An output is the inner product of the features with the direction of the mean of
the normalised supports.

Alone it works on the source model; ``find+t3a`` works on the features and predictions of FIND, and so with every
method that normalises without gradients. An image that is not finite joins no class, and keeps the output that the
model gives it. The authors choose the number of supports by a search over 1, 5, 20, 50, 100 and all; all is not
available here, because what is kept has a fixed size (classes x supports x features).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from findtta.algorithms.outputs import OutputAdapted, OutputOptions
from findtta.functional import softmax_entropy
from findtta.functional.moments import widen
from findtta.layers.surgery import NormSite
from findtta.options import Count, option


@dataclass(frozen=True)
class T3AOptions(OutputOptions):
    """Options of T3A."""

    supports: Count = option(20, "most features that are kept for a class, those of lowest entropy (M, filter_K)")


class T3A(OutputAdapted):
    """Test-time templates adjuster."""

    name = "t3a"
    summary = "a classifier of mean features of confident predictions; also after others: find+t3a"
    citation = (
        "Iwasawa and Matsuo, Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, "
        "NeurIPS 2021"
    )
    weakness = (
        "Confident mistakes become supports and stay, so that it adds little where the features under it are "
        "poor. It forgets slowly, and bias and length of the classifier's weights are lost, which costs "
        "accuracy where classes are unbalanced. Outputs are no calibrated logits."
    )
    options_type = T3AOptions
    stateful = True
    settles = False
    # Which features have the lowest entropy is decided by rounding, and another runtime may keep others.
    exportable = False
    batch_dependent = True

    supports: Tensor
    entropies: Tensor

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        super().prepare(model, sites)
        layer = model.get_submodule(self.classifier)
        rows = _rows(layer)
        classes, width = rows.shape
        # Normalised features by class, and their entropies: infinite where there is none.
        self.register_buffer("supports", rows.new_zeros(classes, self.options.supports, width))
        self.register_buffer("entropies", rows.new_zeros(classes, self.options.supports))
        self._begin(layer)

    def adjust(self, features: Tensor, logits: Tensor, usable: Tensor) -> Tensor:
        self._add(features, logits, usable)
        return features @ F.normalize(self.supports.sum(1), dim=1).T.to(features.dtype)

    @torch.no_grad()
    def _begin(self, layer: nn.Module) -> None:
        """Start from the rows of the classifier's weight."""
        rows, bias = _rows(layer), layer.bias
        self.supports.zero_()
        self.entropies.fill_(torch.inf)
        logits = rows @ rows.T
        logits = logits + bias if isinstance(bias, Tensor) else logits
        self._add(rows, logits, rows.isfinite().all(1) & logits.isfinite().all(1))

    def _add(self, features: Tensor, logits: Tensor, usable: Tensor) -> None:
        """Let features join the supports of their predicted classes, and keep those of lowest entropy."""
        classes, most = self.entropies.shape
        entropy = softmax_entropy(logits).masked_fill(~usable, torch.inf).to(self.entropies.dtype)
        index = torch.arange(classes, device=entropy.device)[:, None]
        joining = torch.where(logits.argmax(1) == index, entropy, torch.inf)
        # Stable: a new one that is not of the class, infinite as well, comes after all empty places.
        kept = torch.cat([self.entropies, joining], 1).sort(dim=1, stable=True)
        order = kept.indices[:, :most]
        rows = torch.where(order < most, order + index * most, order - most + classes * most)
        known = self.supports.flatten(0, 1)
        self.supports.copy_(torch.cat([known, F.normalize(features, dim=1).to(known.dtype)])[rows])
        self.entropies.copy_(kept.values[:, :most])

    def reset(self) -> None:
        super().reset()
        with self.lock:
            self._begin(self.model.get_submodule(self.classifier))


def _rows(layer: nn.Module) -> Tensor:
    """Return the weight of a classifier, ``(classes, features)``."""
    weight: Tensor = layer.weight.detach()  # type: ignore[operator]
    return widen(weight.flatten(1))
