"""Which BatchNorm layers may write their output over their input.

Most of what a BatchNorm layer costs on a CPU is the memory of its output. Where the input comes
fresh from a convolution or a linear layer and nothing else reads it, that memory can be reused. A
symbolic trace of the model proves it; a model that cannot be traced simply does not gain.
"""

from __future__ import annotations

import copy
import inspect
import warnings

import torch
import torch.nn.functional as F
from torch import fx, nn

# Producers whose output is always a fresh tensor.
PRODUCING_MODULES = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)
PRODUCING_FUNCTIONS = (F.conv1d, F.conv2d, F.conv3d, F.linear, torch.conv1d, torch.conv2d, torch.conv3d)


def sole_reader_producers(model: nn.Module) -> dict[str, tuple[nn.Module | None, ...]]:
    """Find the modules that are the only reader of a fresh tensor, with who produces it.

    Args:
        model: A model in evaluation mode, called with one positional argument.

    Returns:
        Qualified name of each such module, and the producing module of each of its calls (None
        where the producer is a function). Empty if the model cannot be traced.
    """
    arguments = _default_arguments(model)
    if arguments is None:
        return {}
    try:
        # A trace runs the model's own code on placeholders, which it may cache: trace a copy, with
        # the parameters shared.
        shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
        skeleton = copy.deepcopy(model, shared)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = fx.Tracer().trace(skeleton, arguments)
    except Exception:  # any failure to trace means no proof, and nothing to reuse
        return {}
    modules = dict(model.named_modules())
    calls: dict[str, list[nn.Module | None]] = {}
    shared_inputs = set()
    for node in graph.nodes:
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        target = str(node.target)
        producer = node.args[0]
        if isinstance(producer, fx.Node) and len(producer.users) == 1:
            if producer.op == "call_module" and type(modules[str(producer.target)]) in PRODUCING_MODULES:
                calls.setdefault(target, []).append(modules[str(producer.target)])
                continue
            if producer.op == "call_function" and producer.target in PRODUCING_FUNCTIONS:
                calls.setdefault(target, []).append(None)
                continue
        shared_inputs.add(target)
    return {name: tuple(producers) for name, producers in calls.items() if name not in shared_inputs}


def _default_arguments(model: nn.Module) -> dict[str, object] | None:
    """Values of all arguments but the first, or None if the model needs more than one argument."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    if not parameters or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return None
    if any(parameter.default is parameter.empty for parameter in parameters[1:]):
        return None
    return {parameter.name: parameter.default for parameter in parameters[1:]}
