"""Low- and high-rank branches beside convolutions and linear layers (the adapters of ViDA).

A branch maps the input down to few channels and up to the host's output, and is added to it. The
upward map starts at zero, so a model with branches starts as the model without.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from findtta.layers.stand_in import StandIn
from findtta.layers.surgery import swap_modules

# By dimensions of the weight.
CONVOLUTIONS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


class BranchScales(nn.Module):
    """How much the two branches count, the same in all layers of a model."""

    low: Tensor
    high: Tensor

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", torch.ones((), device=like.device))
        self.register_buffer("high", torch.ones((), device=like.device))


class RankAdapted(StandIn):
    """A layer with a low-rank and a high-rank branch beside it.

    Args:
        host: A convolution of one group, or a linear layer.
        scales: The weights of the branches; one object for all layers of a model.
        low_rank: Width of the low-rank branch.
        high_rank: Width of the high-rank branch, at most that of the host.
        generator: Where the initial values of the downward maps come from.
    """

    original = "host"

    def __init__(
        self, host: nn.Module, scales: BranchScales, low_rank: int, high_rank: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        weight: Any = host.weight
        widest = min(weight.shape[0], weight.shape[1])
        self.host = host
        self.scales = scales
        self.low_down, self.low_up = _branch(host, min(low_rank, widest), generator)
        self.high_down, self.high_up = _branch(host, min(high_rank, widest), generator)
        self.train(host.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the host and both branches, and add them up."""
        outputs: Tensor = self.host(inputs)
        low: Tensor = self.low_up(self.low_down(inputs))
        high: Tensor = self.high_up(self.high_down(inputs))
        return outputs + self.scales.low * low + self.scales.high * high


def _branch(host: nn.Module, rank: int, generator: torch.Generator) -> tuple[nn.Module, nn.Module]:
    """Build the two maps of a branch: down as the host does it but to ``rank`` channels, then up."""
    weight: Any = host.weight
    # A copy keeps stride, padding, dilation and whatever a subclass of convolution does in its forward.
    down: Any = copy.deepcopy(host)
    down._forward_hooks.clear()
    down._forward_pre_hooks.clear()
    initial = torch.randn((rank, *weight.shape[1:]), generator=generator) / rank**2
    down.weight = nn.Parameter(initial.to(weight))
    down.register_parameter("bias", None)
    if weight.ndim == 2:
        down.out_features = rank
        up: nn.Module = nn.Linear(rank, weight.shape[0], bias=False)
    else:
        down.out_channels = rank
        up = CONVOLUTIONS[weight.ndim](rank, weight.shape[0], 1, bias=False)
    nn.init.zeros_(up.weight)  # type: ignore[arg-type]
    return down, up.to(weight.device, weight.dtype)


def find_hosts(model: nn.Module) -> list[nn.Module]:
    """Choose the layers to put branches beside.

    They are the linear layers of attention modules, and convolutions of one group other than the
    first: the pointwise ones where most are (bottleneck blocks, EfficientViT), the others where most
    are not (basic blocks). A model without either gets them beside all linear layers but the last.
    """
    plain = [m for m in model.modules() if isinstance(m._parameters.get("weight"), nn.Parameter)]
    convolutions = [m for m in plain if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) and m.groups == 1][1:]
    pointwise = [m for m in convolutions if math.prod(m.kernel_size) == 1]
    mostly_pointwise = 2 * len(pointwise) > len(convolutions)
    hosts: list[nn.Module] = [m for m in convolutions if (math.prod(m.kernel_size) == 1) == mostly_pointwise]
    attentions = [m for m in model.modules() if "Attention" in type(m).__name__]
    inside = {id(m) for attention in attentions for m in attention.modules()}
    linears: list[nn.Module] = [m for m in plain if isinstance(m, nn.Linear)]
    hosts += [m for m in linears if id(m) in inside]
    return hosts or linears[:-1] or linears


def add_branches(model: nn.Module, low_rank: int, high_rank: int, generator: torch.Generator) -> int:
    """Put branches beside the layers :func:`find_hosts` chooses, in place, and return to how many."""
    hosts = find_hosts(model)
    if not hosts or model in hosts:
        return 0
    scales = BranchScales(hosts[0].weight)  # type: ignore[arg-type]
    swap_modules(model, {host: RankAdapted(host, scales, low_rank, high_rank, generator) for host in hosts})
    return len(hosts)


def remove_branches(model: nn.Module) -> nn.Module:
    """Undo :func:`add_branches`, in place."""
    return swap_modules(
        model, {module: module.host for module in model.modules() if isinstance(module, RankAdapted)}
    )
