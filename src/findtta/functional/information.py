"""How uncertain predictions are, and how far groups of samples agree with their domains or classes.

Both measures of agreement favour many small groups, which are pure by chance: compare them with those of random
groups of the same sizes before reading anything into them.
"""

from __future__ import annotations

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
