"""TBR, the batch renormalisation of DELTA."""

import torch
from torch import nn

import findtta
from findtta.algorithms.tbr import RenormalizedNorm
from nets import TinyNet, filled, images, randn, stream


def test_a_layer_renormalises_batch_statistics():
    norm = filled(nn.BatchNorm2d(3), dtype=torch.float64)
    layer = RenormalizedNorm(norm, 0.9)
    moving_mean = moving_deviation = None
    for seed in range(4):
        batch = (1 + seed) * randn(6, 3, 4, 5, seed=seed, dtype=torch.float64) + seed
        mean, variance = batch.mean((0, 2, 3)), batch.var((0, 2, 3), correction=0)
        deviation = (variance + norm.eps).sqrt()
        if seed == 0:
            moving_mean, moving_deviation = mean, deviation
        scale, shift = deviation / moving_deviation, (mean - moving_mean) / moving_deviation
        normal = (batch.movedim(1, -1) - mean) / deviation * scale + shift
        expected = (normal * norm.weight + norm.bias).movedim(-1, 1)
        torch.testing.assert_close(layer(batch), expected, rtol=0, atol=1e-12)
        moving_mean = 0.9 * moving_mean + 0.1 * mean
        moving_deviation = 0.9 * moving_deviation + 0.1 * deviation


def test_the_first_batch_is_tbn_and_nothing_finite_changes_nothing():
    model = filled(TinyNet())
    adapted, tbn = findtta.adapt(model, "tbr"), findtta.adapt(model, "tbn")
    adapted(torch.full((4, 3, 8, 8), torch.nan))
    torch.testing.assert_close(adapted(images()), tbn(images()), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(adapted(images(seed=1)), tbn(images(seed=1)), atol=1e-3)
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    adapted(torch.full((4, 3, 8, 8), torch.nan))
    assert all(tensor.equal(before[name]) for name, tensor in adapted.state_dict().items())
    batch = images()
    batch[2] = torch.inf
    others = torch.arange(len(batch)) != 2
    torch.testing.assert_close(adapted(batch)[others], after_state(model, before, batch[others]))


def after_state(model, state, batch):
    """What the method predicts for a batch, from a saved state."""
    adapted = findtta.adapt(model, "tbr")
    adapted.load_state_dict(state)
    return adapted(batch)


def test_momentum_one_keeps_the_first_batch_and_zero_the_last():
    model, batches = filled(TinyNet()), stream(3)
    kept = findtta.adapt(model, "tbr", momentum=1.0)
    last = findtta.adapt(model, "tbr", momentum=0.0)
    for batch in batches:
        kept(batch)
        last(batch)
    for adapted, batch in ((kept, batches[0]), (last, batches[-1])):
        layer = adapted.get_submodule("model.stem.1")
        features = model.stem[0](batch)
        torch.testing.assert_close(layer.moving_mean, features.mean((0, 2, 3)).detach())
