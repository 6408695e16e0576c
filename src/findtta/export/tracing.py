"""From an adapted model to a fixed graph: ``torch.export`` with a free batch size."""

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from findtta.algorithms.base import Adapted
from findtta.algorithms.find import FABN
from findtta.algorithms.find_star import SelectiveFABN
from findtta.compiled import MAKING_GRAPH
from findtta.errors import FindTTAError, InputError, first_line
from findtta.functional import partition
from findtta.layers.stand_in import OWN
from findtta.options import require_int

MAX_BATCH = 1024
_GROUPING_LAYERS = {f"{layer.__module__}.{layer.__qualname__}" for layer in (FABN, SelectiveFABN)}


class ExportError(FindTTAError, RuntimeError):
    """A model cannot be exported, or the file does not compute what the model computes."""


def require_exportable(adapted: nn.Module) -> Adapted:
    """Return the adapted model, or raise an error that says why it cannot become a fixed graph."""
    adapted = getattr(adapted, "_orig_mod", adapted)
    if not isinstance(adapted, Adapted):
        raise ExportError(
            f"adapted must be what findtta.adapt returned, got a {type(adapted).__name__}. To export the "
            "source model, adapt it with method 'source'."
        )
    problem = adapted.export_problem()
    if problem is not None:
        raise ExportError(f"adapted cannot be exported: {problem}")
    if adapted.warm_up_left:
        total = adapted.warm_up_batches(adapted.options)
        raise ExportError(
            f"adapted cannot be exported yet: {adapted.name} warms up on its first {total} batches "
            f"({adapted.warm_up_option}={total}), and {adapted.warm_up_left} of them are left. Run it on batches "
            "like those it is meant for first (on the command line: --data NAME)."
        )
    return adapted


def program(adapted: nn.Module, example: Tensor, *, max_batch: int = MAX_BATCH) -> ExportedProgram:
    """Trace an adapted model into a graph that takes every batch size.

    Args:
        adapted: What :func:`findtta.adapt` returned; it is copied, and never changed.
        example: A batch as the model gets it. All its sizes but the first are fixed in the graph.
        max_batch: The largest batch that the graph has to take. Each doubling costs one small operation per
            layer that makes groups.

    Returns:
        The program; ``.module()`` is called like the model. Where the method learns from every batch, it is called
        with images and state, as :func:`state_of` returns it, and returns logits and the next state.

    Raises:
        ExportError: If the method learns by gradients, has not warmed up, or torch cannot trace the model.

    Example:
        >>> import torch, findtta
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        >>> traced = program(findtta.adapt(net), torch.randn(2, 3, 8, 8))
        >>> traced.module()(torch.randn(5, 3, 8, 8)).shape
        torch.Size([5, 4, 6, 6])
    """
    model = require_exportable(adapted)
    require_int("max_batch", max_batch, 2)
    example = _traceable(example)
    copied = copy.deepcopy(model).requires_grad_(False)
    copied.compiled = None
    _fit_jumps(copied, example, max_batch)
    free: Any = {0: Dim("batch", min=1, max=max_batch)}
    state = state_of(model)
    inputs: tuple[Any, ...] = (example, state) if state else (example,)
    sizes = (free, dict.fromkeys(state)) if state else (free,)
    try:
        with MAKING_GRAPH, quiet_torch():
            module = _WithState(copied) if state else _OneInput(copied)
            traced = torch.export.export(module, inputs, dynamic_shapes=sizes, strict=False)
    except Exception as error:  # whatever torch raises, there is no graph
        raise ExportError(f"torch.export cannot trace the model: {first_line(error)}") from error
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)  # it would put the paths of this machine into the file
    return traced


def state_of(adapted: Adapted) -> dict[str, Tensor]:
    """Return a copy of what a method has learned, by names of the state dict; empty if it keeps nothing."""
    return {name: buffer.clone() for name, buffer in _state_buffers(adapted).items()}


def _state_buffers(adapted: Adapted) -> dict[str, Tensor]:
    if not adapted.keeps_learning():
        return {}
    kept: dict[str, Tensor] = adapted.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in kept.items() if OWN in name}


def neighbour_nodes(traced: ExportedProgram) -> tuple[str, ...]:
    """Return the names of the graph's values that hold first neighbours, in the order of the layers."""

    def is_inside_layer(node: torch.fx.Node) -> bool:
        # Entries are (path, name of the class); a model may use argmax for reasons of its own.
        return any(kind in _GROUPING_LAYERS for _, kind in node.meta.get("nn_module_stack", {}).values())

    argmax = torch.ops.aten.argmax.default
    return tuple(node.name for node in traced.graph.nodes if node.target is argmax and is_inside_layer(node))


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """Silence what torch warns about itself, without gradients: tracing would put their switch into the graph."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _traceable(example: Tensor) -> Tensor:
    """Return the example as a trace can use it: a batch of one would fix the batch size to one."""
    if not isinstance(example, Tensor) or not example.is_floating_point() or example.ndim < 2 or not len(example):
        got = (
            f"{tuple(example.shape)} of {example.dtype}" if isinstance(example, Tensor) else type(example).__name__
        )
        raise InputError(
            f"example must be a batch as the model gets it, a float tensor of shape (batch, ...), got {got}."
        )
    return example.detach() if len(example) > 1 else torch.cat([example.detach()] * 2)


class _OneInput(nn.Module):
    """Gives the graph's input a name, which an adapted model, taking any arguments, does not."""

    def __init__(self, adapted: Adapted) -> None:
        super().__init__()
        self.adapted = adapted

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.adapted(images)
        return logits


class _WithState(nn.Module):
    """Makes what a method learns an input and an output of the graph, instead of changing its buffers."""

    def __init__(self, adapted: Adapted) -> None:
        super().__init__()
        self.adapted = adapted
        buffers = {id(buffer): name for name, buffer in adapted.named_buffers()}
        self.buffer_names = {name: buffers[id(kept)] for name, kept in _state_buffers(adapted).items()}

    def forward(self, images: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        state = {name: kept.clone() for name, kept in state.items()}  # the method changes these
        buffers = {self.buffer_names[name]: kept for name, kept in state.items()}
        logits: Tensor = torch.func.functional_call(self.adapted, buffers, (images,))
        return logits, state


def _fit_jumps(model: Adapted, example: Tensor, max_batch: int) -> None:
    """Let layers follow chains of neighbours no longer than the largest batch requires; in place."""
    rows: dict[FABN, int] = {}

    def counting(layer: FABN, features: Tensor) -> Tensor:
        rows[layer] = max(rows.get(layer, 0), len(features))
        return partition(features)

    layers = [layer for _, layer in model.layers() if isinstance(layer, FABN) and layer.partition is partition]
    for layer in layers:
        layer.partition = functools.partial(counting, layer)
    outputs = model(example)
    if not isinstance(outputs, Tensor):
        raise ExportError(
            f"the model must return one tensor to be exported, but returns a {type(outputs).__name__}: wrap it in "
            "a module that returns the logits."
        )
    for layer in layers:
        # A layer may see several rows per image, such as windows.
        per_image = math.ceil(rows.get(layer, len(example)) / len(example))
        layer.partition = functools.partial(partition, traced_batch=max_batch * per_image)
