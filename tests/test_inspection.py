import pytest
import torch
from torch import nn

import findtta
from findtta.cli.main import main
from nets import (
    ActivatedNorm,
    FrozenBatchNorm2d,
    OwnMathsNorm,
    assert_same_snapshot,
    conv,
    filled,
    images,
    randn,
    snapshot,
    tiny,
)


def fitted(*before):
    """A small network whose first BatchNorm layer has the statistics of ordinary images."""
    model = filled(nn.Sequential(*before, conv(3, 6), nn.BatchNorm2d(6), nn.ReLU()))
    norm = model[-2]
    with torch.no_grad():
        features = model[:-2](randn(64, 3, 8, 8) if not before else randn(64, 3, 8, 8).sigmoid())
    norm.running_mean.copy_(features.mean((0, 2, 3)))
    norm.running_var.copy_(features.var((0, 2, 3)))
    return model


class Normalize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.45))
        self.register_buffer("std", torch.full((1, 3, 1, 1), 0.22))

    def forward(self, x):
        return (x - self.mean) / self.std


def normalising():
    first = Normalize()
    model = fitted(first)
    first.mean.fill_(0.45)
    first.std.fill_(0.22)
    return model


def test_a_good_model_has_nothing_to_warn_of():
    inspection = findtta.inspect(fitted(), randn(16, 3, 8, 8, seed=3))
    assert inspection.adaptable
    assert inspection.warnings == []
    assert [(layer.name, layer.kind, layer.channels) for layer in inspection.layers] == [("1", "BatchNorm2d", 6)]
    assert "Sequential: 1 of 1 normalisation layers can be adapted." in str(inspection)


def test_the_table_lists_every_layer():
    text = str(findtta.inspect(tiny()))
    assert all(name in text for name in ("stem.1", "bn1", "bn2", "head.1", "BatchNorm1d"))


@pytest.mark.parametrize(
    ("norm", "note"),
    [
        (nn.BatchNorm2d(6, track_running_stats=False), "no running statistics"),
        (nn.BatchNorm2d(6, affine=False), "no affine"),
        (nn.BatchNorm2d(6).requires_grad_(False), "affine frozen"),
        (FrozenBatchNorm2d(6), "frozen: constant statistics"),
        (ActivatedNorm(6), "does more than normalise; kept"),
        (nn.SyncBatchNorm(6), "local batch only"),
    ],
)
def test_unusual_layers_are_adaptable_with_a_note(norm, note):
    inspection = findtta.inspect(filled(nn.Sequential(conv(3, 6), norm)))
    assert inspection.adaptable
    assert note in inspection.layers[0].note
    assert findtta.adapt(nn.Sequential(conv(3, 6), norm)).report()[0].name == "1"


@pytest.mark.parametrize(
    ("norm", "note"),
    [(OwnMathsNorm(6), "called batch_norm 0 times"), (nn.LazyBatchNorm2d(), "lazy and has no shape yet")],
)
def test_layers_that_cannot_be_adapted_are_named(norm, note):
    inspection = findtta.inspect(nn.Sequential(conv(3, 6), norm))
    assert not inspection.adaptable
    assert note in inspection.layers[0].note
    assert "findtta.adapt would refuse it" in str(inspection)


def test_layers_without_running_statistics_are_counted():
    model = nn.Sequential(fitted(), nn.BatchNorm2d(6, track_running_stats=False))
    (warning,) = findtta.inspect(model).warnings
    assert warning.startswith("1 of 2 BatchNorm layers (1): no running statistics")


def test_untrained_statistics_are_noticed():
    (warning,) = findtta.inspect(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6))).warnings
    assert warning.startswith("1 of 1 BatchNorm layers (1): running statistics have their initial values")


@pytest.mark.parametrize(
    ("buffer", "value", "warning"),
    [
        ("running_mean", torch.nan, "contain NaN or Inf"),
        ("running_var", torch.inf, "contain NaN or Inf"),
        ("running_var", -1.0, "running variance is negative"),
    ],
)
def test_damaged_statistics_are_noticed(buffer, value, warning):
    model = fitted()
    getattr(model[1], buffer)[2] = value
    assert any(
        warning in w and w.startswith("1 of 1 BatchNorm layers (1): ") for w in findtta.inspect(model).warnings
    )


@pytest.mark.parametrize(
    ("model", "warning"),
    [
        (nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), "fused into the convolutions"),
        (nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6)), "normalises with LayerNorm"),
        (nn.Sequential(conv(3, 6)), "has no BatchNorm layer"),
    ],
)
def test_models_without_batch_norm_are_explained(model, warning):
    inspection = findtta.inspect(model)
    assert not inspection.adaptable
    assert warning in inspection.warnings[0]


class RootMeanSquareNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * x.square().mean(1, keepdim=True).rsqrt() * self.scale[:, None, None]


