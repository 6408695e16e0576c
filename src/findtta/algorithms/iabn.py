"""IABN: source statistics, corrected where an instance deviates more than chance explains.

Gong et al., NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation, NeurIPS 2022,
whose normalisation layer this is, used alone. Differences from the authors: the layer is swapped
into a model that was trained with BatchNorm (they train with it), and an input without spatial
positions, which their layer refuses, is normalised with the base statistics.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.functional import batch_moments, instance_aware_moments
from findtta.layers.adaptive import AdaptiveNorm
from findtta.options import Options, option, require_number


def require_standard_errors(name: str, value: object) -> None:
    """Raise unless the value of an option is a number of at least 0, infinity included."""
    if value != math.inf:
        require_number(name, value, 0)


StandardErrors = Annotated[float, require_standard_errors]


@dataclass(frozen=True)
class IABNOptions(Options):
    """Options of IABN."""

    k: StandardErrors = option(4.0, "number of standard errors beyond which an instance corrects the statistics")
    base: Literal["source", "batch"] = option(
        "source", "statistics to correct: 'source', or 'batch' (predictions depend on the batch)"
    )


class InstanceAwareNorm(AdaptiveNorm):
    """Normalises each instance with base statistics that it may correct."""

    needs_features = True

    def __init__(self, norm: nn.Module, k: float, base: str = "source") -> None:
        super().__init__(norm)
        self.k = k
        self.base = base

    def statistics(  # type: ignore[override]
        self, mean: Tensor, variance: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        positions = math.prod(features.shape[2:])
        base_mean, base_variance = self.base_statistics(mean, variance, positions)
        return instance_aware_moments(mean, variance, base_mean, base_variance, positions, self.k, self.eps)

    def base_statistics(self, mean: Tensor, variance: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Return the statistics to correct, ``(C,)`` each."""
        if self.base == "batch" or self.norm.running_mean is None:
            return batch_moments(mean, variance, "unbiased", positions)
        return self.source_statistics(mean, variance)


class IABN(Adapted):
    """Instance-aware batch normalisation."""

    name = "iabn"
    summary = "source statistics, corrected per instance where it deviates more than chance explains"
    citation = (
        "Gong et al., NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation, NeurIPS 2022"
    )
    weakness = (
        "It was made for models trained with it. Swapped into a model trained with BatchNorm it can fall "
        "below the source model, most of all in deep models, where the corrections of many layers add up."
    )
    options_type = IABNOptions
    # With the default base; base="batch" makes outputs depend on the batch.
    batch_dependent = False

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return InstanceAwareNorm(norm, self.options.k, self.options.base)
