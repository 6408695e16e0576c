"""Entropy of predictions, drift of a layer from the source, and agreement of groups with domains or classes.

The drift of a layer is the score of S-FABN (equations 8 and 9).
Both measures of agreement favour many small groups, which are pure by chance: compare them with those of random
groups of the same sizes before reading anything into them.
"""

import torch
from torch import Tensor

from findtta.errors import InputError
from findtta.functional.moments import widen


def softmax_entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax of each row of logits, in nats.

    Args:
        logits: Logits, ``(B, K)``.

    Returns:
        Entropy, ``(B,)``, from 0 (certain) to ``ln K`` (uniform).
    """
    log_probabilities = widen(logits).log_softmax(1)
    return -(log_probabilities.exp() * log_probabilities).sum(1)


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


def purity(labels: Tensor, truth: Tensor) -> Tensor:
    """Share of the samples that belong to the most frequent kind of their group.

    Args:
        labels: Group of each sample, whole numbers ``(B,)``.
        truth: Kind of each sample, whole numbers ``(B,)``.

    Returns:
        A scalar in float64, from ``1 / B`` to 1; 1 if no group holds two kinds.

    Example:
        >>> import torch
        >>> purity(torch.tensor([0, 0, 0, 3]), torch.tensor([7, 7, 8, 8]))
        tensor(0.7500, dtype=torch.float64)
    """
    counts = _contingency(labels, truth)
    return counts.amax(1).sum() / counts.sum()


def nmi(labels: Tensor, truth: Tensor) -> Tensor:
    """Mutual information of groups and kinds, over the mean of their entropies.

    Args:
        labels: Group of each sample, whole numbers ``(B,)``.
        truth: Kind of each sample, whole numbers ``(B,)``.

    Returns:
        A scalar in float64, from 0 (independent) to 1 (the same division, also if both are one group).

    Example:
        >>> import torch
        >>> nmi(torch.tensor([0, 0, 2, 2]), torch.tensor([5, 5, 1, 1]))
        tensor(1., dtype=torch.float64)
    """
    joint = _contingency(labels, truth)
    joint = joint / joint.sum()
    groups, kinds = joint.sum(1), joint.sum(0)
    of_groups, of_kinds = _entropy(groups), _entropy(kinds)
    information = of_groups + of_kinds - _entropy(joint)
    if len(groups) == len(kinds) == 1:
        return torch.ones_like(information)
    return (2 * information / (of_groups + of_kinds)).clamp(0, 1)


def _contingency(labels: Tensor, truth: Tensor) -> Tensor:
    """Count the samples of each group and kind: float64 ``(groups, kinds)``, on the CPU."""
    for name, tensor in (("labels", labels), ("truth", truth)):
        if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex():
            raise InputError(
                f"{name} must be whole numbers of shape (B,), got {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
    if len(labels) != len(truth) or len(labels) == 0:
        raise InputError(
            f"labels and truth must have one entry per sample, at least one, got {len(labels)} and {len(truth)}."
        )
    groups, group = labels.detach().cpu().unique(return_inverse=True)
    kinds, kind = truth.detach().cpu().unique(return_inverse=True)
    counts = (group * len(kinds) + kind).bincount(minlength=len(groups) * len(kinds))
    return counts.view(len(groups), len(kinds)).double()


def _entropy(shares: Tensor) -> Tensor:
    return -torch.xlogy(shares, shares).sum()
