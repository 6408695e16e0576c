"""Presets, which fill in the options that are not given, and the options of methods that learn."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from torch import nn

from findtta.errors import OptionError
from findtta.options import AtLeastZero, Count, Fraction, Options, Text, option

# Numbers of classes the authors published values for (CIFAR-10, CIFAR-100, ImageNet).
PUBLISHED_CLASS_COUNTS = (10, 100, 1000)
PRESETS = Literal["paper", "official"]

# The meaning of the option ``preset`` for methods that the FIND paper does not compare.
OFFICIAL_FIRST = "values of options not given: 'official' (the authors') or 'paper' (the FIND paper's optimizer)"


@dataclass(frozen=True)
class PresetOptions(Options):
    """Options of every method with presets. None means: from the preset."""

    preset: PRESETS = option(
        "paper", "values of options not given: 'paper' (the FIND paper's comparison) or 'official' (the authors')"
    )

    def preset_values(self) -> dict[str, Any]:
        """Values of the preset for all options that may be None; methods change and add some."""
        return {}

    def missing_values(self) -> dict[str, Any]:
        """Return the preset's values of the options that are not given."""
        return {name: value for name, value in self.preset_values().items() if getattr(self, name) is None}

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        return {options.preset: options.missing_values() for options in cls._of_each_preset()}

    @classmethod
    def _of_each_preset(cls) -> list[Self]:
        """Return the options of each preset, the default one first."""
        others = [preset for preset in get_args(PRESETS) if preset != cls().preset]
        return [cls(), *(cls(preset=preset) for preset in others)]

    def resolve(self, model: nn.Module) -> Self:
        """Fill in every option that is None, from the preset and from the model."""
        return dataclasses.replace(self, **self.missing_values())


@dataclass(frozen=True)
class GradientOptions(PresetOptions):
    """Options of every method that learns."""

    num_classes: Count | None = option(None, "number of classes; None: that of the last Linear layer")
    predict: Literal["before", "after"] = option(
        "before", "predict 'before' the update or 'after' it (one more forward pass)"
    )
    optimizer: Literal["sgd", "adam"] | None = option(
        None, "'sgd' or 'adam'; None here and below: from the preset"
    )
    lr: AtLeastZero | None = option(None, "learning rate")
    momentum: Fraction | None = option(None, "momentum of SGD, first beta of Adam")
    nesterov: bool | None = option(None, "Nesterov momentum (SGD only)")
    weight_decay: AtLeastZero | None = option(None, "weight decay")
    skip_layers: tuple[Text, ...] = option((), "layers whose name contains one of these are not trained")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum == 1:
            raise OptionError("momentum must be below 1, or nothing is ever forgotten, got 1.")
        if self.optimizer == "sgd" and self.nesterov and self.momentum == 0:
            raise OptionError("nesterov needs a momentum above 0, got momentum=0: pass nesterov=False.")

    def preset_values(self) -> dict[str, Any]:
        # The official ones are those of TENT, which other authors start from.
        values = {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0}
        if self.preset == "official":
            small = {"optimizer": "adam", "lr": 1e-3}
            values |= {"nesterov": False, **self.by_class_count(small, small, {"lr": 2.5e-4})}
        return values

    @property
    def depends_on_classes(self) -> bool:
        """Whether some value of the preset depends on the number of classes, so that it must be known."""
        first, *others = (self._with_classes(count).missing_values() for count in PUBLISHED_CLASS_COUNTS)
        return any(values != first for values in others)

    def _with_classes(self, count: int | None) -> Self:
        return dataclasses.replace(self, num_classes=count)

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        presets: dict[str, dict[str, Any]] = {}
        for options in cls._of_each_preset():
            by_count = {
                f"{options.preset}, {count} classes": options._with_classes(count).missing_values()
                for count in PUBLISHED_CLASS_COUNTS
            }
            presets |= by_count if options.depends_on_classes else {options.preset: options.missing_values()}
        return presets

    def resolve(self, model: nn.Module) -> Self:
        count = self.num_classes
        if count is None and self.depends_on_classes:
            count = _count_classes(model)
        values = self._with_classes(count).missing_values()
        if self.momentum == 0 and self.nesterov is None:
            values["nesterov"] = False
        return dataclasses.replace(self, num_classes=count, **values)

    def by_class_count(self, ten: Any, hundred: Any, thousand: Any) -> Any:
        """Choose among values published for 10, 100 and 1000 classes: the nearest by ratio."""
        distances = [abs(math.log(self.num_classes or 1) - math.log(count)) for count in PUBLISHED_CLASS_COUNTS]
        return (ten, hundred, thousand)[distances.index(min(distances))]

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
