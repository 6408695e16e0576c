"""UnMix-TNS: the mixture of every layer, and what it keeps across batches."""

import copy
import math

import pytest
import torch
from torch import nn

import findtta
import reference
from findtta.algorithms.unmix_tns import SourceNorm, UnMixNorm, UnMixTNSOptions
from nets import TinyNet, filled, images, randn, stream


def components(adapted):
    layers = [layer for _, layer in adapted.layers() if isinstance(layer, UnMixNorm)]
    return [(layer.component_mean.clone(), layer.component_variance.clone()) for layer in layers]


def assert_same(left, right):
    assert len(left) == len(right) == 3
    assert all(a.equal(b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("sizes", [(6, 6, 6), (5, 1, 12)])
def test_a_layer_computes_the_equations(sizes):
    norm = filled(nn.BatchNorm2d(3), dtype=torch.float64)
    options = UnMixTNSOptions(components=4, reference_batch=8)
    layer = UnMixNorm(norm, options, randn(4, 3, seed=5))
    spread = math.sqrt(4 / 6) * norm.running_var.sqrt()
    torch.testing.assert_close(layer.component_mean, norm.running_mean + spread * randn(4, 3, seed=5))
    torch.testing.assert_close(layer.component_variance, (norm.running_var / 2).expand(4, 3))
    for seed, size in enumerate(sizes):
        batch = 3 * randn(size, 3, 4, 5, seed=seed, dtype=torch.float64) + 100
        rate = 1 - (1 - 0.1) ** (size / 8)
        mean, variance, *after = reference.unmix(
            batch, layer.component_mean.tolist(), layer.component_variance.tolist(), rate
        )
        expected = reference.normalize(batch, mean, variance, norm)
        torch.testing.assert_close(layer(batch), expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(layer.component_mean, after[0], rtol=0, atol=1e-11)
        torch.testing.assert_close(layer.component_variance, after[1], rtol=0, atol=1e-11)


def test_many_components_start_with_the_moments_of_the_source():
    norm = filled(nn.BatchNorm2d(3), dtype=torch.float64)
    layer = UnMixNorm(norm, UnMixTNSOptions(), randn(20_000, 3))
    mean, between = layer.component_mean.mean(0), layer.component_mean.var(0, correction=0)
    torch.testing.assert_close(mean, norm.running_mean, rtol=0, atol=0.05)
    torch.testing.assert_close(layer.component_variance.mean(0) + between, norm.running_var, rtol=0.05, atol=0)


def test_one_dimensional_layers_and_those_without_statistics_are_as_in_the_source_model():
    model = filled(TinyNet())
    kinds = [type(layer) for _, layer in findtta.adapt(model, "unmix-tns").layers()]
    assert kinds == [UnMixNorm, UnMixNorm, UnMixNorm, SourceNorm]
    head = findtta.adapt(model.head, "unmix-tns")
    assert head(randn(5, 6)).equal(model.head(randn(5, 6)))
    forgetful = nn.BatchNorm2d(3, track_running_stats=False)
    batch = images()
    torch.testing.assert_close(findtta.adapt(forgetful, "unmix-tns")(batch), forgetful(batch))


def test_the_start_depends_on_the_seed_alone():
    model = filled(TinyNet())
    torch.manual_seed(0)
    first = components(findtta.adapt(model, "unmix-tns", seed=3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert_same(components(findtta.adapt(model, "unmix-tns", seed=3)), first)
    assert torch.get_rng_state().equal(before)
    other = components(findtta.adapt(filled(TinyNet()), "unmix-tns", seed=4))
    assert not other[0][0].equal(first[0][0])
    assert not first[0][0].equal(first[1][0])  # layers have their own


def test_an_image_with_nan_is_left_out_of_the_components():
    batch = images(9)
    others = torch.arange(9) != 4
    batch[4, 0, 2, 2] = torch.nan
    dirty, clean = (findtta.adapt(filled(TinyNet()), "unmix-tns") for _ in range(2))
    outputs = dirty(batch)
    torch.testing.assert_close(outputs[others], clean(batch[others]))
    assert outputs[4].isnan().all()
    torch.testing.assert_close(components(dirty), components(clean))
    before = components(dirty)
    dirty(torch.full_like(batch, torch.nan))
    assert_same(components(dirty), before)


def test_a_source_checkpoint_starts_the_components_anew():
    adapted = findtta.adapt(filled(TinyNet()), "unmix-tns")
    for batch in stream(2):
        adapted(batch)
    learned = copy.deepcopy(adapted.state_dict())
    adapted.load_state_dict(filled(TinyNet(), seed=7).state_dict())
    assert_same(components(adapted), components(findtta.adapt(filled(TinyNet(), seed=7), "unmix-tns")))
    adapted.load_state_dict(learned)
    other = findtta.adapt(filled(TinyNet()), "unmix-tns")
    for batch in stream(2):
        other(batch)
    assert_same(components(adapted), components(other))


def test_a_model_in_half_precision_keeps_components_in_float32():
    adapted = findtta.adapt(filled(TinyNet()).bfloat16(), "unmix-tns")
    assert {mean.dtype for mean, _ in components(adapted)} == {torch.float32}
    assert adapted(images().bfloat16()).isfinite().all()
