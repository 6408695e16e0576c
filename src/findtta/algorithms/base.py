"""What every method has in common: the module that stands in for the user's model."""

import dataclasses
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils._pytree import tree_leaves, tree_map_only

from findtta.collapse import Collapse
from findtta.compiled import Compiled, CompileError
from findtta.errors import InputError, UnsupportedModelError, UnusedLayerWarning, few
from findtta.functional.graph_mode import traced
from findtta.layers.adaptive import AdaptFunctionalCalls, AdaptiveNorm
from findtta.layers.stand_in import CallLock, CallState, StandIn
from findtta.layers.surgery import (
    NormSite,
    adaptable_norms,
    adaptive_layers,
    modules_of,
    replace_norms,
    restore_norms,
)
from findtta.options import Options
from findtta.tables import render


@dataclass(frozen=True)
class Cost:
    """What a method computes for one batch that it learns from, in passes through the model."""

    forward: int
    backward: int


@dataclass(frozen=True)
class LayerReport:
    """One adapted layer: what it is, and what it did with the last batch."""

    name: str
    kind: str
    channels: int
    groups: int | None = None
    score: float | None = None
    split: bool | None = None


@dataclass(frozen=True)
class Domain:
    """A domain that was met."""

    place: int  # among those of the memory
    samples: float  # how many it remembers
    share: float  # of the latest samples, 0 to 1
    drift: float  # as a multiple of the threshold


class Report(list[LayerReport]):
    """The adapted layers of a model, in module order; prints as a table."""

    def __str__(self) -> str:
        header = [field.name for field in dataclasses.fields(LayerReport)]
        return render(header, [dataclasses.astuple(layer) for layer in self])

    __repr__ = __str__


def _read(value: Any) -> Any:
    """Return a described value as a Python one, and None for a number that is not known."""
    value = value.item() if isinstance(value, Tensor) else value
    return None if value != value else value


