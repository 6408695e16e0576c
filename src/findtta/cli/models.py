"""List the architectures and shipped weights, or check a model's clean accuracy."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterable

from findtta.tables import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta models``."""
    parser.add_argument("model", nargs="?", help="show this model's card; without it, list what there is")
    parser.add_argument("--weights", metavar="FILE", help="weights of an architecture")
    parser.add_argument("--num-classes", type=int, help="the number of classes, if the weights have no card")
    parser.add_argument("--normalization", metavar="NAME", help="of the input, if the weights have no card")
    parser.add_argument("--check", metavar="DATA", help="measure the accuracy on the clean images of this dataset")
    parser.add_argument(
        "--expected", type=float, help="what it should be in per cent (default: what the card says)"
    )
    parser.add_argument("--images", type=int, default=1000, help="how many images to check on (default: 1000)")


def run(arguments: argparse.Namespace) -> int:
    """Print the list or the card; the exit code is 1 if the accuracy is not what it should be."""
    from findtta.models import ARCHITECTURES, SHIPPED, check_clean_accuracy, load

    if arguments.model is None:
        print("Architectures (give --weights), and any timm:NAME\n")
        print(render(("name", "what it is"), [(name, kind.summary) for name, kind in ARCHITECTURES.items()]))
        print("\nShipped with weights\n")
        cards = {name: load(name).card for name in _loadable(SHIPPED)}
        rows = [
            (name, card.trained_on or "", f"{card.clean_accuracy:.2f}% on {card.clean_images} images")
            for name, card in cards.items()
        ]
        print(render(("name", "trained on", "clean accuracy"), rows))
        return 0
    model = load(
        arguments.model,
        weights=arguments.weights,
        num_classes=arguments.num_classes,
        normalization=arguments.normalization,
    )
    card = model.card
    facts = {
        "architecture": card.arch,
        "classes": card.num_classes,
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "mean": ", ".join(f"{value:.4f}" for value in card.mean),
        "std": ", ".join(f"{value:.4f}" for value in card.std),
        "input size": card.input_size or "any",
        "trained on": card.trained_on or "not known",
        "clean accuracy": "not known" if card.clean_accuracy is None else f"{card.clean_accuracy:.2f}%",
        "recipe": ", ".join(f"{key} {value}" for key, value in (card.recipe or {}).items()) or "not known",
    }
    print(render(("", arguments.model), [(name, str(value)) for name, value in facts.items()]))
    if arguments.check is None:
        return 0
    from findtta.data.open import load as load_data

    outcome = check_clean_accuracy(
        model, load_data(arguments.check), expected=arguments.expected, images=arguments.images
    )
    print(outcome)
    return 0 if outcome.passed else 1


def _loadable(names: Iterable[str]) -> list[str]:
    """Leave out what needs an extra that is not installed."""
    has_timm = importlib.util.find_spec("timm") is not None
    return [name for name in names if has_timm or "resnet" in name]