class EvoNorm(RootMeanSquareNorm):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_var", torch.ones(6))


class ConvNormAct(nn.Sequential):
    """A block that is named after the norm inside it."""


def test_every_layer_that_looks_like_a_normalisation_is_listed_with_the_reason():
    others = [
        nn.GroupNorm(2, 6),
        nn.LayerNorm([8, 8]),
        nn.InstanceNorm2d(6),
        nn.LocalResponseNorm(2),
        RootMeanSquareNorm(),
    ]
    keeping = [nn.InstanceNorm2d(6, track_running_stats=True), EvoNorm()]
    model = nn.Sequential(Normalize(), ConvNormAct(conv(3, 6), nn.BatchNorm2d(6), nn.ReLU()), *others, *keeping)
    weighted = torch.nn.utils.parametrizations.weight_norm(conv(6, 6))
    inspection = findtta.inspect(model.append(weighted))
    assert inspection.adaptable
    assert [layer.adaptable for layer in inspection.layers] == [True] + [False] * 7
    assert [layer.kind for layer in inspection.layers[1:]] == [type(norm).__name__ for norm in others + keeping]
    assert {layer.note for layer in inspection.layers[1:6]} == {"keeps no source statistics; left as it is"}
    assert all("running statistics, but is not BatchNorm" in layer.note for layer in inspection.layers[6:])
    assert findtta.adapt(model)(images()).isfinite().all()


class ScaledStdConv(nn.Conv2d):
    """A convolution of a normaliser-free model."""

    def __init__(self):
        super().__init__(3, 6, 3)
        self.gain = nn.Parameter(torch.ones(6, 1, 1, 1))


def test_a_model_made_without_normalisation_is_not_called_fused():
    (warning,) = findtta.inspect(nn.Sequential(ScaledStdConv(), nn.ReLU())).warnings
    assert "(ScaledStdConv)" in warning
    assert "fused" not in warning


# What the inputs look like


def test_inputs_normalised_outside_and_inside_are_noticed():
    model = normalising()
    in_range = randn(16, 3, 8, 8, seed=3).sigmoid()
    assert not any("twice" in warning for warning in findtta.inspect(model, in_range).warnings)
    twice = findtta.inspect(model, (in_range - 0.45) / 0.22).warnings
    assert any("probably normalised twice" in warning and "(0)" in warning for warning in twice)


def test_inputs_normalised_twice_outside_are_noticed():
    warnings = findtta.inspect(fitted(), 4.5 * randn(16, 3, 8, 8) - 2).warnings
    assert any("probably normalised twice" in warning for warning in warnings)


@pytest.mark.parametrize("make", [fitted, normalising])
def test_inputs_of_0_to_255_are_noticed(make):
    batch = 255 * randn(16, 3, 8, 8).sigmoid()
    assert any("probably 0..255 instead of 0..1" in warning for warning in findtta.inspect(make(), batch).warnings)


def test_integer_images_are_noticed():
    batch = (255 * randn(16, 3, 8, 8).sigmoid()).byte()
    assert any("0..255" in warning for warning in findtta.inspect(fitted(), batch).warnings)


def test_drifted_inputs_are_noticed():
    assert any("far from the source" in warning for warning in findtta.inspect(fitted(), images(16) + 5).warnings)


def test_a_batch_of_one_and_bad_values_are_noticed():
    batch = randn(1, 3, 8, 8)
    batch[0, 0, 0, 0] = torch.nan
    warnings = findtta.inspect(fitted(), batch).warnings
    assert any("a batch of one" in warning for warning in warnings)
    assert any("contains NaN or Inf" in warning for warning in warnings)


def test_a_batch_the_model_cannot_run_on_is_a_warning():
    warnings = findtta.inspect(fitted(), randn(4, 5, 8, 8)).warnings
    assert any("could not run on the batch: RuntimeError" in warning for warning in warnings)


def test_something_else_than_a_module_is_refused():
    with pytest.raises(findtta.errors.UnsupportedModelError, match="got dict"):
        findtta.inspect({})


@pytest.mark.parametrize("batch", [None, randn(4, 3, 8, 8), randn(4, 5, 8, 8)], ids=["none", "good", "bad"])
def test_the_model_is_not_touched(batch):
    model = nn.Sequential(conv(3, 6), ActivatedNorm(6), nn.Sequential(nn.Dropout(), nn.BatchNorm2d(6))).train()
    model[2].eval()
    model[1].register_forward_hook(lambda *_: None)
    before = snapshot(model)
    findtta.inspect(model, batch)
    assert_same_snapshot(before, snapshot(model))


@pytest.mark.parametrize(("name", "layers"), [("shapes-resnet26", 27), ("resnet20", 21)])
def test_command_takes_every_name_of_the_opener(name, layers, capsys):
    assert main(["inspect", name]) == 0
    assert f"{layers} of {layers} normalisation layers can be adapted" in capsys.readouterr().out
