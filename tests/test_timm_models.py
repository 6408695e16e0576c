"""All methods on the networks of the paper, as timm builds them."""

import pytest
import torch

import findtta

pytestmark = pytest.mark.slow

SIZES = {"resnet50": 64, "efficientvit_m5": 224}
OPTIONS = {"vida": {"views": 2}, "cotta": {"views": 2}}


@pytest.fixture(scope="module", params=SIZES)
def network(request, timm):
    torch.manual_seed(0)
    return timm.create_model(request.param, num_classes=10).eval(), SIZES[request.param]


@pytest.mark.parametrize("method", findtta.methods())
def test_method_runs_on_the_networks_of_the_paper(network, method):
    model, size = network
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    adapted = findtta.adapt(model, method, **OPTIONS.get(method, {}))
    outputs = adapted(batch)
    adapted.reset()
    assert outputs.shape == (3, 10)
    assert outputs.isfinite().all()
    assert torch.equal(adapted(batch), outputs)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
