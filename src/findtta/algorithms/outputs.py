"""What methods that change outputs have in common: the features before the classifier, and a method underneath.

They work on what the model returns, so that they can follow any method which normalises without gradients:
``find+lame`` is LAME on the outputs of FIND. The class of such a pair inherits from both (:func:`combine`), and so
do its options, declared properties and state. Alone, they work on the source model.
"""

import copyreg
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted, require_logits
from findtta.errors import OptionError, UnsupportedModelError, close_matches
from findtta.functional.graph_mode import traced
from findtta.functional.moments import as_dtype, widen
from findtta.layers.stand_in import CallState, StandIn
from findtta.layers.surgery import NormSite, swap_modules
from findtta.options import Options, Text, option


@dataclass(frozen=True)
class OutputOptions(Options):
    """Options of every method that changes outputs."""

    classifier: Text | None = option(
        None, "name of the layer that returns the logits; None: the last Linear layer, or else 1x1 convolution"
    )


class FeatureTap(StandIn):
    """Stands in for the classifier, and keeps what the last call of each thread gave it and got from it."""

    original = "layer"
    layer: nn.Module

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.kept = CallState()
        super().train(False)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.layer(input)
        self.kept.carried = {"features": input, "logits": output}
        return output

    def take(self) -> dict[str, Tensor] | None:
        """Return input and output of the last call, and forget them; None if there was no call."""
        kept, self.kept.carried = self.kept.carried, None
        return kept


class OutputAdapted(Adapted):
    """A model whose outputs are changed by what the features before its classifier say.

    Subclasses define :meth:`adjust`. An image whose features or logits are not finite is left out, and keeps the
    output that the model gives it.
    """

    options_type = OutputOptions

    def __init__(self, model: nn.Module, options: Options, *, reuse_buffers: bool = True) -> None:
        super().__init__(model, options, reuse_buffers=reuse_buffers)
        layer = self.model.get_submodule(self.classifier)
        # After the layers are replaced, which needs a trace of the model as it is.
        self.model = swap_modules(self.model, {layer: FeatureTap(layer)})
        #: Whether a batch has shown that the classifier returns the model's logits.
        self.verified = False

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        super().prepare(model, sites)
        #: Name of the layer that returns the logits.
        self.classifier = find_classifier(model, self.options.classifier, self.name)

    def adjust(self, features: Tensor, logits: Tensor, usable: Tensor) -> Tensor:
        """Return the new outputs of a batch.

        Args:
            features: What the classifier was given, ``(B, F)``.
            logits: What the model returned, ``(B, K)``.
            usable: Which images are to be used, ``(B,)``; features and logits of the others are 0.

        Returns:
            Outputs, ``(B, K)``; those of images that are not usable are not looked at.
        """
        raise NotImplementedError

    def run(self, *args: Any, **kwargs: Any) -> Any:
        tap: Any = self.model.get_submodule(self.classifier)
        tap.take()
        logits = require_logits(super().run(*args, **kwargs), self.name)
        if logits.shape[0] == 0:
            return logits
        features = self._features(tap.take(), logits)
        if not logits.is_meta and torch.is_autocast_enabled(logits.device.type):
            with torch.autocast(logits.device.type, enabled=False):
                return self._adjusted(features, logits)
        return self._adjusted(features, logits)

    def _adjusted(self, features: Tensor, logits: Tensor) -> Tensor:
        usable = features.isfinite().all(1) & logits.isfinite().all(1)
        left_out = ~usable[:, None]
        adjusted = self.adjust(
            widen(features).masked_fill(left_out, 0), widen(logits).masked_fill(left_out, 0), usable
        )
        return torch.where(left_out, logits, as_dtype(adjusted, logits.dtype))

    def _features(self, kept: dict[str, Tensor] | None, logits: Tensor) -> Tensor:
        if kept is None:
            self._refuse("did not run")
        features = kept["features"].flatten(1)
        found = kept["logits"].flatten(1)
        if found.shape != logits.shape or features.shape[0] != logits.shape[0]:
            self._refuse(f"returned {tuple(found.shape)}, and the model {tuple(logits.shape)}")
        if not self.verified and not traced():
            if not torch.allclose(found, logits, rtol=0, atol=0, equal_nan=True):
                self._refuse("returned other values than the model")
            self.verified = True
        return features

    def _refuse(self, found: str) -> NoReturn:
        raise UnsupportedModelError(
            f"layer {self.classifier!r} must return the logits of the model, whose features method {self.name!r} "
            f"needs, but it {found}. Name the layer that does with classifier=NAME, or wrap the model so that "
            "it returns the output of that layer."
        )

    def export_problem(self) -> str | None:
        """Say why the model cannot be exported: because of this method, or of the one underneath."""
        return Adapted.export_problem(self) or super().export_problem()

    def restore(self) -> nn.Module:
        tap: Any = self.model.get_submodule(self.classifier)
        self.model = swap_modules(self.model, {tap: tap.layer})
        return super().restore()


def find_classifier(model: nn.Module, name: str | None, method: str) -> str:
    """Return the name of the layer that returns the logits; whether it does is seen when it runs."""
    layers = {name: module for name, module in model.named_modules() if _is_linear(module)}
    if name is not None:
        if name not in layers:
            raise OptionError(
                f"classifier must name a Linear layer or a 1x1 convolution of the model, got {name!r}."
                f"{close_matches(name, layers)}"
            )
        return name
    if not layers:
        raise UnsupportedModelError(
            f"model ({type(model).__name__}) has no Linear layer and no 1x1 convolution that could be the "
            f"classifier whose features method {method!r} needs."
        )
    heads = [name for name, module in layers.items() if isinstance(module, nn.Linear)]
    return (heads or list(layers))[-1]


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return math.prod(module.kernel_size) == 1 and module.groups == 1
    return isinstance(module, nn.Linear)


class _Made(type):
    """Class of the classes made here, which are pickled by how they were made."""

    made_by: tuple[Any, ...]


copyreg.pickle(_Made, lambda made: made.made_by)


@functools.cache
def combine(under: Any, top: Any) -> Any:
    """Return the class of a pair: it adapts the model as ``under`` does, and then its outputs as ``top``."""
    name = f"{under.name}+{top.name}"
    if not issubclass(top, OutputAdapted):
        raise OptionError(f"method {name!r}: {top.name!r} must be a method that changes outputs (lame, t3a).")
    if under.needs_grad or issubclass(under, OutputAdapted):
        reason = "learns by gradients" if under.needs_grad else "changes outputs itself"
        raise OptionError(
            f"method {name!r}: {under.name!r} must be a method that only changes normalisation, such as find, but "
            f"it {reason}."
        )
    declared = {
        "__module__": __name__,
        "__doc__": f"{under.name}, and then {top.name}.",
        "name": name,
        "summary": f"{under.name}, and then {top.name} on its outputs",
        "citation": f"{under.citation}; {top.citation}",
        "weakness": f"{top.weakness} Of {under.name}: {under.weakness}",
        "options_type": _combine_options(under.options_type, top.options_type),
        "made_by": (combine, (under, top)),
    }
    return _Made(name, (top, under), declared)


@functools.cache
def _combine_options(under: Any, top: Any) -> Any:
    names = [{field.name for field in dataclasses.fields(kind)} for kind in (under, top)]
    if both := names[0] & names[1]:
        raise OptionError(f"methods with options of the same name cannot be combined: both have {sorted(both)}.")
    made_by = (_combine_options, (under, top))
    kind = _Made(f"{under.__name__}{top.__name__}", (top, under), {"__module__": __name__, "made_by": made_by})
    return dataclass(frozen=True)(kind)
