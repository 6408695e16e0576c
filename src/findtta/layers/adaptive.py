"""The layer that stands in for a BatchNorm layer and chooses its statistics for each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from findtta.errors import UnsupportedModelError
from findtta.functional import batch_moments, instance_moments, normalize
from findtta.functional.moments import as_dtype, widen

# Layers with one of these forwards only normalise.
PLAIN_FORWARDS = (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward)


class ReusePermit:
    """Says when layers may write over their inputs: only while the adapted model's forward runs.

    One permit is shared by all layers of a model. Called from elsewhere (a user who runs a few
    submodules by hand), or when a hook may keep what passes by, the layers leave their inputs alone.
    """

    def __init__(self) -> None:
        self.open = False


class AdaptiveNorm(nn.Module):
    """Normalises like the BatchNorm layer it holds, with statistics chosen by :meth:`statistics`.

    Training and evaluation mode make no difference. Attributes of the original layer (``weight``,
    ``running_mean``, ...) can be read as if they were the layer's own.

    Args:
        norm: The BatchNorm layer to stand in for; it is kept, and never changed.
    """

    #: Whether :meth:`statistics` takes the layer's input as a third argument, ``features``.
    needs_features: ClassVar[bool] = False

    norm: nn.Module

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.permit: ReusePermit | None = None
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

    @property
    def channels(self) -> int:
        """Number of channels the layer normalises."""
        return channels_of(self.norm)

    def reset(self) -> None:
        """Forget what was learned or recorded from earlier batches; most layers keep nothing."""

    def describe(self) -> dict[str, Any]:
        """Return this layer's columns of the report: ``groups``, ``score``, ``split``.

        Numbers may be scalar tensors, so that describing a layer never waits for the device.
        """
        return {}

    def forward(self, input: Tensor) -> Tensor:
        features, norm = input, self.norm
        if type(norm).forward in PLAIN_FORWARDS and not norm._forward_hooks and not norm._forward_pre_hooks:
            norm._check_input_dim(features)  # type: ignore[operator]
            return self._normalize(
                features, overwrite=self.sole_reader and self.permit is not None and self.permit.open
            )
        if is_frozen_batch_norm(norm):
            return self._normalize(features)
        return run_with_replaced_batch_norm(norm, self._normalize, features)

    def _normalize(self, features: Tensor, overwrite: bool = False) -> Tensor:
        if torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):
                return self._normalize(features, overwrite)
        norm: Any = self.norm
        if features.shape[0] == 0:
            return features.clone()
        wide = widen(features)
        mean, variance = instance_moments(wide)
        if not torch.compiler.is_compiling():
            for observer in self.observers:
                observer(mean, variance)
        more = (wide,) if self.needs_features else ()
        mean, variance = self.statistics(mean, variance, *more)
        # A widened copy is ours to overwrite; the input itself only where it was proven safe.
        overwrite = (overwrite or wide is not features) and not torch.is_grad_enabled()
        # With the original statistics, take the original's own path, so that results are equal to the bit.
        overwrite = overwrite and mean is not norm.running_mean and not torch.compiler.is_compiling()
        result = normalize(wide, mean, variance, norm.weight, norm.bias, norm.eps, overwrite=overwrite)
        return as_dtype(result, features.dtype)

    def train(self, mode: bool = True) -> AdaptiveNorm:
        """Stay in evaluation mode: what this layer does never depends on the mode."""
        return super().train(False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "norm" or "_modules" not in self.__dict__ or "norm" not in self._modules:
                raise
            return getattr(self._modules["norm"], name)


def channels_of(norm: nn.Module) -> int:
    """Return how many channels a BatchNorm layer, frozen or not, normalises."""
    return int(norm.num_features if hasattr(norm, "num_features") else len(norm.running_mean))  # type: ignore[arg-type]


def is_frozen_batch_norm(module: nn.Module) -> bool:
    """Tell whether ``module`` is a BatchNorm with constant statistics, as detection models use."""
    parts = ("weight", "bias", "running_mean", "running_var", "eps")
    return type(module).__name__ == "FrozenBatchNorm2d" and all(hasattr(module, part) for part in parts)


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
