"""Soft neighbourhoods: every sample has statistics of its own, averaged over the samples that drift like it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

POISONED = -math.inf  # its weight is exactly 0 at any temperature
LEAST_COSINE = -2.0  # below any cosine, rounded as it may be; a sample on its own has this for its nearest
LEAST_DRIFT = 1e-6  # has a logarithm


def soft_neighbours(
    mean: Tensor,
    variance: Tensor,
    source_mean: Tensor,
    source_variance: Tensor,
    temperature: float,
    eps: float = 1e-5,
) -> Tensor:
    """Weigh the samples of a batch by how much alike they drift.

    A sample is described by where its statistics have gone from the source's: standardised means and log
    deviations. Weights are a softmax over the cosines of the descriptions. A sample counts for itself as much as
    its nearest neighbour does, not more: else its own content would outweigh the drift that it shares.

    Args:
        mean: Instance means, ``(B, C)``.
        variance: Instance variances, ``(B, C)``.
        source_mean: Source means, ``(C,)``.
        source_variance: Source variances, ``(C,)``.
        temperature: Small: the nearest neighbours only; large: the whole batch.
        eps: Added to variances.

    Returns:
        Weights, ``(B, B)``; rows sum to 1. A poisoned sample has no weight for the others.
    """
    source_variance = source_variance + eps
    shift = (mean - source_mean) * source_variance.rsqrt()
    stretch = 0.5 * torch.log((variance + eps) / source_variance)
    direction = F.normalize(torch.cat([shift, stretch], 1), dim=1)
    cosine = direction @ direction.T
    cosine = cosine.masked_fill(cosine.isnan(), POISONED)
    index = torch.arange(cosine.shape[0], device=cosine.device)
    itself = index[:, None] == index
    nearest = cosine.masked_fill(itself, LEAST_COSINE).amax(1, keepdim=True)
    return torch.softmax(torch.where(itself, nearest, cosine) / temperature, 1)


def weighted_moments(
    mean: Tensor, variance: Tensor, weights: Tensor, about: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Moments of the mixture that each row of weights makes of the samples.

    Args:
        mean: Instance means, ``(B, C)``.
        variance: Instance variances, ``(B, C)``.
        weights: ``(rows, B)``; rows sum to 1.
        about: A point near the means, ``(C,)``, about which squares are summed; it keeps large numbers from
            cancelling, and changes nothing else.

    Returns:
        Mean and biased variance, within and between the samples, ``(rows, C)`` each.
    """
    centred = mean if about is None else mean - about
    # A zero weight does not remove a NaN from a sum; a zero value does.
    centred, variance = centred.nan_to_num(nan=0.0), variance.nan_to_num(nan=0.0)
    sums = weights @ torch.cat([centred, torch.addcmul(variance, centred, centred)], 1)
    first, second = sums.chunk(2, 1)
    spread = torch.addcmul(second, first, first, value=-1).clamp_min(0)
    return (first if about is None else first + about), spread


def log_drift(divergence: Tensor) -> Tensor:
    """Logarithm of the divergence averaged over channels, ``(B, C)`` to ``(B,)``."""
    return divergence.mean(1).clamp_min(LEAST_DRIFT).log()


def drift_gate(evidence: Tensor, threshold: float, sharpness: float) -> Tensor:
    """How far to trust test statistics, 0 to 1: a half where the drift, as a logarithm, is at the threshold."""
    return torch.sigmoid(sharpness * (evidence - math.log(threshold)))
