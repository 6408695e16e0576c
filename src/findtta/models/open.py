"""The one opener of models: whatever a user names becomes a model that takes RGB in [0, 1] and says its input."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from findtta.errors import OptionError
from findtta.images import NORMALIZATIONS, Interpolation, Preprocessing, Triple, find_normalization
from findtta.models.card import Classifier, ModelCard
from findtta.models.weights import fit, read_weights
from findtta.models.zoo import ARCHITECTURES, SHIPPED, TORCHVISION_HINT, build, find_architecture, timm_input
from findtta.plugins import find_object, is_reference, public_name

#: What cards of weights trained on these datasets mean where they say nothing about it.
_IMAGES = {"image_size": 32, "crop": 1.0, "interpolation": "bilinear"}
_TRAINED_ON = ("shapes", "cifar10", "cifar100")
#: What is used if nothing says it, in words.
_DEFAULTS = {"crop": "no crop", "interpolation": "bilinear", "normalization": "no normalization (RGB in [0, 1])"}
_INPUT = ("image_size", "crop", "interpolation", "mean", "std")  # what a card says about it


def load(
    name: str,
    *,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    normalization: str | tuple[Triple, Triple] | None = None,
    img_size: int | None = None,
    fallback_classes: int | None = None,
    card: Mapping[str, Any] | None = None,
) -> Classifier:
    """Load a trained model, in eval mode and on the CPU.

    Args:
        name: One of ``SHIPPED``; an architecture (``timm:NAME`` included) with ``weights``; a ``.safetensors``
            file with a card; or a model of your own, as ``module:CALLABLE`` or ``file.py:CALLABLE``, which is
            called without arguments and returns the module.
        weights: A state dict (``.safetensors``, or saved by torch; nothing in it is executed).
        num_classes: The number of classes; by default what the weights' card says.
        normalization: A name such as ``"cifar10"``, (mean, std), or a text ``MEAN/STD``; by default what the card
            or timm says, or none for a model of your own.
        img_size: Side that the model works at, for architectures with a fixed one.
        fallback_classes: The number of classes if nothing else says it, such as that of the data.
        card: What is known from elsewhere, such as a config file, and goes before what weights and timm say:
            ``classes``, ``num_classes``, ``image_size``, ``crop``, ``interpolation``, ``mean`` with ``std``, and
            under ``source`` where it comes from.

    Returns:
        The model; ``model.card`` says what is known about it.
    """
    told: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in (card or {}).items()
    }
    if "mean" in told:
        normalization = normalization or (told["mean"], told["std"])
    num_classes = num_classes or told.get("num_classes")
    if is_own(name):
        if img_size is not None:
            raise OptionError(f"img_size is for named architectures; {name!r} must be built for its size itself.")
        model = _load_own(name, weights, num_classes, fallback_classes, normalization)
    else:
        model = _load_named(name, weights, num_classes, fallback_classes, normalization, img_size)
    return _with_card(model, told) if told else model


def find_weights(name: str, weights: str | Path | None = None) -> Path:
    """Return the file of the weights of a shipped model, of a .safetensors file or of an architecture."""
    if name in SHIPPED:
        if weights is not None:
            raise OptionError(f"weights: {name} brings its own. Name an architecture to load others.")
        return Path(__file__).with_name("shipped") / f"{name}.safetensors"
    if weights is None and name.endswith(".safetensors"):
        return Path(name)
    find_architecture(name)  # an unknown name is the likelier mistake
    if weights is None:
        raise OptionError(
            f"weights: {name} is an architecture; give the weights to load, or one of {', '.join(SHIPPED)}, "
            "which bring their own."
        )
    return Path(weights)


def is_own(name: str) -> bool:
    """Tell whether a name is that of a model of the user's own: ``module:CALLABLE`` or ``file.py:CALLABLE``."""
    return ":" in name and name not in ARCHITECTURES and not name.startswith("timm:")


def load_module(name: str, weights: str | Path | None = None, num_classes: int | None = None) -> nn.Module:
    """Load a model, named as for ``load``, to inspect it: an architecture needs no weights here.

    It gets ``num_classes`` outputs: by default as many as the card of the weights says, or else 1,000.
    """
    if name in SHIPPED or name.endswith(".safetensors"):
        return load(name, weights=weights)
    state, card = read_weights(weights) if weights is not None else (None, None)
    classes = num_classes or (card.num_classes if card else 1000)
    model = _call(name) if is_own(name) else build(name, num_classes=classes, normalization="none").net
    if state is not None:
        fit(model, state, arch=name, source=str(weights))
    return model


def preprocessing_of(
    model: nn.Module,
    image_size: int | None = None,
    crop: float | None = None,
    interpolation: Interpolation | None = None,
) -> Preprocessing:
    """Return how images become inputs of a model.

    Args:
        model: The model; a ``Classifier`` says it by its card.
        image_size: Side of the square that the model is given; by default what the card says.
        crop: Fraction of the shorter side that is kept; by default what the card says, or else 1.
        interpolation: ``"bilinear"`` or ``"bicubic"``; by default what the card says, or else bilinear.

    Returns:
        The preprocessing.

    Raises:
        OptionError: If nothing says the size.
    """
    if isinstance(model, Classifier):
        card = model.card
        image_size = image_size or card.side
        crop = card.crop if crop is None else crop
        interpolation = interpolation or card.interpolation
    if image_size is None:
        raise OptionError(
            "image_size must be given (--image-size), such as 224: nothing says which size the model takes."
        )
    return Preprocessing.square(image_size, 1.0 if crop is None else crop, interpolation or "bilinear")


