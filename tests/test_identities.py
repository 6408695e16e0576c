"""What must be equal to what, whatever the weights and the data."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import findtta
from nets import METHODS, PreActivation, TinyNet, close, filled, images, randn, replaced, same_bits, stream, tiny
from reference import ReferenceFABN

DTYPES = [torch.float32, torch.float64]
LAYERS = {"BatchNorm1d": (nn.BatchNorm1d, (9, 4)), "BatchNorm2d": (nn.BatchNorm2d, (9, 4, 3, 3))}


def rounding(dtype):
    return 1e-4 if dtype == torch.float32 else 1e-11


@pytest.fixture(params=["net", "BatchNorm1d", "BatchNorm2d"])
def case(request):
    """A model and a batch, made for a dtype."""

    def make(dtype):
        if request.param == "net":
            return tiny(dtype), images(9, dtype=dtype)
        kind, shape = LAYERS[request.param]
        return filled(kind(4), dtype=dtype), 2 + 3 * randn(*shape, dtype=dtype)

    return make


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["find", "find-star", "alpha-bn"])
def test_all_source_equals_the_plain_model_to_the_bit(case, method, dtype):
    model, batch = case(dtype)
    with torch.no_grad():
        want = model(batch)
    assert same_bits(findtta.adapt(model, method, alpha=1)(batch), want)
    assert same_bits(findtta.adapt(model, "source")(batch), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_zero_is_batch_statistics(case, dtype):
    model, batch = case(dtype)
    got = findtta.adapt(model, "alpha-bn", alpha=0)(batch)
    assert close(got, findtta.adapt(model, "tbn")(batch), rounding(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_a_single_group_equals_alpha_bn(case, dtype, alpha):
    model, batch = case(dtype)
    pair = batch[:2]  # two samples are always one group, in every layer
    got = findtta.adapt(model, "find", alpha=alpha)(pair)
    assert close(got, findtta.adapt(model, "alpha-bn", alpha=alpha)(pair), rounding(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_one_direction_equal_alpha_bn(dtype):
    norm = filled(nn.BatchNorm2d(4), dtype=dtype)
    batch = randn(1, 4, 3, 3, dtype=dtype) * 2.0 ** torch.arange(6)[:, None, None, None]
    adapted = findtta.adapt(norm, "find")
    got = adapted(batch.to(dtype))
    assert adapted.report()[0].groups == 1
    assert close(got, findtta.adapt(norm, "alpha-bn", alpha=0.8)(batch.to(dtype)), rounding(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_find_star_with_threshold_zero_is_find(dtype):
    model = tiny(dtype)
    find, star = findtta.adapt(model, "find"), findtta.adapt(model, "find-star", threshold=0)
    assert all(same_bits(star(batch), find(batch)) for batch in stream(15, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_find_star_above_every_score_is_find_then_alpha_bn(dtype):
    model = tiny(dtype)
    star = findtta.adapt(model, "find-star", threshold=1.1, cold_start=3)
    find, alpha = findtta.adapt(model, "find"), findtta.adapt(model, "alpha-bn", alpha=0.8)
    for index, batch in enumerate(stream(8, dtype=dtype)):
        assert same_bits(star(batch), find(batch) if index < 3 else alpha(batch))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tbn_equals_training_mode_without_its_side_effects(case, dtype):
    model, batch = case(dtype)
    with torch.no_grad():
        want = copy.deepcopy(model).train()(batch)
    assert close(findtta.adapt(model, "tbn")(batch), want, rounding(dtype))


def test_tbn_layer_equals_torch_batch_norm():
    norm, batch = filled(nn.BatchNorm2d(4), dtype=torch.float64), randn(6, 4, 3, 3, dtype=torch.float64)
    want = F.batch_norm(batch, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
    assert close(findtta.adapt(norm, "tbn")(batch), want.detach(), 1e-12)


@pytest.mark.parametrize(
    ("alpha", "variance"), [(0.0, "biased"), (0.8, "biased"), (0.5, "unbiased"), (0.5, "instance-unbiased")]
)
@pytest.mark.parametrize("net", [TinyNet, PreActivation])
def test_network_equals_the_network_of_reference_layers(net, alpha, variance):
    model = filled(net(), dtype=torch.float64)
    adapted, want = (
        findtta.adapt(model, "find", alpha=alpha, variance=variance),
        replaced(model, lambda norm: ReferenceFABN(norm, alpha, variance)),
    )
    for count in (1, 2, 9):
        batch = images(count, dtype=torch.float64, size=5)
        with torch.no_grad():
            assert close(adapted(batch), want(batch), 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_permuting_the_batch_permutes_the_outputs(method):
    model, batch = tiny(torch.float64), images(11, dtype=torch.float64)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    assert close(findtta.adapt(model, method)(batch[order]), findtta.adapt(model, method)(batch)[order], 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_mode_changes_nothing(method):
    model, batches = tiny(), stream(6)
    steady, flipped = findtta.adapt(model, method), findtta.adapt(model, method)
    before = {name: tensor.clone() for name, tensor in flipped.model.state_dict().items() if "running" in name}
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        modules = list(flipped.modules())
        for index in torch.randint(len(modules), (8,), generator=generator).tolist():
            modules[index].train(bool(torch.randint(2, (), generator=generator)))
        # train() of the whole, of parts and of single modules.
        flipped.train()
        assert not any(module.training for module in flipped.modules())
        for module in list(flipped.model.modules())[::2]:
            module.training = True
        assert same_bits(flipped(batch), steady(batch))
    after = flipped.model.state_dict()
    assert all(same_bits(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("method", METHODS)
def test_outputs_are_ordinary_tensors(method):
    output = findtta.adapt(tiny(), method)(images())
    assert not output.is_inference()
    output += 1
    weight = torch.ones(4, requires_grad=True)
    (output * weight).sum().backward()
    assert weight.grad is not None


def test_containers_of_outputs_hold_ordinary_tensors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x):
            y = self.bn(x)
            return {"all": y, "parts": [y[:1], (y[1:], "name")]}

    outputs = findtta.adapt(Net())(images())
    tensors = [outputs["all"], outputs["parts"][0], outputs["parts"][1][0]]
    assert not any(tensor.is_inference() for tensor in tensors)
    assert outputs["parts"][1][1] == "name"
