"""The two functions of the library: adapt a model, and get the source model back."""

import copy
from typing import Any

import torch
from torch import nn

from findtta.algorithms.base import Adapted
from findtta.compiled import Compiled, require_compiler
from findtta.errors import UnknownNameError, UnsupportedModelError
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import adaptable_norms
from findtta.registry import build_options, load_method, method_names


def adapt(
    model: nn.Module,
    method: str | type[Adapted] = "find",
    *,
    inplace: bool = False,
    reuse_buffers: bool = True,
    compile: bool = False,
    **options: Any,
) -> Adapted:
    """Make a model adapt itself to each batch it is given.

    Args:
        model: Any torch model with BatchNorm layers. It is copied, and never changed.
        method: Name of a method (see :func:`findtta.methods`), ``"file.py:NAME"``, or a subclass of ``Adapted``.
        inplace: Change ``model`` itself instead of a copy; :func:`unwrap` undoes it.
        reuse_buffers: Let layers write over inputs that a trace of the model proves nothing else
            reads: faster, and the same result. Turn it off if you change how the model's forward
            uses its layers after adapting it.
        compile: Run the model as compiled code (``torch.compile``): one graph for all batch sizes, made when the
            first batch arrives, which takes a minute or more. Only for methods that do not learn from every batch.
        **options: The method's options, for example ``alpha=0.9``.

    Returns:
        A module that is called like the model.

    Raises:
        UnknownNameError: If there is no such method or option.
        OptionError: If an option has a value it does not accept.
        UnsupportedModelError: If the model has no BatchNorm layer, or one that cannot be adapted.
        CompileError: If the method cannot be compiled, or no compiler is found; when called, if the model cannot.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> adapted = adapt(net, "find", alpha=0.8)
        >>> adapted(torch.randn(4, 3, 16, 16)).shape
        torch.Size([4, 8, 14, 14])
    """
    _refuse_unless_plain(model)
    method_class = _method_class(method)
    method_options = build_options(method_class, options)
    if not inplace:
        try:
            model = copy.deepcopy(model, _detached_caches(model))
        except Exception as error:
            if method_class.replaces_layers():
                adaptable_norms(model)  # what is wrong with a layer is the better explanation
            raise UnsupportedModelError(
                f"model ({type(model).__name__}) cannot be copied ({error}). Pass inplace=True to adapt the "
                "model itself."
            ) from error
    adapted = method_class(model, method_options, reuse_buffers=reuse_buffers)
    adapted.inplace = inplace
    if compile:
        adapted.require_compilable()
        require_compiler(next((tensor.device for tensor in model.state_dict().values()), torch.device("cpu")))
        adapted.compiled = Compiled()
    return adapted


def _detached_caches(model: nn.Module) -> dict[int, object]:
    """Copies, by identity, of results that a model has cached with their gradient history.

    Such tensors cannot be deep-copied, and EfficientViT, for one, caches them when called with
    gradients on. Their values are kept, and the history dropped.
    """
    copies: dict[int, object] = {}
    for value in (value for module in model.modules() for value in vars(module).values()):
        items = value.values() if isinstance(value, dict) else value
        for item in items if isinstance(value, dict | list | tuple) else [value]:
            if isinstance(item, torch.Tensor) and item.grad_fn is not None:
                copies[id(item)] = item.detach().clone()
    return copies


def unwrap(adapted: nn.Module) -> nn.Module:
    """Get the source model back from an adapted one.

    Args:
        adapted: What :func:`adapt` returned (compiled or not).

    Returns:
        The model without adaptation layers: the very object that was adapted if ``inplace=True``
        (do not use the adapted module any more then), otherwise a new copy, and the adapted module stays usable.
    """
    adapted = getattr(adapted, "_orig_mod", adapted)
    if not isinstance(adapted, Adapted):
        raise UnsupportedModelError(
            f"adapted must be what findtta.adapt returned, got a {type(adapted).__name__}, which is not adapted."
        )
    return (adapted if adapted.inplace else copy.deepcopy(adapted)).restore()


def _method_class(method: str | type[Adapted]) -> type[Adapted]:
    if isinstance(method, str):
        return load_method(method)
    if isinstance(method, type) and issubclass(method, Adapted):
        return method
    raise UnknownNameError(
        f"method must be a name or a subclass of findtta.Adapted, got {method!r}. The names are "
        f"{', '.join(method_names())}."
    )


def _refuse_unless_plain(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"model must be a torch.nn.Module, got {type(model).__name__}. Build the module and load its "
            "weights first."
        )
    if isinstance(model, Adapted):
        raise UnsupportedModelError(
            f"model is already adapted (method {model.name!r}): adapt findtta.unwrap(model) instead."
        )
    if any(isinstance(module, Adapted | AdaptiveNorm) for module in model.modules()):
        raise UnsupportedModelError(
            f"model ({type(model).__name__}) has a part that is already adapted: adapt the whole model, with that "
            "part unwrapped first (findtta.unwrap)."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            f"model ({type(model).__name__}) is TorchScript, whose layers are fixed: adapt the Python model "
            "it was made from."
        )
    if hasattr(model, "_orig_mod"):
        raise UnsupportedModelError(
            "model is compiled already: compile after adapting, torch.compile(findtta.adapt(model))."
        )
