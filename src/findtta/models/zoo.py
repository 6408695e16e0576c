"""The architectures that can be named, the shipped weights, and building a model with fresh weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from findtta._extras import installed, require
from findtta.errors import OptionError, UnknownNameError, close_matches
from findtta.images import INTERPOLATIONS
from findtta.models.card import Classifier, ModelCard, Triple, find_normalization
from findtta.models.resnet_cifar import CifarResNet
from findtta.options import require_int

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


@dataclass(frozen=True)
class Architecture:
    """A kind of model.

    Attributes:
        summary: One line for lists.
        build: Builds it for a number of classes; takes ``img_size`` as well if ``input_size`` is given.
        input_size: Side that it resizes its inputs to, or None if it takes any size.
        normalization: The usual one; None means by the number of classes.
        image_size: Side of the images it was made for, or None.
    """

    summary: str
    build: Callable[..., nn.Module]
    input_size: int | None = None
    normalization: str | None = None
    image_size: int | None = None


def _build_timm(name: str, num_classes: int, **options: Any) -> nn.Module:
    model: nn.Module = import_timm().create_model(name, pretrained=False, num_classes=num_classes, **options)
    return model


def _build_caffe_resnet50(num_classes: int) -> nn.Module:
    """Build timm's ResNet-50 with the stride where Caffe and Keras have it: in the first 1x1 convolution."""
    net = _build_timm("resnet50", num_classes)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1.001e-5
        first, second = (getattr(module, name, None) for name in ("conv1", "conv2"))
        if isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d):  # a bottleneck
            first.stride, second.stride = second.stride, (1, 1)
    return net


def _cifar(summary: str, depth: int, *, classic: bool) -> Architecture:
    return Architecture(summary, partial(CifarResNet, depth, classic=classic), image_size=32)


def _efficientvit(summary: str, name: str) -> Architecture:
    return Architecture(summary, partial(_build_timm, name), 224, "imagenet")


ARCHITECTURES: Mapping[str, Architecture] = {
    "resnet20": _cifar("CIFAR ResNet-20, 0.27 M parameters", 20, classic=True),
    "resnet26": _cifar("ResNet-26 of the TTA benchmark, 0.37 M parameters", 26, classic=False),
    "resnet32": _cifar("CIFAR ResNet-32, 0.47 M parameters", 32, classic=True),
    "resnet44": _cifar("CIFAR ResNet-44, 0.66 M parameters", 44, classic=True),
    "resnet56": _cifar("CIFAR ResNet-56, 0.86 M parameters", 56, classic=True),
    "resnet50-thin": _cifar(
        "the TTA benchmark's ResNet-50 for CIFAR: thin bottlenecks, 0.78 M parameters", 50, classic=False
    ),
    "resnet50": Architecture("ImageNet ResNet-50 (timm)", partial(_build_timm, "resnet50"), None, "imagenet", 224),
    "resnet50-caffe": Architecture(
        "ImageNet ResNet-50 (timm) with the stride in the first 1x1 convolution, for Caffe and Keras weights",
        _build_caffe_resnet50,
        normalization="caffe",
        image_size=224,
    ),
    "efficientvit_m0": _efficientvit("EfficientViT-M0 (timm)", "efficientvit_m0"),
    "efficientvit_m5": _efficientvit("EfficientViT-M5 (timm), the paper's", "efficientvit_m5"),
}

#: Trained models whose weights come with the package, and their files.
SHIPPED: Mapping[str, str] = {
    "shapes-resnet26": "shapes-resnet26.safetensors",
    "shapes-efficientvit_m0": "shapes-efficientvit_m0.safetensors",
}

_BY_CLASSES = {10: "cifar10", 100: "cifar100", 1000: "imagenet"}


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
        normalization: A name such as ``"cifar10"``, or (mean, std); by default the usual one.
        img_size: Side that the model works at, for architectures with a fixed one.

    Returns:
        The model, which takes RGB in [0, 1].
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
    usual: str | tuple[Triple, Triple]
    usual = kind.normalization or _BY_CLASSES.get(num_classes, "imagenet")
    known: dict[str, Any] = {"image_size": size or kind.image_size}
    if arch.startswith("timm:"):
        config = require("timm.data", "timm", "a timm model").resolve_model_data_config(net)
        usual = (config["mean"], config["std"])
        known = {"image_size": size or config["input_size"][-1], "crop": config["crop_pct"]}
        if config["interpolation"] in INTERPOLATIONS:
            known["interpolation"] = config["interpolation"]
    mean, std = find_normalization(normalization or usual)
    card = ModelCard(arch=arch, num_classes=num_classes, mean=mean, std=std, input_size=size, **known)
    return Classifier(net, card)


def find_architecture(name: str) -> Architecture:
    """Return an architecture by its name, ``timm:NAME`` included."""
    if name.startswith("timm:"):
        timm_name = name.removeprefix("timm:")
        timm = import_timm()
        if not timm.is_model(timm_name):
            close = close_matches(timm_name, timm.list_models())
            raise UnknownNameError(f"timm has no model {timm_name!r}.{close}")
        return Architecture("a model of timm", partial(_build_timm, timm_name))
    if name not in ARCHITECTURES:
        known = (*ARCHITECTURES, *SHIPPED)
        raise UnknownNameError(
            f"model {name!r} is unknown.{close_matches(name, known)} Known are {', '.join(known)}, and timm:NAME."
        )
    return ARCHITECTURES[name]
