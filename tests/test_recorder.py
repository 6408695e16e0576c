import math

import pytest
import torch

import findtta
from findtta.functional import instance_moments, partition
from findtta.predictor import Recorder
from nets import METHODS, TinyNet, filled, images


def net() -> torch.nn.Module:
    return filled(TinyNet())


def layer_inputs(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each BatchNorm layer of an unadapted model gets."""
    seen, handles = {}, []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):

            def keep(_, inputs, name=name):
                seen[name] = inputs[0].detach().clone()

            handles.append(module.register_forward_pre_hook(keep))
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return seen


def drift_by_loops(features: torch.Tensor, norm: torch.nn.Module, sample: int) -> float:
    total = 0.0
    for channel in range(features.shape[1]):
        values = features[sample, channel].flatten().double().tolist()
        mean = sum(values) / len(values)
        variance = max(sum((value - mean) ** 2 for value in values) / len(values), norm.eps)
        source_mean, source_variance = float(norm.running_mean[channel]), float(norm.running_var[channel])
        total += (variance + (mean - source_mean) ** 2) / (2 * source_variance)
        total += 0.5 * math.log(source_variance / variance) - 0.5
    return total / features.shape[1]


@pytest.mark.parametrize("method", [*METHODS, "tent"])
def test_recording_does_not_change_the_predictions(method):
    recorded, alone = findtta.adapt(net(), method), findtta.adapt(net(), method)
    recorder = Recorder(recorded)
    for seed in range(3):
        batch = images(9, seed=seed)
        recorder.clear()
        assert torch.equal(recorded(batch), alone(batch))
        assert recorder.drift(9).shape == recorder.groups(9).shape == (9, len(recorder.layers))


@pytest.mark.parametrize("method", ["source", "find", "iabn"])
def test_drift_is_what_loops_give(method):
    unadapted, batch = net(), images(5)
    adapted = findtta.adapt(unadapted, method)
    recorder = Recorder(adapted)
    adapted(batch)
    drift = recorder.drift(5)
    # The first layer gets the same from every method; with the unadapted model all layers do.
    for column, (name, features) in enumerate(layer_inputs(unadapted, batch).items()):
        assert recorder.layers[column].removeprefix("model.") == name
        norm = unadapted.get_submodule(name)
        if method == "source" or column == 0:
            expected = [drift_by_loops(features, norm, sample) for sample in range(5)]
            assert drift[:, column].tolist() == pytest.approx(expected, rel=1e-4)


def test_groups_are_the_partition_of_the_means():
    adapted, batch = findtta.adapt(net(), "find"), images(12)
    recorder = Recorder(adapted)
    seen: dict[str, torch.Tensor] = {}
    for name, layer in adapted.layers():
        layer.observers.append(lambda mean, variance, name=name: seen.setdefault(name, mean.clone()))
    adapted(batch)
    groups = recorder.groups(12)
    for column, name in enumerate(recorder.layers):
        assert torch.equal(groups[:, column], partition(seen[name]))
    first = instance_moments(next(iter(layer_inputs(net(), batch).values())))[0]
    assert torch.equal(groups[:, 0], partition(first))
    assert (groups >= 0).all()


def test_methods_without_groups_have_none():
    for method in ("source", "tbn", "iabn"):
        adapted = findtta.adapt(net(), method)
        recorder = Recorder(adapted)
        adapted(images(4))
        assert (recorder.groups(4) == -1).all()
        assert recorder.drift(4).isfinite().all()


def test_clear_forgets_and_close_ends_it():
    adapted = findtta.adapt(net(), "find")
    recorder = Recorder(adapted)
    adapted(images(4))
    recorder.clear()
    assert recorder.drift(4).isnan().all()
    assert (recorder.groups(4) == -1).all()
    recorder.close()
    adapted(images(4))
    assert recorder.drift(4).isnan().all()
    assert all(not layer.observers for _, layer in adapted.layers())
    unadapted = findtta.adapt(net(), "source")
    Recorder(unadapted).close()
    assert all(not module._forward_pre_hooks for module in unadapted.modules())


def test_a_layer_without_source_statistics_has_no_drift():
    model = torch.nn.Sequential(
        torch.nn.BatchNorm2d(3, track_running_stats=False), torch.nn.BatchNorm2d(3), torch.nn.Flatten()
    )
    for method in ("find", "source"):
        adapted = findtta.adapt(model, method)
        recorder = Recorder(adapted)
        adapted(images(4))
        assert recorder.drift(4).isnan().all(0).tolist() == [True, False]


def test_windows_of_an_image_are_averaged_and_give_it_no_group():
    class Windows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            halves = torch.stack(x.split(4, dim=3), 1).flatten(0, 1)
            return self.norm(halves).view(len(x), 2, -1)

    adapted = findtta.adapt(Windows(), "find")
    recorder = Recorder(adapted)
    batch = images(3)
    adapted(batch)
    expected = [
        sum(drift_by_loops(batch[..., side : side + 4], adapted.model.norm.norm, sample) for side in (0, 4)) / 2
        for sample in range(3)
    ]
    assert recorder.drift(3)[:, 0].tolist() == pytest.approx(expected, rel=1e-4)
    assert (recorder.groups(3) == -1).all()
