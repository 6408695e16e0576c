"""How far a layer's inputs have drifted from the source (S-FABN, equations 8 and 9)."""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian_kl(
    mean: Tensor, variance: Tensor, source_mean: Tensor, source_variance: Tensor, eps: float = 1e-5
) -> Tensor:
    """KL divergence of the test Gaussian from the source Gaussian, per channel (equation 8).

    Args:
        mean: Test mean, ``(C,)``.
        variance: Test variance, ``(C,)``.
        source_mean: Source mean, ``(C,)``.
        source_variance: Source variance, ``(C,)``.
        eps: Floor of both variances, so that a constant channel has a finite divergence.

    Returns:
        Divergence, ``(C,)``, never negative beyond rounding.
    """
    variance = variance.clamp_min(eps)
    source_variance = source_variance.to(variance.dtype).clamp_min(eps)
    moved = variance + (mean - source_mean) ** 2
    return moved / (2 * source_variance) + 0.5 * torch.log(source_variance / variance) - 0.5


def layer_score(divergence: Tensor) -> Tensor:
    """Sensitivity of one layer from the divergence of its channels (equation 9).

    Args:
        divergence: Divergence per channel, ``(C,)``.

    Returns:
        ``(1 + sigmoid(std)) * mean`` over the channels, a scalar; ``std`` is the population's standard deviation.
    """
    return (1 + torch.sigmoid(divergence.std(correction=0))) * divergence.mean()


def normalize_scores(scores: Tensor) -> Tensor:
    """Bring the scores of all layers to [0, 1], lowest to highest.

    Args:
        scores: One score per layer, ``(layers,)``; NaN marks a layer that was never measured.

    Returns:
        Min-max normalised scores, ``(layers,)``; all 0 when every layer scores the same; NaN stays.
    """
    measured = scores[~scores.isnan()]
    if not len(measured):
        return scores
    low, high = measured.aminmax()
    spread = high - low
    return (scores - low) / torch.where(spread > 0, spread, torch.ones_like(spread))
