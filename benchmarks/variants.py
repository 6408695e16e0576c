"""What FIND is timed against."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from findtta import adapt
from findtta.layers import AdaptiveNorm, adaptable_norms, replace_norms
from findtta.layers.stand_in import CallState


def folded(network: nn.Module) -> nn.Module:
    """BatchNorm folded into the convolutions: the limit no adaptive method can pass."""
    return fuse(copy.deepcopy(network))


def pytorch_tbn(network: nn.Module) -> nn.Module:
    """Batch statistics by PyTorch's own layer."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network


class NaiveFABN(AdaptiveNorm):
    """FIND as one would first write it: a loop over the groups, each with its own statistics."""

    alpha = 0.8

    def forward(self, features: Tensor) -> Tensor:
        norm = self.norm
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        means = F.normalize(features.mean((2, 3)), dim=1)
        similarity = means @ means.T
        similarity.fill_diagonal_(-torch.inf)
        output = torch.empty_like(features)
        for members in _components(similarity.argmax(1).tolist()):
            group = features[members]
            variance, mean = torch.var_mean(group, (0, 2, 3), correction=0)
            mean = self.alpha * norm.running_mean + (1 - self.alpha) * mean
            variance = self.alpha * norm.running_var + (1 - self.alpha) * variance
            output[members] = F.batch_norm(group, mean, variance, norm.weight, norm.bias, False, 0.0, norm.eps)
        return output


def _components(neighbours: list[int]) -> list[list[int]]:
    root = list(range(len(neighbours)))

    def find(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    for node, neighbour in enumerate(neighbours):
        root[find(node)] = find(neighbour)
    groups: dict[int, list[int]] = {}
    for node in range(len(neighbours)):
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def naive_find(network: nn.Module) -> nn.Module:
    """FIND with the loop over groups in every layer."""
    model = copy.deepcopy(network).eval()
    return replace_norms(model, adaptable_norms(model), NaiveFABN, call=CallState(), reuse_buffers=False)


def find_star(network: nn.Module, batch: Tensor) -> nn.Module:
    """FIND* after its cold start on the batch to be timed."""
    adapted = adapt(network, "find-star", cold_start=1)
    adapted(batch)
    return adapted


def variants(network: nn.Module, batch: Tensor) -> list[tuple[str, nn.Module]]:
    """All that is compared, by name, the source model first."""
    return [
        ("source", network),
        ("source, BN folded", folded(network)),
        ("tbn (PyTorch's own layer)", pytorch_tbn(network)),
        *((name, adapt(network, name)) for name in ("tbn", "alpha-bn", "find", "find-soft", "find-domains")),
        ("find-star, after its cold start", find_star(network, batch)),
        ("find, no buffer reuse", adapt(network, "find", reuse_buffers=False)),
        ("find, loop over groups", naive_find(network)),
    ]
