"""``findtta models``: list architectures and shipped models, show one and its accuracy, check a config file."""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from findtta.bench.plan import RunSpec
from findtta.cli.flags import add_flags, given
from findtta.cli.output import tell
from findtta.data import folders
from findtta.data.dataset import Labels, match_classes
from findtta.data.open import SHAPES, load, load_as_is
from findtta.errors import FindTTAError, InputError, OptionError, few, first_line
from findtta.images import Pixels, read_image, to_input
from findtta.inspection import inspect
from findtta.models import ARCHITECTURES, SHIPPED, ModelCard, check_clean_accuracy, preprocessing_of
from findtta.models.open import find_weights
from findtta.models.weights import read_weights
from findtta.options import require_int
from findtta.predictor import Predictions, Predictor, PredictorSettings
from findtta.tables import render

CHECK = "check"
_CHECKED = 64  # images that a config file is checked on: one batch, as methods use its statistics
_SHOWN = 8
_LOADED_WITH = ("weights", "num_classes", "normalization", "image_size", "crop", "interpolation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta models``."""
    parser.add_argument(
        "name", nargs="?", metavar="model", help="show the card of this model (default: list what there is)"
    )
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="FILE", help=f"after '{CHECK}': the config file to check on images"
    )
    add_flags(parser, PredictorSettings, _LOADED_WITH)
    add_flags(parser, RunSpec, ("data_options",))
    parser.add_argument("--check", metavar="DATA", help="measure the accuracy on the clean images of this dataset")
    parser.add_argument(
        "--expected", type=float, metavar="X", help="expected clean accuracy in %% (default: that of the card)"
    )
    parser.add_argument(
        "--images",
        metavar="N|FOLDER",
        help=f"images to measure the accuracy on (default: 1000); after '{CHECK}' a folder, perhaps with a folder "
        "for each class (default: drawn shapes)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the list or the card; the exit code is 1 if the clean accuracy is lower than expected."""
    if arguments.name is None:
        return _list()
    if arguments.name == CHECK:
        return _check_config(arguments)
    if arguments.config is not None:
        raise OptionError(f"a second argument must follow '{CHECK}', got {arguments.name!r} before it.")
    images = arguments.images or "1000"
    require_int("--images", int(images) if images.isdigit() else images)
    settings = PredictorSettings(model=arguments.name, **given(arguments, PredictorSettings, _LOADED_WITH))
    model = settings.load_model()
    card = model.card
    unknown = "not known"
    recipe = dict(card.recipe or {})
    before = recipe.pop("before", None)  # of the weights that it started from
    facts = {
        "architecture": card.arch,
        "classes": card.num_classes,
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "mean": ", ".join(f"{value:.4f}" for value in card.mean),
        "std": ", ".join(f"{value:.4f}" for value in card.std),
        "input size": card.input_size or "any",
        "image size": card.image_size or unknown,
        "crop": card.crop or unknown,
        "interpolation": card.interpolation or unknown,
        "trained on": card.trained_on or unknown,
        "clean accuracy": unknown
        if card.clean_accuracy is None
        else f"{card.clean_accuracy:.2f}% on {card.clean_images} images",
        **{domain: f"{accuracy:.1f}%" for domain, accuracy in (card.corrupted_accuracy or {}).items()},
        "recipe": _told(recipe) or unknown,
        **({"recipe before": _told(before)} if before else {}),
    }
    print(render(("", arguments.name), [(name, str(value)) for name, value in facts.items()]))
    if arguments.check is None:
        return 0

    how = (settings.image_size, settings.crop, settings.interpolation)
    preprocessing = preprocessing_of(model, *how) if settings.image_size or card.side else None
    options = given(arguments, RunSpec, ("data_options",)).get("data_options", {})
    data = load(arguments.check, preprocessing=preprocessing, **options)
    data, note = match_classes(data, card.classes, card.num_classes, given="classes" in options)
    tell(note, quiet=not note)
    outcome = check_clean_accuracy(model, data, expected=arguments.expected, images=int(images))
    print(outcome)
    return 0 if outcome.passed else 1


def _told(recipe: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in recipe.items())


def _list() -> int:
    print("Architectures (give --weights), and any timm:NAME\n")
    print(render(("name", "what it is"), [(name, kind.summary) for name, kind in ARCHITECTURES.items()]))
    print("\nShipped with weights\n")
    cards = {name: read_weights(find_weights(name))[1] for name in SHIPPED}
    rows = [
        (name, card.trained_on or "", f"{card.clean_accuracy:.2f}% on {card.clean_images} images")
        for name, card in cards.items()
        if card is not None
    ]
    print(render(("name", "trained on", "clean accuracy"), rows))
    return 0


def _check_config(arguments: argparse.Namespace) -> int:
    """Load a model as a config file says, and predict a few images with it; an error says what is wrong."""
    if arguments.config is None:
        raise OptionError(f"a config file must follow '{CHECK}', such as model.toml.")
    settings = PredictorSettings(**given(arguments, PredictorSettings))
    model = settings.load_model()
    source = dataclasses.replace(settings, method="source", options={}).predictor(model)
    method = settings.predictor(model)
    options = given(arguments, RunSpec, ("data_options",)).get("data_options", {})
    names, images, labels = _few_images(arguments.images, source, settings, options)
    weights = f" with the weights {settings.weights}" if settings.weights else ""
    print(f"model: {settings.model}{weights}, {len(source.labels)} classes ({few(source.labels)})")
    print(source.input)
    both = {"source model": _predictions(source, images), settings.method: _predictions(method, images)}

    # Drift from the training data says something about the user's images, not about drawn ones.
    layers = inspect(model, to_input(images) if arguments.images else None)
    adapted = sum(layer.adaptable for layer in layers.layers) if method.adapted.name != "source" else 0
    written = "".join(f", {name}={value}" for name, value in settings.options.items())
    print(
        f"method: {settings.method}{written}; {adapted} of {len(layers.layers)} normalisation layers are adapted"
    )
    for warning in layers.warnings:
        print(f"warning: {warning}")
    shown = np.unique(np.linspace(0, len(images) - 1, _SHOWN).astype(int))
    rows = [
        (
            names[row],
            *(f"{source.labels[each.indices[row]]} {each.probabilities[row].max():.2f}" for each in both.values()),
        )
        for row in shown
    ]
    print(f"\n{render(('class' if labels is not None else 'image', *both), rows)}\n")
    if labels is not None:
        correct = {name: int((each.indices == labels).sum()) for name, each in both.items()}
        said = (f"{name} {100 * right / len(labels):.1f}% ({right} correct)" for name, right in correct.items())
        print(f"accuracy on {len(labels)} images: {', '.join(said)}")
    print(f"{arguments.config} can be used: {len(images)} images were predicted")
    return 0


def _few_images(
    place: str | None, predictor: Predictor, settings: PredictorSettings, options: dict[str, Any]
) -> tuple[list[str], Pixels, Labels | None]:
    """Return names, pixels and, where they are known, labels of images of a folder, or of drawn shapes."""
    card: ModelCard = predictor.card
    folder = Path(place or "").expanduser()
    if not folder.is_dir():
        raise InputError(f"--images must be a folder after '{CHECK}', got {place!r}.")
    if place and (files := folders.images_in(folder)):
        chosen = [files[row] for row in np.unique(np.linspace(0, len(files) - 1, _CHECKED).astype(int))]
        read = [read_image(file, settings.image_limits, predictor.preprocess, name=str(file)) for file in chosen]
        return [file.name for file in chosen], np.stack(read), None
    data = load_as_is(folder if place else SHAPES, preprocessing=predictor.preprocess, **options)
    known = bool(place) or data.classes == card.classes
    if known:
        data, note = match_classes(data, card.classes, card.num_classes, given="classes" in options)
        tell(note, quiet=not note)
    part = data.pick(data.domains, limit=max(1, _CHECKED // len(data.domains)))
    rows = {domain: np.arange(len(part.labels(domain))) for domain in part.domains}
    pixels = [predictor.preprocess(image) for domain, each in rows.items() for image in part.images(domain, each)]
    labels = np.concatenate([part.labels(domain) for domain in rows])
    return [part.classes[label] for label in labels], np.stack(pixels), labels if known else None


def _predictions(predictor: Predictor, images: Pixels) -> Predictions:
    """Predict, or say why the model cannot."""
    try:
        predictions = predictor(images)
    except FindTTAError:
        raise
    except Exception as error:  # whatever the model raises
        size = " x ".join(map(str, predictor.preprocess.size))
        raise OptionError(
            f"image_size: the model cannot compute images of {size} pixels ({first_line(error)})."
        ) from error
    if not np.isfinite(predictions.probabilities).all():
        raise InputError(
            f"outputs of the model under {predictor.adapted.name!r} must be finite, but are not: check weights, "
            "mean and std."
        )
    return predictions
