"""Means and variances of instances, of groups of instances, of the whole batch, and instance-aware ones (IABN).

Only :func:`instance_moments` reads the feature map; the others combine its ``(B, C)`` results.
Variances are biased (divided by the number of values), as in equation 4 of the paper, unless stated otherwise.

A sample with a NaN, an Inf or values too large to square is *poisoned*: its moments are NaN, and
they are left out of every statistic that another sample uses.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.functional import native
from findtta.functional.graph_mode import exported, single, traced

# On CPU samples are reduced in slabs of about this size, so that the second read of a slab is
# served by the cache and the table of squared deviations stays small.
SLAB_BYTES = 4 << 20

# aten.mse_loss subtracts and squares in one pass, but is not vectorised along runs shorter than this.
SHORT_RUN = 32
NO_REDUCTION = 0  # it is called directly, because its Python wrapper costs as much as a small layer

# Up to this many samples a group average is one small matrix product; above it, a scatter. On a
# GPU the product is kept for longer: it is quick there, and a scatter would not be deterministic.
DENSE_SAMPLES_CPU = 128
DENSE_SAMPLES_ELSEWHERE = 4096

#: How the variance of samples put together is estimated; :func:`group_moments` says what each is.
Estimator = Literal["biased", "unbiased", "instance-unbiased"]


def widen(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32, or as it is if it is float64 already.

    Half and bfloat16 hold too few digits for a variance, so statistics are never computed in them.
    """
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def as_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert only if needed: in a layer with twenty small operations, a call that does nothing counts."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def instance_moments(features: Tensor, *, centred: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and variance of every sample and channel over its positions (equation 1).

    Args:
        features: Feature map, ``(B, C, *spatial)``; ``(B, C)`` counts as one position.
        centred: Whether means are at most some hundred standard deviations away from 0, so that a mean of squares
            gives the variance to enough digits.

    Returns:
        Mean and biased variance, ``(B, C)`` each, in float32 (float64 for float64 features); all
        NaN for a poisoned sample.
    """
    features = widen(features)
    if (moments := native.instance_moments(features)) is not None:
        return moments
    if centred and features.ndim > 2:
        # One axis of positions, or onnxruntime squares a map in the layout of its convolutions, and converts both.
        flat = features.reshape(-1, features.shape[1], math.prod(features.shape[2:]))
        mean, square = flat.mean(2), (flat * flat).mean(2)
        mark = square.sum(1, keepdim=True) * 0
        return mean + mark, F.relu(square - mean * mean) + mark
    mean, variance = _plain_moments(features)
    # Not finite if any moment is not, or if the square of a difference of two such means is not.
    energy = torch.addcmul(variance, mean, mean, value=4).sum(1, keepdim=True)
    mark = energy.detach() * 0  # 0, or NaN
    return mean + mark, variance + mark


def _plain_moments(features: Tensor) -> tuple[Tensor, Tensor]:
    if features.ndim == 2:
        return features, torch.zeros_like(features)
    dims = tuple(range(2, features.ndim))
    if exported():
        mean = features.mean(dims, keepdim=True)
        deviation = features - mean
        return mean.flatten(1), (deviation * deviation).mean(dims)
    if traced():
        return _one_pass_moments(features, dims)
    if features.device.type != "cpu":
        variance, mean = torch.var_mean(features, dims, correction=0)
        return mean, variance
    sample_bytes = features[:1].numel() * features.element_size()
    samples_per_slab = max(1, SLAB_BYTES // max(1, sample_bytes))
    if samples_per_slab >= features.shape[0]:
        return _two_pass_moments(features, dims)
    slabs = [_two_pass_moments(slab, dims) for slab in features.split(samples_per_slab)]
    return torch.cat([mean for mean, _ in slabs]), torch.cat([variance for _, variance in slabs])


def _two_pass_moments(features: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    # ``var_mean`` is many times slower on CPU, and E[x^2] - E[x]^2 loses all digits of the variance
    # where the mean is large: subtract first, then square.
    mean = features.mean(dims, keepdim=True)
    run_length = features.shape[1] if features.stride(1) == 1 else features[0, 0].numel()
    if run_length < SHORT_RUN:
        squared_deviation = (features - mean).square_()  # in place: fresh memory is what costs most
    else:
        squared_deviation = torch.ops.aten.mse_loss(features, mean.expand_as(features), NO_REDUCTION)
    return mean.flatten(1), squared_deviation.mean(dims)


def _one_pass_moments(features: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    # Generated code adds both up in one pass over memory. Differences from a value of the same plane are about as
    # large as its standard deviation, so that little is lost when the square of their mean is subtracted.
    middle = features
    for dim in dims:
        middle = middle.narrow(dim, features.shape[dim] // 2, 1)
    deviation = features - middle
    shift = deviation.mean(dims)
    variance = (deviation * deviation).mean(dims) - shift * shift
    return middle.flatten(1) + shift, variance.clamp_min(0)


def group_moments(
    mean: Tensor,
    variance: Tensor,
    labels: Tensor,
    estimator: Estimator = "biased",
    positions: int = 1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Moments of each sample's group, from the moments of the samples (equation 4).

    The estimators of the variance are ``"biased"`` (equation 4); ``"unbiased"``, over all values of the group; and
    ``"instance-unbiased"``: the mean of the unbiased variances of the samples plus the biased variance of their
    means, where sums over a group, that of the mean included, are divided by its size plus ``eps``. What has a
    single value has variance 0 in all of them.

    Args:
        mean: Instance means, ``(B, C)``.
        variance: Biased instance variances, ``(B, C)``.
        labels: Group label per sample, ``(B,)``, each in ``0 .. B-1``.
        estimator: How the variance is estimated.
        positions: Number of values each instance moment was computed from; not read by ``"biased"``.
        eps: Added to the size of a group by ``"instance-unbiased"``.

    Returns:
        Mean and variance of the group each sample belongs to, ``(B, C)`` each.
    """
    if estimator == "biased" and (moments := native.group_moments(mean, variance, labels)) is not None:
        return moments
    mean, variance = replace_nan(mean), replace_nan(variance)
    if estimator == "biased" and single(labels):
        return mean, variance
    batch = labels.shape[0]
    limit = DENSE_SAMPLES_CPU if mean.device.type == "cpu" else DENSE_SAMPLES_ELSEWHERE
    if traced() or batch <= limit:
        same_group = (labels[:, None] == labels).to(mean.dtype)
        size = same_group.sum(1, keepdim=True)
        share = same_group / _divisor(size, estimator, eps)

        def average(values: Tensor) -> Tensor:
            return share @ values
    else:
        size = mean.new_zeros(batch).index_add(0, labels, mean.new_ones(batch))[labels, None]
        divisor = _divisor(size, estimator, eps)

        def average(values: Tensor) -> Tensor:
            return torch.zeros_like(values).index_add(0, labels, values)[labels] / divisor

    return _pooled_moments(mean, variance, average, size, estimator, positions)


