"""A model in one file: what ``--config`` reads. Its keys are named as the flags are, and checked as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findtta._io import read_toml_or_yaml
from findtta.data.metadata import class_list
from findtta.errors import FindTTAError, OptionError
from findtta.images import NORMALIZATION, Crop, Interpolation, find_normalization
from findtta.options import (
    MODEL_NAMES,
    Count,
    Fraction,
    Options,
    Positive,
    Text,
    make_options,
    option,
    require_known,
)
from findtta.plugins import located
from findtta.serve.settings import Settings

#: What the table ``[limits]`` may have: options of the server, some of which other commands have as well.
LIMITS = (
    "max_image_mb", "max_pixels", "max_batch", "wait_ms", "max_queue", "max_images",
    "max_body_mb", "max_json_mb", "max_pending_mb", "timeout_s",
)  # fmt: skip
_CARD = ("num_classes", "image_size", "crop", "interpolation")  # what goes to the model's card as it is


@dataclass(frozen=True, kw_only=True)
class ModelFile(Options):
    """What a config file may say."""

    model: Text = option("", MODEL_NAMES)
    weights: Text | None = option(None, "weights of an architecture")
    num_classes: Count | None = option(None, "number of classes, if the names are not given")
    classes: Text | tuple[Text, ...] | None = option(None, "names of the classes, or a file with one per line")
    image_size: Count | None = option(None, "side of the images that the model gets")
    crop: Crop | None = option(None, "fraction of the shorter side that the centre crop keeps")
    interpolation: Interpolation | None = option(None, "how images are resized: bilinear or bicubic")
    mean: tuple[Fraction, ...] | None = option(None, "mean of the RGB channels, on the scale from 0 to 1")
    std: tuple[Positive, ...] | None = option(None, "standard deviation of the RGB channels")
    normalization: Text | None = option(None, f"in place of mean and std: {NORMALIZATION}")
    method: Text = option("find", "method that adapts the model")
    options: Mapping[str, Any] = option(dict, "options of the method")
    limits: Mapping[str, Any] = option(dict, f"any of {', '.join(LIMITS)}")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise OptionError(f"model must be given: {MODEL_NAMES}.")
        if (self.mean is None) != (self.std is None):
            raise OptionError("mean and std must be given together.")
        if self.mean is not None and self.normalization is not None:
            raise OptionError("normalization must not be given beside mean and std: it is a name for both.")
        for name in self.limits:
            require_known("limits", name, LIMITS)
        Settings(**self.limits)  # checks them, also against each other

    def card(self) -> dict[str, Any]:
        """Return what the file says in place of the model's card, see ``findtta.models.load``."""
        said = {name: getattr(self, name) for name in _CARD if getattr(self, name) is not None}
        given: Any = self.normalization or (self.mean and (self.mean, self.std))
        if given:
            said["mean"], said["std"] = map(list, find_normalization(given))
        names = class_list(self.classes, distinct=False)
        if names is not None:
            if len(names) != (self.num_classes or len(names)):
                raise OptionError(f"classes must name {self.num_classes} classes (num_classes), got {len(names)}.")
            said |= {"classes": list(names), "num_classes": len(names)}
        return said


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings that a file gives, by their names in the settings of commands.

    What it says about the model is under ``card``, limits are among the rest. Paths in it are relative to it.
    """
    document = read_toml_or_yaml(path, "config")
    try:
        file = make_options("the file", ModelFile, {k: located(k, v, path.parent) for k, v in document.items()})
        card = file.card()
    except FindTTAError as error:
        raise type(error)(f"config: {path}: {error}") from error
    plain = ("model", "weights", "method", "options")
    values = {name: getattr(file, name) for name in plain if name in document}
    return {**values, **file.limits, **({"card": {**card, "source": path.name}} if card else {})}
