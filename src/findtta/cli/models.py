"""``findtta models``: list architectures and shipped models, or show one and check its clean accuracy."""

import argparse

from findtta.bench.plan import RunSpec
from findtta.cli.flags import add_flags, given
from findtta.cli.output import tell
from findtta.data.dataset import match_classes
from findtta.data.open import load
from findtta.models import ARCHITECTURES, SHIPPED, check_clean_accuracy, preprocessing_of
from findtta.models.open import find_weights
from findtta.models.weights import read_weights
from findtta.predictor import PredictorSettings
from findtta.tables import render

_LOADED_WITH = ("weights", "num_classes", "normalization", "image_size", "crop", "interpolation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta models``."""
    parser.add_argument("model", nargs="?", help="show the card of this model (default: list what there is)")
    add_flags(parser, PredictorSettings, _LOADED_WITH)
    add_flags(parser, RunSpec, ("data_options",))
    parser.add_argument("--check", metavar="DATA", help="measure the accuracy on the clean images of this dataset")
    parser.add_argument(
        "--expected", type=float, metavar="X", help="expected clean accuracy in %% (default: that of the card)"
    )
    parser.add_argument(
        "--images", type=int, default=1000, metavar="N", help="images to measure the accuracy on (default: 1000)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the list or the card; the exit code is 1 if the clean accuracy is lower than expected."""
    if arguments.model is None:
        return _list()
    settings = PredictorSettings(model=arguments.model, **given(arguments, PredictorSettings, _LOADED_WITH))
    model = settings.load_model()
    card = model.card
    unknown = "not known"
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
        "clean accuracy": unknown if card.clean_accuracy is None else f"{card.clean_accuracy:.2f}%",
        "recipe": ", ".join(f"{key} {value}" for key, value in (card.recipe or {}).items()) or unknown,
    }
    print(render(("", arguments.model), [(name, str(value)) for name, value in facts.items()]))
    if arguments.check is None:
        return 0

    how = (settings.image_size, settings.crop, settings.interpolation)
    preprocessing = preprocessing_of(model, *how) if settings.image_size or card.side else None
    options = given(arguments, RunSpec, ("data_options",)).get("data_options", {})
    data = load(arguments.check, preprocessing=preprocessing, **options)
    data, note = match_classes(data, card.classes, card.num_classes, given="classes" in options)
    tell(note, quiet=not note)
    outcome = check_clean_accuracy(model, data, expected=arguments.expected, images=arguments.images)
    print(outcome)
    return 0 if outcome.passed else 1


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
