"""The architectures that can be named, and how to load one."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from findtta.errors import OptionError, UnknownNameError, close_matches
from findtta.models.card import Classifier, ModelCard, Triple, find_normalization
from findtta.models.external import import_timm
from findtta.models.resnet_cifar import CifarResNet
from findtta.models.weights import fit, read_weights


@dataclass(frozen=True)
class Architecture:
    """A kind of network.

    Attributes:
        summary: One line for lists.
        build: Makes it for so many classes; takes ``img_size`` as well if ``input_size`` is given.
        input_size: The side it works at, or None for any.
        normalization: The usual one; None means by the number of classes.
    """

    summary: str
    build: Callable[..., nn.Module]
    input_size: int | None = None
    normalization: str | None = None


def _timm(name: str) -> Callable[..., nn.Module]:
    def build(num_classes: int, **options: Any) -> nn.Module:
        network: nn.Module = import_timm().create_model(name, pretrained=False, num_classes=num_classes, **options)
        return network

    return build


def _caffe_resnet50(num_classes: int) -> nn.Module:
    """Build timm's ResNet-50 with the stride where Caffe and Keras have it: in the first 1x1 convolution."""
    net = _timm("resnet50")(num_classes)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1.001e-5
        first, second = (getattr(module, name, None) for name in ("conv1", "conv2"))
        if isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d):  # a bottleneck
            first.stride, second.stride = second.stride, (1, 1)
    return net


def _cifar(depth: int, *, classic: bool) -> Callable[..., nn.Module]:
    return functools.partial(CifarResNet, depth, classic=classic)


ARCHITECTURES: Mapping[str, Architecture] = {
    "resnet20": Architecture("CIFAR ResNet-20, 0.27 M parameters", _cifar(20, classic=True)),
    "resnet26": Architecture("ResNet-26 of the TTA benchmark, 0.37 M parameters", _cifar(26, classic=False)),
    "resnet32": Architecture("CIFAR ResNet-32, 0.47 M parameters", _cifar(32, classic=True)),
    "resnet44": Architecture("CIFAR ResNet-44, 0.66 M parameters", _cifar(44, classic=True)),
    "resnet56": Architecture("CIFAR ResNet-56, 0.86 M parameters", _cifar(56, classic=True)),
    "resnet50-thin": Architecture(
        "the TTA benchmark's ResNet-50 for CIFAR: thin bottlenecks, 0.78 M parameters", _cifar(50, classic=False)
    ),
    "resnet50": Architecture("ImageNet ResNet-50 (timm)", _timm("resnet50"), normalization="imagenet"),
    "resnet50-caffe": Architecture(
        "ImageNet ResNet-50 (timm) with the stride in the first 1x1 convolution, for Caffe and Keras weights",
        _caffe_resnet50,
        normalization="caffe",
    ),
    "efficientvit_m0": Architecture("EfficientViT-M0 (timm)", _timm("efficientvit_m0"), 224, "imagenet"),
    "efficientvit_m5": Architecture(
        "EfficientViT-M5 (timm), the paper's", _timm("efficientvit_m5"), 224, "imagenet"
    ),
}

#: Trained networks whose weights come with the package.
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
    """Build a network with fresh weights.

    Args:
        arch: A name from ``ARCHITECTURES``, or ``timm:NAME`` for any model of timm.
        num_classes: The number of classes.
        normalization: A name such as ``"cifar10"``, or (mean, std); by default the usual one.
        img_size: The side the network works at, for those that need to know it.

    Returns:
        The network, which takes RGB in [0, 1].
    """
    if num_classes < 1:
        raise OptionError(f"num_classes must be at least 1, got {num_classes}.")
    kind = _architecture(arch)
    size = img_size or kind.input_size
    if img_size is not None and kind.input_size is None and not arch.startswith("timm:"):
        raise OptionError(f"img_size: {arch} works at any size, so leave img_size out.")
    if size is not None and size < 16:
        raise OptionError(f"img_size must be at least 16, got {size}.")
    net = kind.build(num_classes, **({} if size is None else {"img_size": size}))
    mean, std = find_normalization(normalization or kind.normalization or _BY_CLASSES.get(num_classes, "imagenet"))
    return Classifier(net, ModelCard(arch=arch, num_classes=num_classes, mean=mean, std=std, input_size=size))


def load(
    name: str,
    *,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    normalization: str | tuple[Triple, Triple] | None = None,
    img_size: int | None = None,
) -> Classifier:
    """Load a trained network, in eval mode.

    Args:
        name: One of ``SHIPPED``, an architecture with ``weights``, or a ``.safetensors`` file with a card.
        weights: A state dict (``.safetensors``, or saved by torch; nothing in it is executed).
        num_classes: The number of classes; by default what the weights' card says.
        normalization: A name such as ``"cifar10"``, or (mean, std); by default what the card says, or what is
            usual for the number of classes.
        img_size: The side the network works at, for those that need to know it.

    Returns:
        The network, which takes RGB in [0, 1]; ``model.card`` says what is known about it.
    """
    if name in SHIPPED:
        if weights is not None:
            raise OptionError(f"weights: {name} brings its own. Name an architecture to load others.")
        resource = importlib.resources.files("findtta.models") / "shipped" / SHIPPED[name]
        with importlib.resources.as_file(resource) as path:
            return load(SHIPPED[name].split("-", 1)[1].removesuffix(".safetensors"), weights=path)
    if weights is None and name.endswith(".safetensors"):
        _, card = read_weights(name)
        if card is None:
            raise OptionError(f"model {name!r} has no card inside: name its architecture, and give it as weights.")
        return load(card.arch, weights=name)
    _architecture(name)  # an unknown name is the likelier mistake
    if weights is None:
        raise OptionError(
            f"weights: {name} is an architecture; give the weights to load, or one of {', '.join(SHIPPED)}, "
            "which bring their own."
        )
    state, card = read_weights(weights)
    if card is not None and card.arch != name:
        raise OptionError(f"weights {str(weights)!r} are of a {card.arch}, not of a {name}.")
    if card is not None and num_classes not in (None, card.num_classes):
        raise OptionError(f"num_classes: weights {str(weights)!r} have {card.num_classes}, not {num_classes}.")
    if card is None and num_classes is None:
        raise OptionError(f"num_classes must be given, since {str(weights)!r} has no card that says it.")
    model = build(
        name,
        num_classes=card.num_classes if card else num_classes or 1,
        normalization=normalization or ((card.mean, card.std) if card else None),
        img_size=img_size or (card.input_size if card else None),
    )
    fit(model.net, state, arch=name, source=str(weights))
    if card is not None:
        model.card = replace(card, mean=model.card.mean, std=model.card.std, input_size=model.card.input_size)
    return model.eval()


def _architecture(name: str) -> Architecture:
    if name.startswith("timm:"):
        timm_name = name.removeprefix("timm:")
        timm = import_timm()
        if not timm.is_model(timm_name):
            raise UnknownNameError(
                f"timm has no model {timm_name!r}.{close_matches(timm_name, timm.list_models())}"
            )
        return Architecture("a model of timm", _timm(timm_name), None, "imagenet")
    if name not in ARCHITECTURES:
        known = (*ARCHITECTURES, *SHIPPED)
        raise UnknownNameError(
            f"model {name!r} is unknown.{close_matches(name, known)} Known are {', '.join(known)}, and timm:NAME."
        )
    return ARCHITECTURES[name]
