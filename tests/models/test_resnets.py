"""The CIFAR ResNets are the ones of the papers, counted and compared with another implementation."""

import pytest
import torch
from torch import nn

from findtta.models import ARCHITECTURES, build
from findtta.models.resnet_cifar import CifarResNet


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize(
    ("depth", "classes", "expected", "layers"),
    [(26, 10, 369_680, 27), (26, 100, 375_440, 27), (50, 10, 776_784, 76), (50, 100, 799_824, 76)],
)
def test_the_benchmarks_networks_have_the_sizes_of_the_specification(depth, classes, expected, layers):
    net = CifarResNet(depth, classes, classic=False)
    assert parameters(net) == expected
    assert norms(net) == layers


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.47), (44, 0.66), (56, 0.86)])
def test_the_classic_networks_have_the_sizes_their_paper_gives(depth, millions):
    net = CifarResNet(depth, 10, classic=True)
    assert round(parameters(net) / 1e6, 2) == pytest.approx(millions, abs=0.011)
    assert (
        sum(isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3) for module in net.modules())
        == depth - 1
    )


@pytest.mark.parametrize("depth", [8, 14, 25, 51])
def test_only_depths_of_six_n_plus_two_exist(depth):
    if (depth - 2) % 6:
        with pytest.raises(ValueError, match="6n \\+ 2"):
            CifarResNet(depth, 10, classic=True)
    else:
        assert CifarResNet(depth, 10, classic=True)(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_the_stages_halve_the_map_and_the_stride_sits_in_the_3x3_of_a_bottleneck():
    net = CifarResNet(50, 10, classic=False)
    shapes = []
    for stage in (net.layer1, net.layer2, net.layer3):
        stage.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    net(torch.zeros(1, 3, 32, 32))
    assert shapes == [(64, 32, 32), (128, 16, 16), (256, 8, 8)]
    assert net.layer2[0].conv1.stride == (1, 1)
    assert net.layer2[0].conv2.stride == (2, 2)


def test_the_convolutions_start_with_he_s_variance_over_the_outputs():
    torch.manual_seed(0)
    weight = CifarResNet(26, 10, classic=False).layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_a_basic_block_is_what_it_says():
    """A literal forward pass of one block, layer by layer."""
    torch.manual_seed(0)
    block = CifarResNet(20, 10, classic=True).eval().layer2[0].double()
    x = torch.randn(2, 16, 8, 8, dtype=torch.float64)
    y = torch.relu(block.bn1(block.conv1(x)))
    y = block.bn2(block.conv2(y)) + block.downsample[1](block.downsample[0](x))
    torch.testing.assert_close(block(x), torch.relu(y))


@pytest.mark.parametrize(
    "arch", [name for name in ARCHITECTURES if name.startswith("resnet") and "50" not in name]
)
def test_every_small_architecture_takes_unit_range_images_of_any_size(arch):
    model = build(arch, num_classes=7, normalization="half").eval()
    assert model(torch.rand(2, 3, 40, 36)).shape == (2, 7)
