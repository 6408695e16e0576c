"""The layer that stands in for a BatchNorm layer and chooses its statistics for each batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from findtta.errors import UnsupportedModelError
from findtta.functional import batch_moments, instance_moments, native, normalize
from findtta.functional.graph_mode import exported, traced
from findtta.functional.moments import as_dtype, widen
from findtta.layers.frozen import eps_of, is_frozen_batch_norm
from findtta.layers.stand_in import CallState, StandIn

# Layers with one of these forwards only normalise.
PLAIN_FORWARDS = (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward)
BATCH_NORM_SIGNATURE = inspect.signature(F.batch_norm)


class AdaptiveNorm(StandIn):
    """Normalises like the BatchNorm layer it holds, with statistics chosen by :meth:`statistics`.

    Training and evaluation mode make no difference. Attributes of the original layer (``weight``,
    ``running_mean``, ...) can be read as if they were the layer's own. It may be called from several threads.

    Args:
        norm: The BatchNorm layer to stand in for; it is kept, and never changed.
    """

    #: Whether :meth:`statistics` takes the layer's input as a third argument, ``features``.
    needs_features: ClassVar[bool] = False

    #: Which of the layers of a compiled model this is.
    number = 0

    original = "norm"
    norm: nn.Module

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.frozen = is_frozen_batch_norm(norm)
        self.eps = eps_of(norm)
        self.native = native.Layer(self.eps)
        self.call = CallState()  # shared by all layers of a model, once it is adapted
        self.sole_reader = False  # whether nothing but this layer reads its input
        self.observers: list[Callable[[Tensor, Tensor], None]] = []  # called with the moments of every batch
        super().train(False)

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the statistics to normalise with.

        Args:
            mean: Instance means of the layer's input, ``(B, C)``, in float32 or float64.
            variance: Instance variances, ``(B, C)``.

        Returns:
            Mean and variance, ``(C,)`` for the whole batch or ``(B, C)`` per sample.
        """
        raise NotImplementedError

    def source_statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the statistics the original layer would use, ``(C,)`` each.

        They are its running statistics, or those of the batch where it keeps none.
        """
        if self.norm.running_mean is None:
            return batch_moments(mean, variance)
        return self.norm.running_mean, self.norm.running_var  # type: ignore[return-value]

    def in_one_call(self, features: Tensor, overwrite: bool) -> Tensor | None:
        """Do all that the layer does by one compiled function (:mod:`findtta.functional.native`).

        Args:
            features: Feature map that the compiled functions take.
            overwrite: Whether the result may be written over it.

        Returns:
            The normalised map; None where the layer has no such function, or it cannot be used here.
        """
        return None

    def prepare_call(self, features: Tensor, overwrite: bool) -> native.Call | None:
        """Prepare the call of a compiled function; None if it cannot be given these features or this layer."""
        norm: Any = self._modules[self.original]
        buffers = norm._buffers
        rows = buffers.get("running_mean"), buffers.get("running_var"), *self.affine()
        return self.native.prepare(features, rows, overwrite=overwrite, moments_too=bool(self.observers))

    def finish_call(self, call: native.Call, **values: Tensor) -> Tensor:
        """Observe and record what a compiled function has found; return the normalised map."""
        if call.moments is not None:
            self.observe(call.moments)
        self.record(**values)
        return call.result

    def observe(self, moments: Iterable[Tensor]) -> None:
        """Show means and variances of samples, ``(B, C)`` each, to whoever watches the layer."""
        for observer in self.observers:
            observer(*moments)

    @property
    def channels(self) -> int:
        """Number of channels the layer normalises."""
        return channels_of(self.norm)

    @property
    def last_batch(self) -> dict[str, Tensor]:
        """What the layer recorded about the last batch of this thread; empty if it did not run."""
        return self.call.records.get(self, {})

    @property
    def idle(self) -> bool:
        """Whether the last batch of this thread went through the model without this layer."""
        return bool(self.call.records) and self not in self.call.records

    def record(self, **values: Tensor) -> None:
        """Record something about the batch, for reports; without effect in an exported graph."""
        if not traced():
            self.call.records.setdefault(self, {}).update(values)
        elif (returned := self.call.returned) is not None:
            if returned and returned[-1][0] == self.number:
                values = returned.pop()[1] | values
            returned.append((self.number, values))

    def recall(self, values: dict[str, Tensor]) -> None:
        """Do what :meth:`record` and :meth:`observe` would have done outside of the graph that returned this."""
        if "observed_mean" in values:
            self.observe((values.pop("observed_mean"), values.pop("observed_variance")))
        self.call.records.setdefault(self, {}).update(values)

    def reset(self) -> None:
        """Forget what was learned or recorded from earlier batches."""
        self.call.records.pop(self, None)

    def describe(self) -> dict[str, Any]:
        """Return this layer's columns of the report: ``groups``, ``score``, ``split``.

        Numbers may be scalar tensors, so that describing a layer never waits for the device.
        """
        return {}

    def forward(self, input: Tensor) -> Tensor:
        # The module's own attributes are looked up in its dictionaries: a small layer is called for microseconds.
        features, norm = input, self._modules[self.original]
        assert norm is not None
        if type(norm).forward in PLAIN_FORWARDS and not norm._forward_hooks and not norm._forward_pre_hooks:
            norm._check_input_dim(features)  # type: ignore[operator]
            return self._normalize(features, overwrite=self.sole_reader and self.call.may_overwrite)
        if self.frozen:
            return norm(self._normalize(features))
        return run_with_replaced_batch_norm(norm, self._normalize, features)

    def affine(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the scale and shift that follow the normalisation."""
        norm: Any = self._modules[self.original]
        if self.frozen:
            # Its forward does the rest (affine map, activation): undo the normalisation that it begins with.
            return (norm.running_var + self.eps).sqrt(), norm.running_mean
        parameters = norm._parameters
        if "weight" in parameters and "bias" in parameters:  # quicker than the module's own look-up
            return parameters["weight"], parameters["bias"]
        return norm.weight, norm.bias

    def _normalize(self, features: Tensor, overwrite: bool = False) -> Tensor:
        if not features.is_meta and torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):
                return self._normalize(features, overwrite)
        if native.takes(features) and (normalized := self.in_one_call(features, overwrite)) is not None:
            return normalized
        self.record()
        if features.shape[0] == 0:
            return features.clone()
        wide = given = widen(features)
        centre = self._centre(wide)
        if centre is not None:
            wide = wide + (-centre).view(-1, *[1] * (wide.ndim - 2))
        mean, variance = moments = instance_moments(wide, centred=centre is not None)
        if centre is not None:
            mean = mean + centre
        if not traced():
            self.observe(moments)
        elif self.observers:
            self.record(observed_mean=mean, observed_variance=variance)
        more = (given,) if self.needs_features else ()
        mean, variance = self.statistics(mean, variance, *more)
        # With the original statistics, take the original's own path, so that results are equal to the bit.
        unchanged = mean is self.norm.running_mean
        if unchanged and self.frozen:
            return features
        # A widened copy is ours to overwrite; the input itself only where it was proven safe.
        overwrite = (overwrite or wide is not features) and not torch.is_grad_enabled()
        overwrite = overwrite and not unchanged and not traced()
        if unchanged:
            wide = given
        elif centre is not None:
            mean = mean - centre
        result = normalize(wide, mean, variance, *self.affine(), self.eps, overwrite=overwrite)
        return as_dtype(result, features.dtype)

    def _centre(self, features: Tensor) -> Tensor | None:
        """Return what an exported graph subtracts first, so that one pass over memory gives both moments.

        A runtime makes that subtraction part of the convolution before.
        """
        mean = self.norm.running_mean if exported() and features.ndim > 2 else None
        return None if mean is None else as_dtype(mean, features.dtype)  # type: ignore[arg-type]

    def train(self, mode: bool = True) -> AdaptiveNorm:
        """Stay in evaluation mode: what this layer does never depends on the mode."""
        return super().train(False)


