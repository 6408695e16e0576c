"""Finding the BatchNorm layers of a model, replacing them, and putting them back."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from findtta.errors import UnsupportedModelError
from findtta.layers.adaptive import (
    PLAIN_FORWARDS,
    AdaptiveNorm,
    channels_of,
    run_with_replaced_batch_norm,
)
from findtta.layers.frozen import frozen_eps, is_frozen_batch_norm
from findtta.layers.reuse import find_sole_readers
from findtta.layers.stand_in import CallState

# Shape of a small input for each kind of layer, to probe layers that have a forward of their own.
PROBE_SHAPES = {nn.BatchNorm1d: (3,), nn.BatchNorm2d: (3, 3), nn.BatchNorm3d: (3, 3, 3)}

OTHER_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
NORM_NAME = re.compile("[Nn]orm(?!al)")  # names of classes: RMSNorm, LayerNormChannelsFirst, but not Normalize


@dataclass(frozen=True)
class NormSite:
    """A BatchNorm layer found in a model; ``problem`` says why it cannot be adapted, if so."""

    name: str
    module: nn.Module
    problem: str | None = None

    @property
    def kind(self) -> str:
        """Class name of the layer."""
        return type(self.module).__name__

    @property
    def channels(self) -> int:
        """Number of channels it normalises."""
        return channels_of(self.module)


def find_norms(model: nn.Module) -> list[NormSite]:
    """List every BatchNorm layer of a model in module order, adaptable or not."""
    fused_parents = tuple(f"{name}." for name, module in model.named_modules() if _is_fused_block(module))
    sites = []
    for name, module in model.named_modules():
        if not (isinstance(module, _BatchNorm) or is_frozen_batch_norm(module)):
            continue
        if name.startswith(fused_parents):
            problem: str | None = "it is part of a quantisation block that has folded it into a convolution"
        else:
            problem = _problem(module)
        sites.append(NormSite(name, module, problem))
    return sites


def _is_fused_block(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.ao.nn") and not isinstance(module, nn.Sequential)


def _problem(norm: nn.Module) -> str | None:
    if is_frozen_batch_norm(norm):
        if frozen_eps(norm) is None:
            return "it holds the tensors of a BatchNorm layer, but does not begin with normalising by them"
        return None
    if isinstance(norm, nn.modules.lazy.LazyModuleMixin) and norm.has_uninitialized_params():
        return "it is lazy and has no shape yet: run the model once on real data first"
    if type(norm).forward in PLAIN_FORWARDS:
        return None
    shape = next((shape for kind, shape in PROBE_SHAPES.items() if isinstance(norm, kind)), (3, 3))
    like = norm.running_mean if norm.running_mean is not None else norm.weight
    was_training = norm.training
    try:
        norm.train(False)
        with torch.inference_mode():
            probe = torch.zeros(2, channels_of(norm), *shape)
            if isinstance(like, torch.Tensor):
                probe = probe.to(like.device, like.dtype)
            run_with_replaced_batch_norm(norm, torch.clone, probe)
    except Exception as error:  # whatever it raises, the layer cannot be adapted
        return f"its own forward could not be adapted ({error})"
    finally:
        norm.train(was_training)
    return None


def replace_norms(
    model: nn.Module,
    sites: Sequence[NormSite],
    make_layer: Callable[[nn.Module], AdaptiveNorm],
    *,
    call: CallState,
    reuse_buffers: bool,
) -> nn.Module:
    """Put an adaptive layer in the place of BatchNorm layers of a model.

    Args:
        model: The model, in evaluation mode; changed in place.
        sites: The layers to replace, as :func:`adaptable_norms` found them in this model.
        make_layer: Builds the adaptive layer around a BatchNorm layer.
        call: What the layers of the model share while it runs.
        reuse_buffers: Let layers write over inputs that provably nothing else reads.

    Returns:
        The model; a new module only if the model is itself a BatchNorm layer.
    """
    sole_readers = find_sole_readers(model) if reuse_buffers else set()
    layers: dict[nn.Module, nn.Module] = {}
    for site in sites:
        layer = make_layer(site.module)
        layer.call = call
        layer.sole_reader = site.name in sole_readers
        layers[site.module] = layer
    return swap_modules(model, layers)


def restore_norms(model: nn.Module) -> nn.Module:
    """Undo :func:`replace_norms`: put the original layers back, in place."""
    return swap_modules(model, {layer: layer.norm for _, layer in adaptive_layers(model)})


def adaptive_layers(model: nn.Module) -> Iterator[tuple[str, AdaptiveNorm]]:
    """Yield name and layer of every adaptive layer, in module order."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, AdaptiveNorm))


def modules_of(model: nn.Module) -> list[nn.Module]:
    """List the modules of a model, as ``model.modules()`` does, in a fraction of its time."""
    found, seen = [model], {model}
    for module in found:
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def swap_modules(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Put modules in the place of others, in place; returns the model, a new module only if it is one of them."""
    if model in new:
        return new[model]
    for parent in list(model.modules()):
        # A layer that is registered in several places is replaced in each of them.
        for child_name, child in list(parent._modules.items()):
            if child is not None and child in new and parent not in new.values():
                parent._modules[child_name] = new[child]
    return model


def adaptable_norms(model: nn.Module) -> list[NormSite]:
    """List the BatchNorm layers of a model; raise if there are none, or some cannot be adapted."""
    sites = find_norms(model)
    refused = [site for site in sites if site.problem]
    if refused:
        lines = [f"  {site.name or '(the model itself)'}: {site.kind}: {site.problem}" for site in refused]
        raise UnsupportedModelError("these BatchNorm layers cannot be adapted:\n" + "\n".join(lines))
    if not sites:
        raise UnsupportedModelError(explain_missing_norms(model))
    return sites


def explain_missing_norms(model: nn.Module) -> str:
    """Say why a model without BatchNorm layers has none, as far as can be told."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)]
    others = {type(module).__name__ for _, module in other_norms(model)}
    own_kinds = {type(m).__name__ for m in convolutions if not m._parameters.keys() <= {"weight", "bias"}}
    message = f"model ({type(model).__name__}) has no BatchNorm layer, and that is what is adapted."
    if others:
        message += f" It normalises with {' and '.join(sorted(others))}, and only BatchNorm can be adapted."
    elif own_kinds:
        message += (
            f" Its convolutions ({', '.join(sorted(own_kinds))}) have parameters of their own besides weight and"
            " bias, as in models made to train without normalisation layers (NFNets)."
        )
    elif convolutions and all(convolution.bias is not None for convolution in convolutions):
        message += (
            " Every convolution has a bias: either the model was made without BatchNorm, or its layers were fused"
            " into the convolutions. In that case, adapt it before fusing, exporting or quantising it."
        )
    return message


def other_norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of every layer that looks like a normalisation and is not listed as BatchNorm."""
    for name, module in model.named_modules():
        kind = type(module)
        if isinstance(module, _BatchNorm | AdaptiveNorm) or is_frozen_batch_norm(module):
            continue
        named = NORM_NAME.search(kind.__name__) and not kind.__module__.startswith("torch.nn.utils")
        # A block that is named after the norm inside it (ConvNormAct) is not a normalisation itself.
        block = any(part is not module and part._parameters for part in module.modules())
        if isinstance(module, OTHER_NORMS) or ((named or keeps_statistics(module)) and not block):
            yield name, module


def keeps_statistics(module: nn.Module) -> bool:
    """Tell whether a module has running statistics, as a buffer of the usual name."""
    return any(module._buffers.get(name) is not None for name in ("running_mean", "running_var"))
