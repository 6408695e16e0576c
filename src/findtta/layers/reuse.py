"""Which BatchNorm layers may write their output over their input.

Most of what a BatchNorm layer costs on a CPU is the memory of its output. Where the input comes
fresh from a convolution or a linear layer and nothing else reads it, that memory can be reused. A
symbolic trace of the model proves it; a model that cannot be traced simply does not gain.
"""

import copy
import gc
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

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
#: One trace at a time: garbage collection and the filters of warnings belong to the whole process.
_TRACING = threading.Lock()


def find_sole_readers(model: nn.Module) -> set[str]:
    """Find the modules whose input is a fresh tensor that nothing else reads or keeps.

    Args:
        model: A model in evaluation mode, called with one positional argument.

    Returns:
        Qualified names of those modules. Empty if the model cannot be traced.
    """
    arguments = _default_arguments(model)
    if arguments is None:
        return set()
    tracer = _Tracer()
    with _TRACING:
        collecting = gc.isenabled()
        gc.disable()  # so that what the trace leaves behind is still young, and quickly collected
        try:
            # A trace changes modules, and runs the model's own code on placeholders, which it may
            # cache: trace a copy, with the parameters shared.
            shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
            skeleton = copy.deepcopy(model, shared)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = tracer.trace(skeleton, arguments)
            kept = tracer.nodes_still_held()
        except Exception:  # any failure to trace means no proof, and nothing to reuse
            return set()
        finally:
            if collecting:
                gc.enable()
    modules = dict(model.named_modules())
    sole: set[str] = set()
    shared_inputs: set[str] = set()
    for node in graph.nodes:
        if node.op != "call_module":
            continue
        source = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        ours = isinstance(source, fx.Node) and source not in kept and _is_fresh(source, modules)
        (sole if ours else shared_inputs).add(str(node.target))
    return sole - shared_inputs


def _is_fresh(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if len(node.users) != 1:
        return False
    if node.op == "call_module":
        return type(modules[str(node.target)]) in PRODUCING_MODULES
    return node.op == "call_function" and node.target in PRODUCING_FUNCTIONS


class _TensorProxy(fx.Proxy):
    # A model that asks whether its input is a tensor must take the path that it takes for tensors.
    __class__ = property(lambda self: torch.Tensor)


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.proxies: list[weakref.ref[fx.Proxy]] = []

    def trace(self, root: nn.Module, concrete_args: dict[str, Any]) -> fx.Graph:  # type: ignore[override]
        """Trace a model whose modules are changed for it.

        The method of the base class changes ``nn.Module`` instead, also under threads that run other models.
        """
        self.root, self.graph, self.tensor_attrs = root, fx.Graph(), {}
        self.submodule_paths = {module: name for name, module in root.named_modules()}
        function, arguments = self.create_args_for_root(type(root).forward, True, concrete_args)
        for module, path in self.submodule_paths.items():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    place = f"{path}.{name}" if path else name
                    module._parameters[name] = self.create_proxy("get_attr", place, (), {})  # type: ignore[assignment]
            if self.is_leaf_module(module, path):  # hooks would see placeholders
                module._forward_pre_hooks.clear()
                module._forward_hooks.clear()
            if module is not root:
                module.forward = self._traced(module, module.forward)
        self.create_node("output", "output", (self.create_arg(function(*arguments)),), {})
        return self.graph

    def _traced(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.call_module(module, forward, args, kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = _TensorProxy(node, self)
        self.proxies.append(weakref.ref(proxy))
        return proxy

    def create_arg(self, a: Any) -> Any:
        return a.node if type(a) is _TensorProxy else super().create_arg(a)

    def nodes_still_held(self) -> set[fx.Node]:
        """Nodes whose value the model keeps somewhere, to read it later."""
        gc.collect(0)
        return {proxy.node for reference in self.proxies if (proxy := reference()) is not None}


def _default_arguments(model: nn.Module) -> dict[str, object] | None:
    """Values of all arguments but the first, or None if the model needs more than one argument."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    if not parameters or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return None
    if any(parameter.default is parameter.empty for parameter in parameters[1:]):
        return None
    return {parameter.name: parameter.default for parameter in parameters[1:]}
