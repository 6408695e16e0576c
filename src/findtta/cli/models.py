"""``findtta models``: list architectures and shipped models, or show one and check its clean accuracy."""

from __future__ import annotations

import argparse

from findtta._extras import installed
from findtta.tables import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta models``."""
    parser.add_argument("model", nargs="?", help="show the card of this model (default: list what there is)")
    parser.add_argument("--weights", metavar="FILE", help="weights of an architecture")
    parser.add_argument("--num-classes", type=int, metavar="N", help="number of classes of weights without a card")
    parser.add_argument("--normalization", metavar="NAME", help="normalization of weights without a card")
    parser.add_argument("--check", metavar="DATA", help="measure the accuracy on the clean images of this dataset")
    parser.add_argument(
        "--expected", type=float, metavar="X", help="expected clean accuracy in %% (default: that of the card)"
    )
    parser.add_argument(
        "--images", type=int, default=1000, metavar="N", help="images to measure the accuracy on (default: 1000)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the list or the card; the exit code is 1 if the clean accuracy is lower than expected."""
    from findtta.models import check_clean_accuracy, load, preprocessing_of

    if arguments.model is None:
        return _list()
    model = load(
        arguments.model,
        weights=arguments.weights,
        num_classes=arguments.num_classes,
        normalization=arguments.normalization,
    )
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

    from findtta.data.open import load as load_data

    preprocessing = preprocessing_of(model) if card.image_size or card.input_size else None
    outcome = check_clean_accuracy(
        model,
        load_data(arguments.check, preprocessing=preprocessing),
        expected=arguments.expected,
        images=arguments.images,
    )
    print(outcome)
    return 0 if outcome.passed else 1


def _list() -> int:
    from findtta.models import ARCHITECTURES, SHIPPED, load

    print("Architectures (give --weights), and any timm:NAME\n")
    print(render(("name", "what it is"), [(name, kind.summary) for name, kind in ARCHITECTURES.items()]))
    print("\nShipped with weights\n")
    has_timm = installed("timm")
    cards = {name: load(name).card for name in SHIPPED if has_timm or "resnet" in name}
    rows = [
        (name, card.trained_on or "", f"{card.clean_accuracy:.2f}% on {card.clean_images} images")
        for name, card in cards.items()
    ]
    print(render(("name", "trained on", "clean accuracy"), rows))
    return 0