class Adapted(StandIn):
    """A model under test-time adaptation: call it as you would call the model.

    Made by :func:`findtta.adapt`. Attributes and methods of the model can be used as if they were its own, and its
    state dict has the model's keys: loading one of the source model starts the adaptation anew from those weights.
    ``train()`` and ``eval()`` do not change what it computes. It may be called from several threads: each call is
    computed as if it were alone, and methods that learn from their batches take one call after the other.

    The model is changed in place, so pass a copy to keep the original. With ``reuse_buffers``, layers write over
    inputs that provably nothing else reads.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]
    #: When it fails, for whoever has to choose.
    weakness: ClassVar[str] = ""
    options_type: ClassVar[type[Options]] = Options
    #: Whether one batch changes how later batches are treated.
    stateful: ClassVar[bool] = False
    #: Whether a stateful method is fixed once it has warmed up, so that later batches change nothing any more.
    settles: ClassVar[bool] = False
    #: The option with the number of batches that the method warms up on; None if it is ready at once.
    warm_up_option: ClassVar[str | None] = None
    #: Whether it computes gradients.
    needs_grad: ClassVar[bool] = False
    #: Whether a sample's output depends on the other samples of its batch.
    batch_dependent: ClassVar[bool] = True
    #: Whether it can be exported as a fixed graph. What a method learns without gradients becomes inputs and
    #: outputs of the graph, if it is kept in registered buffers that are changed in place.
    exportable: ClassVar[bool] = True
    #: Passes through the model for one batch.
    passes: ClassVar[Cost] = Cost(forward=1, backward=0)

    original = "model"
    model: nn.Module

    def __init__(self, model: nn.Module, options: Options, *, reuse_buffers: bool = True) -> None:
        super().__init__()
        self.options: Any = options
        self.call = CallState()
        self.lock = CallLock()
        self.inplace = False
        #: Compiled code of the model, or None if it runs as it is.
        self.compiled: Compiled | None = None
        #: The layers by the numbers that a graph knows them by; empty before one is compiled.
        self.in_order: tuple[AdaptiveNorm, ...] = ()
        self.parts: tuple[nn.Module, ...] = ()  # all modules, once compiled
        sites = adaptable_norms(model) if self.replaces_layers() else []
        self.prepare(model, sites)
        self.was_training = {name: module.training for name, module in model.named_modules()}
        model.eval()
        if sites:
            model = replace_norms(model, sites, self.make_layer, call=self.call, reuse_buffers=reuse_buffers)
        self.model = model
        #: Whether the model calls F.batch_norm with the tensors of a layer; None before the first batch.
        self.functional_calls: bool | None = None if sites else False
        #: The layer that runs first, in a tuple; empty before the first batch.
        self.begins_with: tuple[nn.Module, ...] = ()
        self.register_load_state_dict_post_hook(Adapted._after_loading)  # type: ignore[no-untyped-call]
        super().train(False)

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        """Set up what the method keeps, before any layer is replaced; ``self.options`` is there already.

        A model that the method cannot work on must be refused here, while it is still as it was given. Next,
        :meth:`make_layer` is called with its BatchNorm layers, the sites, in this order.
        """

    @classmethod
    def replaces_layers(cls) -> bool:
        """Whether the method puts its own layers in place of BatchNorm."""
        return cls.make_layer is not Adapted.make_layer

    @property
    def cost(self) -> Cost:
        """Forward and backward passes for one batch."""
        return self.passes

    @classmethod
    def warm_up_batches(cls, options: Options) -> int:
        """Return how many batches a new model with these options warms up on; 0 for most methods."""
        return 0 if cls.warm_up_option is None else int(getattr(options, cls.warm_up_option))

    @classmethod
    def depends_on_batch(cls, options: Options) -> bool:
        """Whether with these options a sample's output depends on others, of its batch or of earlier ones."""
        return cls.batch_dependent or cls.stateful

    @classmethod
    def keeps_learning(cls) -> bool:
        """Whether every batch changes how later ones are treated, and not only those of a warm-up."""
        return cls.stateful and not cls.settles

    @property
    def warm_up_left(self) -> int:
        """How many more batches this model has to see before it has warmed up; 0 when it is ready.

        Until then it cannot be exported, and what it predicts depends on which batches came first.
        """
        return 0

    @property
    def collapse(self) -> Collapse | None:
        """Whether predictions have collapsed, since which batch and why; None if not, or if it does not learn."""
        return None

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        """Build the layer that stands in for one BatchNorm layer."""
        raise NotImplementedError

    def layers(self) -> Iterator[tuple[str, AdaptiveNorm]]:
        """Yield name and layer of every adapted layer, in module order."""
        return adaptive_layers(self.model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a batch, adapting as it goes; no gradient is recorded."""
        if traced():
            with torch.no_grad():
                return self.run(*args, **kwargs)
        if self.compiled is not None and not self.warm_up_left:
            outputs = self._run_compiled(*args, **kwargs)
        else:
            nested = torch.is_inference_mode_enabled()
            outputs = self._run_eagerly(*args, **kwargs)
            if nested:
                return outputs
            # Inference tensors refuse in-place changes and gradients; what we return is an ordinary one.
            outputs = tree_map_only(Tensor, torch.clone, outputs)
        differentiated = [leaf for leaf in tree_leaves((args, kwargs)) if getattr(leaf, "requires_grad", False)]
        if differentiated and torch.is_grad_enabled():
            explain = functools.partial(_NoGradient.apply, differentiated[0])
            return tree_map_only(Tensor, explain, outputs)
        return outputs

    def _run_eagerly(self, *args: Any, **kwargs: Any) -> Any:
        learning = self.keeps_learning() or bool(self.warm_up_left)
        with self.lock if learning else nullcontext(), torch.inference_mode():
            return self.run(*args, **kwargs)

    def _run_compiled(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or not args[0].ndim:
            raise CompileError(
                "a compiled model must be called with one tensor whose first dimension is the batch, got "
                f"{len(args)} arguments and {len(kwargs)} named ones: compile with torch.compile(adapted) instead."
            )
        if not args[0].shape[0]:
            return self._run_eagerly(*args)
        assert self.compiled is not None
        for module in self.parts:
            if module.training:  # setting an attribute of a module is slow
                module.training = False
        outputs, returned = self.compiled(self._graph, args[0], self._before_compiling)
        self.call.records = {}
        for number, values in returned:
            self.in_order[number].recall(values)
        return outputs

    def _graph(self, batch: Tensor) -> tuple[Any, list[tuple[int, dict[str, Tensor]]]]:
        """What is compiled: a call of the model, and what its layers recorded."""
        returned: list[tuple[int, dict[str, Tensor]]] = []
        self.call.returned = returned
        outputs = self.run(batch)
        self.call.returned = None
        return outputs, returned

    def _before_compiling(self, batch: Tensor) -> None:
        # A batch that cannot be predicted raises its own error here, and unused layers are found.
        self._run_eagerly(batch)
        if self.functional_calls:
            raise CompileError(
                "compile must be False for this model: it calls F.batch_norm with the tensors of its layers, "
                "which are adapted there only outside of a compiled graph."
            )
        self.parts = tuple(modules_of(self.model))
        self.in_order = tuple(layer for _, layer in self.layers())
        for number, layer in enumerate(self.in_order):
            layer.number = number

    def require_compilable(self) -> None:
        """Raise ``CompileError`` if the method cannot be compiled with the options that it has."""
        problem = self.export_problem()
        if problem is None and self.keeps_learning():
            problem = f"method {self.name!r} learns from every batch, which a compiled graph does not keep."
        if problem:
            raise CompileError(f"compile must be False: {problem}")

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model once; methods that keep state across batches extend this."""
        if traced():
            self.call.begin()
            try:
                return self.model(*args, **kwargs)
            finally:
                self.call.end()
        # The proof that inputs may be overwritten holds for a call with one positional argument.
        with self._one_call(may_overwrite=len(args) == 1 and not kwargs) as watch:
            outputs = self.model(*args, **kwargs)
        self.begins_with = self.begins_with or tuple(self.call.records)[:1]
        # A model that was compiled in pieces ran its layers in graphs, which record nothing: then it is not known.
        compiled = not self.call.records and "torch._dynamo" in sys.modules
        if watch and self.functional_calls is None and not compiled:
            self.functional_calls = bool(watch.adapted)
            self._warn_of_unused_layers()
        return outputs

    @contextmanager
    def _one_call(self, *, may_overwrite: bool = False) -> Iterator[AdaptFunctionalCalls | None]:
        """Let the layers work together while the model, or a method of it, runs once."""
        hooked = self._stay_in_eval_mode()
        watch = (
            None if self.functional_calls is False else AdaptFunctionalCalls(layer for _, layer in self.layers())
        )
        # A hook may keep a tensor that must not change under it.
        self.call.begin(may_overwrite=may_overwrite and not hooked)
        self.call.records = {}
        try:
            with watch or nullcontext():
                yield watch
        finally:
            self.call.end()

    def _stay_in_eval_mode(self) -> bool:
        """Undo a call of train() on a part of the model; return whether a hook looks at what passes by."""
        hooked = bool(module_hooks._has_any_global_hook())
        for module in modules_of(self.model):
            if module.training:
                module.training = False
            hooked = hooked or bool(module._forward_hooks or module._forward_pre_hooks)
        return hooked

    def _warn_of_unused_layers(self) -> None:
        layers = dict(self.layers())
        unused = [name for name, layer in layers.items() if layer not in self.call.records]
        if unused:
            warnings.warn(
                f"the model ran without {len(unused)} of its {len(layers)} BatchNorm layers ({few(unused)}), so "
                "they are not adapted. That is as it should be for parts that are only used in training; but a "
                "forward that computes their normalisation by itself is not adapted there.",
                UnusedLayerWarning,
                stacklevel=3,
            )

    def reset(self) -> None:
        """Forget everything learned from the batches seen so far."""
        with self.lock:
            for _, layer in self.layers():
                layer.reset()

    def restart(self) -> None:
        """Forget everything, and adapt from the weights that the model has now."""
        self.reset()

    def _after_loading(self, _incompatible_keys: object) -> None:
        # What a method keeps may be in its layers alone.
        if not any(module.loaded_own_state for module in (self, *(layer for _, layer in self.layers()))):
            self.restart()

    def domains(self) -> list[Domain]:
        """Return the domains met so far, those used most lately first; none unless the method remembers them."""
        return []

    def report(self) -> Report:
        """Describe every adapted layer, and what it did with this thread's last batch; waits for the device."""
        return Report(
            LayerReport(
                name,
                type(layer.norm).__name__,
                layer.channels,
                **{k: _read(v) for k, v in layer.describe().items() if not layer.idle},
            )
            for name, layer in self.layers()
        )

    def export_problem(self) -> str | None:
        """Say why the model cannot be exported as a fixed graph, or return None if it can."""
        if self.exportable:
            return None
        return f"method {self.name!r} learns from every batch, in a way that a fixed graph cannot."

    def restore(self) -> nn.Module:
        """Take the adaptation out again, in place, and return the model as it was given."""
        model = restore_norms(self.model)
        for name, module in model.named_modules():
            module.training = self.was_training.get(name, module.training)
        return model

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: what the adapted model computes never depends on the mode."""
        return super().train(False)

    def extra_repr(self) -> str:
        chosen = dataclasses.asdict(self.options)
        return ", ".join([f"method={self.name!r}", *(f"{key}={value!r}" for key, value in chosen.items())])

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if inspect.ismethod(value) and value.__self__ is self._modules.get("model"):
            return self._in_one_call(value)
        return value

    def _in_one_call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Make a method of the model (``forward_features``, ``generate``, ...) count as one call of its layers."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            earlier = self.call.records
            with self._one_call():
                result = method(*args, **kwargs)
                ran, carried = tuple(self.call.records), bool(self.call.carried)
            if not ran:
                self.call.records = earlier
            begins_with = self.begins_with or tuple(layer for _, layer in self.layers())[:1]
            if carried and ran[:1] != begins_with:
                raise InputError(
                    f"{method.__name__} begins in the middle of the model, where method {self.name!r} needs what "
                    "the layers before found out about the batch. Call the adapted model as a whole."
                )
            return result

        return call


def require_logits(outputs: Any, method: str) -> Tensor:
    """Return what a model returned; raise unless that is logits."""
    if isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.is_floating_point():
        return outputs
    came = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
    raise UnsupportedModelError(
        f"model must return logits of shape (batch, classes) for method {method!r}, but it returned {came}. "
        "Wrap it in a module that returns the logits alone."
    )


class _NoGradient(torch.autograd.Function):
    """Ties an output to an input that wants a gradient, to explain why there is none."""

    @staticmethod
    def forward(ctx: Any, differentiated: Tensor, output: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise InputError(
            "an adapted model records no gradient. For gradients of the inputs or the weights, differentiate the "
            "source model: findtta.unwrap(adapted)."
        )
