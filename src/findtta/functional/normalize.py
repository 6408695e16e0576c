"""Blending of statistics and the normalisation itself (equations 5 to 7)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.functional import native
from findtta.functional.graph_mode import exported, traced
from findtta.functional.moments import as_dtype, widen


def blend(test: Tensor, source: Tensor, alpha: float) -> Tensor:
    """Mix test statistics with source statistics (equation 5 for means, 6 for variances).

    Args:
        test: Statistics of the test data, ``(C,)`` or ``(B, C)``.
        source: Statistics of the training data, ``(C,)``.
        alpha: Weight of the **source**, 0 to 1.

    Returns:
        ``alpha * source + (1 - alpha) * test``, of the shape of ``test``.
    """
    source = as_dtype(source, test.dtype)
    if traced():
        return test * (1 - alpha) + source * alpha  # two operations of an exported graph; ``lerp`` becomes six
    return torch.lerp(test, source, alpha)


def normalize(
    features: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    overwrite: bool = False,
) -> Tensor:
    """Normalise a feature map with given statistics, then scale and shift it (equation 7).

    Args:
        features: Feature map, ``(B, C, *spatial)``.
        mean: Mean per channel, ``(C,)``, or per sample and channel, ``(B, C)``.
        variance: Variance, of the shape of ``mean``.
        weight: Scale per channel, ``(C,)``, or None for 1.
        bias: Shift per channel, ``(C,)``, or None for 0.
        eps: Added to the variance.
        overwrite: Write the result over ``features`` (only where no gradient is recorded).

    Returns:
        The normalised map, of the shape, dtype and memory format of ``features``.
    """
    wide = widen(features)
    mean, variance = as_dtype(mean, wide.dtype), as_dtype(variance, wide.dtype)
    weight = None if weight is None else as_dtype(weight, wide.dtype)
    bias = None if bias is None else as_dtype(bias, wide.dtype)
    # torch's operator has no gradient for the statistics it is given.
    if mean.ndim == 1 and not overwrite and not (mean.requires_grad or variance.requires_grad):
        result = F.batch_norm(wide, mean, variance, weight, bias, training=False, eps=eps)
        return as_dtype(result, features.dtype)
    if (normalized := native.normalize(wide, mean, variance, weight, bias, eps, overwrite)) is not None:
        return as_dtype(normalized, features.dtype)
    if exported() and weight is not None and bias is not None:
        # One batch of all planes as channels: a runtime scales and shifts them in one pass.
        planes = wide.reshape(1, -1, *wide.shape[2:])
        weight, bias = (row.expand_as(mean).reshape(-1) for row in (weight, bias))
        result = F.batch_norm(planes, mean.reshape(-1), variance.reshape(-1), weight, bias, False, eps=eps)
        return as_dtype(result.reshape(wide.shape), features.dtype)
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else torch.addcmul(bias, mean, scale, value=-1)
    per_position = (-1, features.shape[1]) + (1,) * (features.ndim - 2)
    scale, shift = scale.view(per_position), shift.view(per_position)
    out = wide if overwrite else None
    if wide.is_contiguous():
        # Two vectorised passes beat one fused pass that broadcasts along the contiguous axis.
        result = torch.mul(wide, scale, out=out).add_(shift)
    else:
        result = torch.addcmul(shift, wide, scale, out=out)
    return as_dtype(result, features.dtype)
