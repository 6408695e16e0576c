"""The architectures that can be named, the shipped weights, and building a model with fresh weights."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from findtta._extras import installed, require
from findtta.errors import OptionError, UnknownNameError, close_matches
from findtta.images import INTERPOLATIONS, NORMALIZATION, Triple, find_normalization
from findtta.models.card import Classifier, ModelCard
from findtta.models.resnet_cifar import CifarResNet
from findtta.options import require_int

#: What helps when torchvision, and with it timm, cannot be imported.
TORCHVISION_HINT = (
    "torchvision is built for another torch: install both from the same index, or write "
    "'timm = findtta.models.import_timm()' in place of 'import timm'."
)

_declared: list[torch.library.Library] = []  # a library's declarations last as long as it does


def import_timm() -> Any:
    """Import timm, also beside a CPU build of torch and a torchvision built for CUDA.

    The operators of such a torchvision cannot be loaded, and its import fails because two of their names are
    unknown; declaring the names lets the rest of it work.
    """
    try:
        if installed("timm"):
            import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    return require("timm", "timm", "a timm model")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A kind of model.

    Attributes:
        summary: One line for lists.
        depth: The depth of a ``CifarResNet``; None for a model of timm.
        classic: Whether a ``CifarResNet`` is a classic one.
        timm: The name of a model of timm.
        caffe: Whether its strides and epsilons are those of Caffe and Keras.
        input_size: Side that it resizes its inputs to, or None if it takes any size.
        normalization: That of all its weights; None means that timm, the card of the weights or the user says it.
        image_size: Side of the images it was made for, or None.
    """

    summary: str
    depth: int | None = None
    classic: bool = False
    timm: str = ""
    caffe: bool = False
    input_size: int | None = None
    normalization: str | None = None
    image_size: int | None = None

    def build(self, num_classes: int, **options: Any) -> nn.Module:
        """Build it for a number of classes; ``img_size`` is taken as well if ``input_size`` is given."""
        if self.depth is not None:
            return CifarResNet(self.depth, num_classes, classic=self.classic)
        net: nn.Module = import_timm().create_model(self.timm, num_classes=num_classes, **options)
        for module in net.modules() if self.caffe else ():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1.001e-5
            first, second = (getattr(module, name, None) for name in ("conv1", "conv2"))
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d):  # a bottleneck
                # The stride is in the first 1x1 convolution.
                first.stride, second.stride = second.stride, (1, 1)
        return net


_TABLES = tomllib.loads(Path(__file__).with_name("architectures.toml").read_text(encoding="utf-8"))
ARCHITECTURES: Mapping[str, Architecture] = {name: Architecture(**fields) for name, fields in _TABLES.items()}

#: Trained models whose weights come with the package.
SHIPPED = tuple(sorted(path.stem for path in Path(__file__).with_name("shipped").glob("*.safetensors")))


def build(
    arch: str,
    *,
    num_classes: int,
    normalization: str | tuple[Triple, Triple] | None = None,
    img_size: int | None = None,
) -> Classifier:
    """Build a model with fresh weights.

    Args:
        arch: A name from ``ARCHITECTURES``, or ``timm:NAME`` for any model of timm.
        num_classes: The number of classes.
        normalization: A name such as ``"cifar10"``, or (mean, std); by default what timm or the architecture says.
        img_size: Side that the model works at, for architectures with a fixed one.

    Returns:
        The model, which takes RGB in [0, 1].

    Raises:
        OptionError: If nothing says the normalization.
    """
    require_int("num_classes", num_classes)
    kind = find_architecture(arch)
    size = img_size or kind.input_size
    if img_size is not None and kind.input_size is None and not arch.startswith("timm:"):
        raise OptionError(f"img_size: {arch} works at any size, so leave img_size out.")
    if size is not None:
        require_int("img_size", size, 16)
    try:
        net = kind.build(num_classes, **({} if size is None else {"img_size": size}))
    except TypeError as error:
        if size is None:
            raise
        raise OptionError(f"img_size: {arch} does not take it ({error}), so leave img_size out.") from error
    known: dict[str, Any] = {"image_size": kind.image_size}
    source = f"the architecture {arch}"
    usual: str | tuple[Triple, Triple] | None = kind.normalization
    if kind.timm and usual is None:
        source, usual, known = timm_input(net)
    wanted = normalization or usual
    if wanted is None:
        raise OptionError(
            f"normalization must be given (--normalization) for {arch}, since nothing says what its weights were "
            f"trained with: {NORMALIZATION}."
        )
    mean, std = find_normalization(wanted)
    known["image_size"] = size or known["image_size"]
    card = ModelCard(arch=arch, num_classes=num_classes, mean=mean, std=std, input_size=size, **known)
    return Classifier(net, card, source)


def timm_input(net: nn.Module) -> tuple[str, tuple[Triple, Triple], dict[str, Any]]:
    """Return what timm says of the input of a model that it made: where, normalization, and more for its card."""
    config = require("timm.data", "timm", "a timm model").resolve_model_data_config(net)
    known: dict[str, Any] = {"image_size": config["input_size"][-1]}
    if config["crop_mode"] == "center":
        known["crop"] = config["crop_pct"]
    if config["interpolation"] in INTERPOLATIONS:
        known["interpolation"] = config["interpolation"]
    about: Any = net.pretrained_cfg
    name = ".".join(filter(None, (about.get("architecture"), about.get("tag"))))
    return f"timm's configuration of {name}", (config["mean"], config["std"]), known


def find_architecture(name: str) -> Architecture:
    """Return an architecture by its name, ``timm:NAME`` included."""
    if name.startswith("timm:"):
        timm_name = name.removeprefix("timm:")
        timm = import_timm()
        if not timm.is_model(timm_name):
            close = close_matches(timm_name, timm.list_models())
            raise UnknownNameError(f"timm has no model {timm_name!r}.{close}")
        try:
            timm.models.get_pretrained_cfg(timm_name)
        except RuntimeError as error:  # the part after the dot
            tags = timm.list_pretrained(f"{timm_name.partition('.')[0]}.*")
            close = close_matches(timm_name, tags)
            raise UnknownNameError(f"timm has no weights {timm_name!r}.{close}") from error
        return Architecture(summary="a model of timm", timm=timm_name)
    if name not in ARCHITECTURES:
        known = (*ARCHITECTURES, *SHIPPED)
        raise UnknownNameError(
            f"model {name!r} is unknown.{close_matches(name, known)} Known are {', '.join(known)}, and timm:NAME."
        )
    return ARCHITECTURES[name]
