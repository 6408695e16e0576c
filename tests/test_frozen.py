"""BatchNorm with constant statistics as each library writes it: recognised by what it holds and computes."""

import pytest
import torch
from torch import nn

import findtta
from findtta.errors import UnsupportedModelError
from nets import FrozenBatchNorm2d, close, conv, filled, images


class EpsInForward(FrozenBatchNorm2d):
    """As in Hugging Face's DETR and RT-DETR: no attribute says what is added to the variance."""

    def __init__(self, num_features):
        super().__init__(num_features)
        del self.eps

    def forward(self, x):
        weight, bias, mean, variance = (
            getattr(self, name).reshape(1, -1, 1, 1) for name in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight * (variance + self.hidden_eps()).rsqrt()
        return x * scale + (bias - mean * scale)

    def hidden_eps(self):
        return 1e-5


class OtherEpsInForward(EpsInForward):
    def hidden_eps(self):
        return 1e-3


class WithActivation(FrozenBatchNorm2d):
    """As timm's FrozenBatchNormAct2d."""

    def __init__(self, num_features):
        super().__init__(num_features)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class WithParameters(EpsInForward):
    """A normalisation of one's own, with an affine map that is trained."""

    def __init__(self, num_features):
        super().__init__(num_features)
        for name in ("weight", "bias"):
            delattr(self, name)
            setattr(self, name, nn.Parameter(torch.ones(num_features)))


KINDS = {
    FrozenBatchNorm2d: 1e-5,
    EpsInForward: 1e-5,
    OtherEpsInForward: 1e-3,
    WithActivation: 1e-5,
    WithParameters: 1e-5,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["source", "tbn", "find", "find-soft"])
def test_a_frozen_layer_is_adapted_as_torchs_own(kind, method):
    def plain_layer():
        norm, act = nn.BatchNorm2d(6, KINDS[kind]), nn.ReLU()
        return nn.Sequential(norm, act if kind is WithActivation else nn.Identity())

    frozen = filled(nn.Sequential(conv(3, 6), kind(6), conv(6, 6), kind(6)))
    plain = nn.Sequential(frozen[0], plain_layer(), frozen[2], plain_layer()).eval()
    for index in (1, 3):
        plain[index][0].load_state_dict(frozen[index].state_dict(), strict=False)
    batch = images()
    with torch.no_grad():
        assert close(frozen(batch), plain(batch), 1e-5)
    assert close(findtta.adapt(frozen, method)(batch), findtta.adapt(plain, method)(batch), 1e-5)
    assert [(layer.kind, layer.adaptable) for layer in findtta.inspect(frozen).layers] == [
        (kind.__name__, True)
    ] * 2


class ScalesOnly(FrozenBatchNorm2d):
    """Holds all that a frozen BatchNorm layer holds, and normalises with none of it."""

    def forward(self, x):
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class NormalisesLast(FrozenBatchNorm2d):
    def forward(self, x):
        return super().forward(x.relu())


@pytest.mark.parametrize("kind", [ScalesOnly, NormalisesLast])
@pytest.mark.parametrize("initial", [False, True])
def test_a_layer_that_only_looks_frozen_is_refused_by_name(kind, initial):
    model = filled(nn.Sequential(conv(3, 6), FrozenBatchNorm2d(6), kind(6)))
    model[1].weight.zero_()  # tells nothing about what the layer does
    if initial:  # nor do these
        model[2].running_mean.zero_()
        model[2].running_var.fill_(1.0)
    with pytest.raises(
        UnsupportedModelError, match=f"2: {kind.__name__}: .* does not begin with normalising"
    ) as error:
        findtta.adapt(model)
    assert "1: " not in str(error.value)
    assert [layer.adaptable for layer in findtta.inspect(model).layers] == [True, False]
