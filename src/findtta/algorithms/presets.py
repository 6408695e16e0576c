"""Options of the methods that learn, and the presets that fill in what is not given."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from findtta.errors import OptionError
from findtta.options import Options, option

# Numbers of classes the authors published values for (CIFAR-10, CIFAR-100, ImageNet).
PUBLISHED_CLASS_COUNTS = (10, 100, 1000)
PRESETS = ("paper", "official")


@dataclass(frozen=True)
class GradientOptions(Options):
    """Options of every method that learns. None means: from the preset."""

    preset: str = option(
        "paper", "values of options not given: 'paper' (the FIND paper's comparison) or 'official' (the authors')"
    )
    num_classes: int | None = option(None, "number of classes; None: that of the last Linear layer")
    predict: str = option("before", "predict 'before' the update or 'after' it (one more forward pass)")
    optimizer: str | None = option(None, "'sgd' or 'adam'; None here and below: from the preset")
    lr: float | None = option(None, "learning rate")
    momentum: float | None = option(None, "momentum of SGD, first beta of Adam")
    nesterov: bool | None = option(None, "Nesterov momentum (SGD only)")
    weight_decay: float | None = option(None, "weight decay")
    skip_layers: tuple[str, ...] = option((), "layers whose name contains one of these are not trained")

    def __post_init__(self) -> None:
        self.require_choice("preset", *PRESETS)
        self.require_choice("predict", "before", "after")
        self.unless_none("optimizer", lambda name: self.require_choice(name, "sgd", "adam"))
        self.unless_none("lr", self.require_at_least_zero)
        self.unless_none("weight_decay", self.require_at_least_zero)
        self.unless_none("momentum", self.require_fraction)
        self.unless_none("nesterov", self.require_flag)
        self.unless_none("num_classes", self.require_positive_int)
        if not isinstance(self.skip_layers, tuple) or not all(isinstance(part, str) for part in self.skip_layers):
            raise OptionError(
                "skip_layers must be a tuple of parts of layer names, such as ('layer4',), got "
                f"{self.skip_layers!r}."
            )
        if self.momentum == 1:
            raise OptionError("momentum must be below 1, or nothing is ever forgotten, got 1.")
        if self.optimizer == "sgd" and self.nesterov and self.momentum == 0:
            raise OptionError("nesterov needs a momentum above 0, got momentum=0: pass nesterov=False.")

    @property
    def depends_on_classes(self) -> bool:
        """Whether some value depends on the number of classes, so that it must be known."""
        return self.preset == "official"

    def preset_values(self) -> dict[str, Any]:
        """Values of the preset for all options that may be None; methods add to it."""
        return {
            "optimizer": "sgd",
            "lr": 1e-4,
            "momentum": 0.9,
            "nesterov": self.preset == "paper",
            "weight_decay": 0.0,
        }

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        presets: dict[str, dict[str, Any]] = {}
        for name in PRESETS:
            by_count = {
                count: cls(preset=name, num_classes=count).preset_values() for count in PUBLISHED_CLASS_COUNTS
            }
            if all(values == by_count[PUBLISHED_CLASS_COUNTS[0]] for values in by_count.values()):
                presets[name] = by_count[PUBLISHED_CLASS_COUNTS[0]]
            else:
                presets |= {f"{name}, {count} classes": values for count, values in by_count.items()}
        return presets

    def resolve(self, model: nn.Module) -> Self:
        """Fill in every option that is None, from the preset and from the model."""
        options = self
        if self.num_classes is None and self.depends_on_classes:
            options = dataclasses.replace(options, num_classes=_count_classes(model))
        if self.momentum == 0 and self.nesterov is None:
            options = dataclasses.replace(options, nesterov=False)
        missing = {
            name: value for name, value in options.preset_values().items() if getattr(options, name) is None
        }
        return dataclasses.replace(options, **missing)

    def by_class_count(self, ten: Any, hundred: Any, thousand: Any) -> Any:
        """Choose among values published for 10, 100 and 1000 classes: the nearest by ratio."""
        distances = [abs(math.log(self.num_classes or 1) - math.log(count)) for count in PUBLISHED_CLASS_COUNTS]
        return (ten, hundred, thousand)[distances.index(min(distances))]

    def tent_values(self) -> dict[str, Any]:
        """Values that the authors of TENT published, which those of EATA and DeYO start from."""
        small = {"optimizer": "adam", "lr": 1e-3}
        values: dict[str, Any] = self.by_class_count(small, small, {"lr": 2.5e-4})
        return values

    def log_classes(self, factor: float) -> float:
        """Return ``factor`` times the entropy of a uniform prediction."""
        return factor * math.log(self.num_classes or 1)


def _count_classes(model: nn.Module) -> int:
    heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not heads:
        raise OptionError(
            f"num_classes must be given: {type(model).__name__} has no Linear layer to read it off, and "
            "margins or preset values depend on it. Pass num_classes=<number of logits>."
        )
    return heads[-1].out_features
