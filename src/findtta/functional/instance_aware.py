"""Instance-aware statistics: believe a sample only where it deviates more than chance explains (IABN)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def instance_aware_moments(
    mean: Tensor,
    variance: Tensor,
    base_mean: Tensor,
    base_variance: Tensor,
    positions: int,
    k: float = 4.0,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Correct base statistics by what an instance deviates beyond ``k`` standard errors.

    The standard errors are those of the mean and of the unbiased variance of ``positions`` normal
    values with the base variance, so they do not depend on the instance.

    Args:
        mean: Instance means, ``(B, C)``.
        variance: Biased instance variances, ``(B, C)``, as :func:`instance_moments` gives them.
        base_mean: Mean to correct, ``(C,)``.
        base_variance: Variance to correct, ``(C,)``.
        positions: Number of values each instance moment was computed from.
        k: Number of standard errors that a difference must exceed to count.
        eps: Added to the base variance.

    Returns:
        Mean and variance, ``(B, C)`` each; the base statistics themselves, ``(C,)`` each, where an
        instance says nothing (one position, or infinite ``k``).
    """
    if positions <= 1 or math.isinf(k):
        return base_mean, base_variance
    base_mean, base_variance = base_mean.to(mean.dtype), base_variance.to(mean.dtype)
    unbiased = variance * (positions / (positions - 1))
    spread = base_variance + eps
    mean_error = torch.sqrt(spread / positions)
    variance_error = spread * math.sqrt(2 / (positions - 1))
    corrected_mean = base_mean + _shrink(mean - base_mean, k * mean_error)
    corrected_variance = base_variance + _shrink(unbiased - base_variance, k * variance_error)
    return corrected_mean, F.relu(corrected_variance)


def _shrink(deviation: Tensor, threshold: Tensor) -> Tensor:
    """Move every deviation towards zero by the threshold, stopping at zero."""
    return F.relu(deviation - threshold) - F.relu(-deviation - threshold)