def batch_moments(
    mean: Tensor, variance: Tensor, estimator: Estimator = "biased", positions: int = 1, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Moments of the whole batch, from the moments of its samples.

    Args:
        mean: Instance means, ``(B, C)``.
        variance: Biased instance variances, ``(B, C)``.
        estimator: How the variance is estimated, as in :func:`group_moments`.
        positions: Number of values each instance moment was computed from; not read by ``"biased"``.
        eps: Added to the number of samples by ``"instance-unbiased"``.

    Returns:
        Mean and variance over all samples that are not poisoned, ``(C,)`` each.
    """
    usable = torch.isfinite(mean.sum(1)).to(mean.dtype)
    size = usable.sum().clamp_min(1)
    share = usable / _divisor(size, estimator, eps)
    mean, variance = replace_nan(mean), replace_nan(variance)
    return _pooled_moments(mean, variance, lambda values: share @ values, size, estimator, positions)


def _divisor(size: Tensor, estimator: Estimator, eps: float) -> Tensor:
    return size + eps if estimator == "instance-unbiased" else size


def _pooled_moments(
    mean: Tensor,
    variance: Tensor,
    average: Callable[[Tensor], Tensor],
    size: Tensor,
    estimator: Estimator,
    positions: int,
) -> tuple[Tensor, Tensor]:
    """Moments of samples put together, ``size`` of them, from an average over them."""
    if estimator == "instance-unbiased":
        variance = variance * (positions / max(positions - 1, 1))
    pooled_mean = average(mean)
    deviation = mean - pooled_mean
    # Within plus between, both about the pooled mean: no large numbers cancel.
    pooled_variance = average(torch.addcmul(variance, deviation, deviation))
    if estimator == "unbiased":
        values = size * positions
        pooled_variance = pooled_variance * (values / (values - 1).clamp_min(1))
    return pooled_mean, pooled_variance


def instance_aware_moments(
    mean: Tensor,
    variance: Tensor,
    base_mean: Tensor,
    base_variance: Tensor,
    positions: int,
    k: float = 4.0,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Correct base statistics by what an instance deviates beyond ``k`` standard errors (IABN).

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
    if positions <= 1 or k == math.inf:  # the compiler cannot trace isinf of an option
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


def average_windows(values: Tensor, samples: int) -> Tensor:
    """Average the rows that are windows of the same sample, one after the other: ``(rows, ...)``."""
    rows = values.shape[0]
    return values if rows == samples else values.view(samples, rows // samples, *values.shape[1:]).mean(1)


def repeat_for_windows(values: Tensor, rows: int) -> Tensor:
    """Give every window of a sample, of which there are ``rows``, what is known of the sample, ``(B, ...)``."""
    samples = values.shape[0]
    return values if rows == samples else values.repeat_interleave(rows // samples, 0)


def replace_nan(values: Tensor, value: float = 0.0) -> Tensor:
    """Put ``value`` in the place of NaN, among numbers that are finite otherwise.

    A zero weight does not remove a NaN from a sum (0 * NaN is NaN); a zero value does.
    """
    if traced():
        # ``nan_to_num`` also looks for infinities, which takes eight operations of an exported graph for two.
        return values.masked_fill(values.isnan(), value)
    return values.nan_to_num(nan=value)
