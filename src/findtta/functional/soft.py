"""Soft neighbourhoods: statistics for every sample, averaged over the samples with a similar drift.

Everything is in units of the source (see :func:`in_source_units`): means are shifts from the source's mean in
source standard deviations, and variances are multiples of the source's.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.functional.graph_mode import traced
from findtta.functional.moments import replace_nan

POISONED = -math.inf  # its weight is exactly 0 at any temperature
LEAST_SIMILARITY = -2.0  # below any; that of a sample without others to its nearest neighbour
NO_DRIFT = 1e-12  # keeps similarities of samples without drift from being 0 / 0
LEAST_DRIFT = 1e-6  # has a logarithm
# How these were chosen: see docs/beyond-find.md.
DEPTH_EXPONENT = 0.4  # divergence falls with depth, with drift and without
MIDDLE, LATE = 0.5, 0.85  # parts of the depth of a model after which layers are in its middle, and late
LATE_TRUST = 0.8  # in late layers, where samples differ by class more than by drift
ALLOWED_SHARE = 3.0  # times the square of the middle layers' common share: that of late layers by drift alone
CHANCE_SHARE = 0.5  # divided by the number of samples: common share of unrelated samples
GUARD_SHARPNESS = 8


def in_source_units(
    mean: Tensor, variance: Tensor, source_mean: Tensor, source_variance: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Shift and stretch of every sample against the source.

    Args:
        mean: Instance means, ``(B, C)``.
        variance: Instance variances, ``(B, C)``.
        source_mean: Source means, ``(C,)``.
        source_variance: Source variances, ``(C,)``.
        eps: Added to variances.

    Returns:
        Shift of the mean in source standard deviations, and standard deviation as a multiple of the source's,
        ``(B, C)`` each: 0 and 1 for a sample without drift.
    """
    scale = torch.rsqrt(source_variance + eps)
    return (mean - source_mean) * scale, torch.sqrt(variance + eps) * scale


def soft_neighbours(shift: Tensor, stretch: Tensor, temperature: float) -> Tensor:
    """Weigh the samples of a batch by the similarity of their drift.

    With ``W(i, j)`` the Wasserstein distance of two samples (as Gaussians with independent channels), the
    similarity is ``1 - W(i, j)^2 / (W(i, source)^2 + W(j, source)^2)``: 1 for the same drift, 0 for unrelated
    drifts, -1 for opposite ones. Weights are a softmax over it. A sample counts for itself as much as its nearest
    neighbour does, not more: otherwise its own content would outweigh the drift that it shares.

    Args:
        shift: Means in units of the source, ``(B, C)``.
        stretch: Standard deviations in units of the source, ``(B, C)``.
        temperature: Small: the nearest neighbours only; large: the whole batch.

    Returns:
        Weights, ``(B, B)``; rows sum to 1. A poisoned sample has no weight for the others.
    """
    drift = torch.cat([shift, stretch - 1], 1)
    energy = (drift * drift).sum(1) + NO_DRIFT
    half_similarity = replace_nan(drift @ drift.T / (energy[:, None] + energy), POISONED)
    return torch.softmax(_nearest_on_diagonal(half_similarity) * (2 / temperature), 1)


def _nearest_on_diagonal(similarity: Tensor) -> Tensor:
    if not traced():
        similarity.fill_diagonal_(LEAST_SIMILARITY)
        similarity.diagonal().copy_(similarity.amax(1))
        return similarity
    # The quicker form above would fix the size of the batch in a traced graph.
    index = torch.arange(similarity.shape[0], device=similarity.device)
    itself = index[:, None] == index
    return torch.where(itself, similarity.masked_fill(itself, LEAST_SIMILARITY).amax(1, keepdim=True), similarity)


