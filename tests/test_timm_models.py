"""All methods on the networks of the paper, as timm builds them: whole at night, else with one block per stage."""

import pytest
import torch

import findtta

NETWORKS = [
    pytest.param(("resnet50", 64, {"layers": (1, 1, 1, 1)}), marks=pytest.mark.slow),
    pytest.param(("efficientvit_m5", 64, {"img_size": 64, "depth": (1, 1, 1)}), marks=pytest.mark.slow),
    pytest.param(("resnet50", 64, {}), marks=pytest.mark.nightly),
    pytest.param(("efficientvit_m5", 224, {}), marks=pytest.mark.nightly),
]
OPTIONS = {"vida": {"views": 2}, "cotta": {"views": 2}}


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda each: each[0] if each[2] else f"whole {each[0]}")
def network(request, timm):
    torch.manual_seed(0)
    name, size, shape = request.param
    return timm.create_model(name, num_classes=10, **shape).eval(), size


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
