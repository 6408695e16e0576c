import pytest
import torch
import torch.nn.functional as F
from torch import nn

import reference
from findtta.functional import blend, normalize
from nets import close, filled, randn, same_bits

SHAPES = [(5, 4), (5, 4, 7), (3, 4, 4, 5), (2, 4, 2, 3, 4)]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("shape", [(4,), (6, 4)])
def test_blend_weighs_the_source_by_alpha(alpha, shape):
    test, source = randn(*shape, dtype=torch.float64), randn(4, seed=1, dtype=torch.float64)
    assert close(blend(test, source, alpha), alpha * source + (1 - alpha) * test, 1e-14)


def test_blend_is_exact_at_both_ends():
    test, source = randn(6, 4), 1000 * randn(4, seed=1)
    assert same_bits(blend(test, source, 0), test)
    assert same_bits(blend(test, source, 1), source.expand(6, 4))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("per_sample", [True, False])
def test_equals_the_reference(shape, affine, overwrite, per_sample):
    features = randn(*shape, dtype=torch.float64)
    norm = filled(nn.BatchNorm1d(4, affine=affine), dtype=torch.float64)
    mean = randn(shape[0], 4, seed=1, dtype=torch.float64)
    variance = 0.1 + randn(shape[0], 4, seed=2, dtype=torch.float64).abs()
    if not per_sample:
        mean, variance = mean[0], variance[0]
    wanted_mean, wanted_variance = mean.expand(shape[0], 4), variance.expand(shape[0], 4)
    want = reference.normalize(features, wanted_mean, wanted_variance, norm)
    with torch.no_grad():
        got = normalize(features.clone(), mean, variance, norm.weight, norm.bias, norm.eps, overwrite=overwrite)
    assert close(got, want, 1e-10)


def test_statistics_per_channel_are_torch_batch_norm_to_the_bit():
    features, norm = randn(4, 3, 5, 5), filled(nn.BatchNorm2d(3))
    got = normalize(features, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps)
    assert same_bits(got, norm(features))


@pytest.mark.parametrize("per_sample", [True, False])
def test_overwrite_reuses_the_memory_and_nothing_else_does(per_sample):
    mean, variance = randn(3, seed=1), torch.ones(3)
    if per_sample:
        mean, variance = mean.repeat(4, 1), variance.repeat(4, 1)
    features = randn(4, 3, 5, 5)
    kept = features.clone()
    apart = normalize(features, mean, variance)
    assert same_bits(features, kept)
    over = normalize(features, mean, variance, overwrite=True)
    assert over.data_ptr() == features.data_ptr()
    assert close(over, apart, 1e-6)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_memory_format_is_kept(memory_format, per_sample, overwrite):
    features = randn(4, 3, 5, 5).to(memory_format=memory_format)
    shape = (4, 3) if per_sample else (3,)
    result = normalize(features, torch.zeros(shape), torch.ones(shape), overwrite=overwrite)
    assert result.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("per_sample", [True, False])
def test_half_precision_is_normalised_in_float32(dtype, per_sample):
    features = (100 + randn(4, 3, 5, 5)).to(dtype)
    mean, variance = torch.full((3,), 100.0), torch.ones(3)
    if per_sample:
        mean, variance = mean.repeat(4, 1), variance.repeat(4, 1)
    got = normalize(features, mean, variance)
    want = F.batch_norm(features.float(), torch.full((3,), 100.0), torch.ones(3))
    assert got.dtype == dtype
    assert close(got, want, torch.finfo(dtype).eps)


def test_constant_channel_stays_finite():
    result = normalize(torch.ones(2, 3, 4), torch.ones(2, 3), torch.zeros(2, 3))
    assert same_bits(result, torch.zeros(2, 3, 4))