def weighted_moments(mean: Tensor, variance: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of the mixture that each row of weights makes of the samples.

    Args:
        mean: Means of samples, ``(B, C)``; in units of the source, where their squares are no large numbers.
        variance: Variances of samples, ``(B, C)``.
        weights: ``(rows, B)``; rows sum to 1.

    Returns:
        Mean and biased variance, within and between the samples, ``(rows, C)`` each.
    """
    table = replace_nan(torch.cat([mean, torch.addcmul(variance, mean, mean)], 1))
    first, second = (weights @ table).chunk(2, 1)
    return first, torch.addcmul(second, first, first, value=-1)


def log_drift(mean: Tensor, variance: Tensor, own_share: Tensor) -> Tensor:
    """Logarithm of how far neighbourhoods have drifted: their KL divergence from the source, a mean over channels.

    The fewer samples a neighbourhood averages, the further it is from the source by chance. It is divided by one
    plus the sample's own share: halved for a sample on its own, left as it is in large batches.

    Args:
        mean: Means of neighbourhoods in units of the source, ``(B, C)``.
        variance: Their variances in units of the source, ``(B, C)``, above 0.
        own_share: The weight of each sample in its own neighbourhood, ``(B,)``.

    Returns:
        Logarithms, ``(B,)``.
    """
    divergence = torch.addcmul(variance - torch.log(variance), mean, mean).mean(1) - 1
    return (divergence / (2 + 2 * own_share)).clamp_min(LEAST_DRIFT).log()


def drift_threshold(layers: int, threshold: float) -> float:
    """The drift at which the gate is half open after a number of layers; ``threshold`` is that after the first."""
    return threshold * layers**-DEPTH_EXPONENT


def drift_gate(evidence: Tensor, layers: int, threshold: float, sharpness: float) -> Tensor:
    """How far to trust test statistics, 0 to 1.

    Args:
        evidence: Logarithm of the drift, averaged over the layers so far, ``(B,)``.
        layers: How many those are.
        threshold: See :func:`drift_threshold`.
        sharpness: How quickly the gate opens around the threshold.
    """
    return torch.sigmoid(sharpness * evidence - sharpness * math.log(drift_threshold(layers, threshold)))


def common_share(shift: Tensor, drift: Tensor) -> tuple[Tensor, Tensor]:
    """How far the shifts of the samples of a batch point the same way, above all those of little drift.

    The mean inner product of two samples, divided by the mean of one sample with itself. Samples count by
    ``exp(-2 * drift)``: strong drift of any kind can push samples towards one class, whatever their own. A shift
    of all channels alike is left out: it is drift, never a class.

    Args:
        shift: Means in units of the source, ``(B, C)``; a poisoned sample does not count.
        drift: Logarithm of the drift of each sample, ``(B,)``.

    Returns:
        The share, scalar: 1 for equal shifts, about 0 for unrelated ones and for a single sample. And the sum of
        squared weights, scalar: one over the number of samples that count.
    """
    weights = torch.softmax(-2 * drift.masked_fill(~shift[:, 0].isfinite(), math.inf), 0)
    pattern = replace_nan(shift - shift.mean(1, keepdim=True))
    energy = pattern.square().sum(1)
    concentration = weights.square().sum()
    pairs = (weights @ pattern).square().sum() - weights.square() @ energy
    # A few samples with nearly all of the weight tell too little: then the share tends to 0.
    return pairs / ((1 - concentration).clamp_min(0.05) * (weights @ energy).clamp_min(NO_DRIFT)), concentration


def class_guard(share: Tensor, earlier: Tensor, concentration: Tensor) -> Tensor:
    """How far to trust neighbourhoods in a batch that may hold few classes, 0 to 1.

    Drift that the samples share shows in all layers; a class that they share shows in the last layers only. So
    the common share of a late layer is held against that of the layers before it.

    Args:
        share: Common share of the shifts in this layer, scalar; see :func:`common_share`.
        earlier: Mean of the common shares of the layers before, scalar.
        concentration: One over the number of samples, scalar.
    """
    allowed = ALLOWED_SHARE * F.relu(earlier).square() + CHANCE_SHARE * concentration
    return 1 / (1 + (F.relu(share) / allowed) ** GUARD_SHARPNESS)