def describe_input(
    model: Classifier, preprocessing: Preprocessing | None, size: tuple[int, int], given: Mapping[str, Any]
) -> str:
    """Return in one line what a model is given, and what says so.

    Args:
        model: The model.
        preprocessing: How images are brought to size; None if they are used as they are.
        size: Height and width of the images.
        given: Settings of the user; those about the input are None where they were not given.
    """
    card, asked = model.card, [name for name in ("image_size", *_DEFAULTS) if given.get(name) is not None]
    known = {"crop": card.crop, "interpolation": card.interpolation, "normalization": model.source}
    if preprocessing is None:
        resized, known = ", as the data have them", {"normalization": model.source}
    else:
        resized = f" (shorter side resized to {preprocessing.resize}, {preprocessing.interpolation}; centre crop)"
    defaults = [_DEFAULTS[name] for name, value in known.items() if not value and name not in asked]
    mean, std = (" ".join(f"{value:.4g}" for value in values) for values in (card.mean, card.std))
    sources = {
        "given": ", ".join(f"--{name.replace('_', '-')}" for name in asked),
        "from": model.source if set(known) - set(asked) else "",
        "by default": ", ".join(defaults),
    }
    return f"input: {size[0]} x {size[1]}{resized}, mean {mean}, std {std}; " + "; ".join(
        f"{how} {what}" for how, what in sources.items() if what
    )


def _with_card(model: Classifier, told: Mapping[str, Any]) -> Classifier:
    """Put what is known from elsewhere on the card of a model that was loaded with it."""
    classes = told.get("classes")
    if classes and len(classes) != model.card.num_classes:
        raise OptionError(
            f"classes must name the {model.card.num_classes} classes of the model, got {len(classes)}."
        )
    source, file, about_input = model.source, told.get("source", "the given card"), told.keys() & {*_INPUT}
    if not source and about_input:
        source = file if "mean" in told else f"{file}, which gives no mean and std"
    elif about_input:
        source = file if len(about_input) == len(_INPUT) else f"{file} and {source}"
    shown = ("classes", "image_size", "crop", "interpolation")  # mean and std are there already
    card = dataclasses.replace(model.card, **{name: told[name] for name in shown if name in told})
    return Classifier(model.net, card, source).eval()


def _load_named(
    name: str,
    weights: str | Path | None,
    num_classes: int | None,
    fallback_classes: int | None,
    normalization: str | tuple[Triple, Triple] | None,
    img_size: int | None,
) -> Classifier:
    path = find_weights(name, weights)
    state, card = read_weights(path)
    if card is None:
        if weights is None:
            raise OptionError(f"model {name!r} has no card inside: name its architecture, and give it as weights.")
        count = num_classes or fallback_classes
        if count is None:
            raise OptionError(f"num_classes must be given, since {str(path)!r} has no card that says it.")
    else:
        if weights is not None and card.arch != name:
            raise OptionError(f"weights {str(path)!r} are of a {card.arch}, not of a {name}.")
        if num_classes not in (None, card.num_classes):
            raise OptionError(f"num_classes: weights {str(path)!r} have {card.num_classes}, not {num_classes}.")
        name, count = card.arch, card.num_classes
        normalization, img_size = normalization or (card.mean, card.std), img_size or card.input_size
    model = build(name, num_classes=count, normalization=normalization, img_size=img_size)
    fit(model.net, state, arch=name, source=str(path))
    if card is not None:
        built = model.card
        changed: dict[str, Any] = {name: getattr(built, name) for name in ("mean", "std", "input_size")}
        meant = _IMAGES if (card.trained_on or "").lower() in _TRAINED_ON else {"image_size": built.image_size}
        changed |= {name: value for name, value in meant.items() if getattr(card, name) is None}
        model.card, model.source = dataclasses.replace(card, **changed), f"the card in {path.name}"
    return model.eval()


def _load_own(
    name: str,
    weights: str | Path | None,
    num_classes: int | None,
    fallback_classes: int | None,
    normalization: str | tuple[Triple, Triple] | None,
) -> Classifier:
    model = load_module(name, weights)
    if isinstance(model, Classifier):
        if num_classes not in (None, model.card.num_classes):
            raise OptionError(f"num_classes: {name!r} has {model.card.num_classes}, not {num_classes}.")
    else:
        num_classes = num_classes or fallback_classes
        if num_classes is None:
            raise OptionError(f"num_classes must be given for {name!r}, which has no card that says it.")
        made_by_timm = isinstance(getattr(model, "pretrained_cfg", None), dict)
        source, (mean, std), known = timm_input(model) if made_by_timm else ("", NORMALIZATIONS["none"], {})
        model = Classifier(
            model, ModelCard(arch=public_name(name), num_classes=num_classes, mean=mean, std=std, **known), source
        )
    if normalization is not None:
        mean, std = find_normalization(normalization)
        model = Classifier(model.net, dataclasses.replace(model.card, mean=mean, std=std), model.source)
    return model.eval()


def _call(target: str) -> nn.Module:
    if not is_reference(target):
        raise OptionError(f"model must look like timm:NAME, module:CALLABLE or file.py:CALLABLE, got {target!r}.")
    try:
        factory = find_object("model", target, callable, "a torch.nn.Module or a function that returns one")
    except OptionError as error:
        if "torchvision::" not in str(error):
            raise
        raise OptionError(f"{error} {TORCHVISION_HINT}") from error
    model = factory if isinstance(factory, nn.Module) else factory()
    if not isinstance(model, nn.Module):
        raise OptionError(f"model {target!r} must give a torch.nn.Module, but gave a {type(model).__name__}.")
    return model