def channels_of(norm: nn.Module) -> int:
    """Return how many channels a BatchNorm layer, frozen or not, normalises."""
    return int(norm.num_features if hasattr(norm, "num_features") else len(norm.running_mean))  # type: ignore[arg-type]


class _ReplaceBatchNorm(TorchFunctionMode):
    def __init__(self, replacement: Callable[[Tensor], Tensor], replaced: list[Any]) -> None:
        super().__init__()
        self.replacement = replacement
        self.replaced = replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm or func is torch.batch_norm:
            self.replaced.append(func)
            return self.replacement(args[0] if args else kwargs["input"])
        return func(*args, **(kwargs or {}))


class AdaptFunctionalCalls(TorchFunctionMode):
    """Adapts calls of ``F.batch_norm`` with the tensors of a layer that the model never calls itself.

    Attributes:
        adapted: The layers whose tensors were passed that way.
    """

    def __init__(self, layers: Iterable[AdaptiveNorm]) -> None:
        super().__init__()
        self.by_buffer = {id(layer.running_mean): layer for layer in layers if layer.running_mean is not None}
        self.adapted: set[AdaptiveNorm] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            bound = BATCH_NORM_SIGNATURE.bind(*args, **kwargs)
            bound.apply_defaults()
            call = bound.arguments
            layer = self.by_buffer.get(id(call["running_mean"]))
            # A layer that runs normalises by itself, with the same function.
            if layer is not None and (layer in self.adapted or layer not in layer.call.records):
                tensors = all(call[name] is getattr(layer, name) for name in ("running_var", "weight", "bias"))
                if tensors and not call["training"] and call["eps"] == layer.eps:
                    self.adapted.add(layer)
                    return layer._normalize(call["input"])
        return func(*args, **kwargs)


def run_with_replaced_batch_norm(
    norm: nn.Module, replacement: Callable[[Tensor], Tensor], features: Tensor
) -> Tensor:
    """Call ``norm`` with its one normalisation step replaced, so that all else it does still happens.

    A BatchNorm subclass may drop out, activate or rescale besides normalising (timm's
    ``BatchNormAct2d`` does); replacing the whole layer would silently lose that.
    """
    replaced: list[Any] = []  # a list of its own, because a compiled graph cannot read the mode's attributes
    with _ReplaceBatchNorm(replacement, replaced):
        result: Tensor = norm(features)
    if len(replaced) != 1:
        raise UnsupportedModelError(
            f"{type(norm).__module__}.{type(norm).__qualname__} called batch_norm {len(replaced)} times in its "
            "forward, and exactly one call can be adapted. Replace the layer by a torch BatchNorm layer, or "
            "have its forward call super().forward() or torch.nn.functional.batch_norm once."
        )
    return result
