"""Train a source model by the recipe of the shipped ones; a kill only pauses it."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from findtta.errors import OptionError

_RECIPE = (
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "optimizer",
    "images_per_epoch",
    "precision",
    "seed",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta train``."""
    parser.add_argument("data", choices=("shapes", "cifar10", "cifar100"), help="what to train on")
    parser.add_argument("--arch", default="resnet26", help="the architecture (default: resnet26)")
    parser.add_argument(
        "--source",
        metavar="PATH",
        help="where CIFAR lies, if 'findtta data get' did not fetch it (not for shapes)",
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="the .safetensors file to write (default: DATA-ARCH)"
    )
    parser.add_argument("--img-size", type=int, help="the side a transformer works at; images are scaled to it")
    parser.add_argument("--device", help="where to train (default: cuda if there is one)")
    parser.add_argument("--half", action="store_true", help="store the weights in half precision")
    parser.add_argument(
        "--test-images", type=int, default=10_000, help="test images for the accuracy in the card (default: 10000)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads to use (default: all)")
    group = parser.add_argument_group("recipe (defaults depend on the data and the architecture)")
    for field in (field for field in _recipe_fields() if field.name in _RECIPE):
        group.add_argument(
            f"--{field.name.replace('_', '-')}", type=_parser_of(field.name), default=argparse.SUPPRESS
        )


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the card."""
    import torch

    from findtta.data.dataset import DomainDataset
    from findtta.models import build
    from findtta.training import default_recipe, train
    from findtta.training.source import Augmented, DrawnShapes, TrainingSource

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    given = {name: value for name, value in vars(arguments).items() if name in _RECIPE}
    recipe = default_recipe(arguments.data, arguments.arch, **given)
    out = arguments.out or Path(f"{arguments.data}-{arguments.arch}.safetensors")
    if out.suffix != ".safetensors":
        raise OptionError(f"--out must end in .safetensors, got {str(out)!r}.")
    if out.exists():
        raise OptionError(f"--out {str(out)!r} exists already: delete it, or name another file.")
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")

    source: TrainingSource
    test: DomainDataset
    if arguments.data == "shapes":
        if arguments.source:
            raise OptionError("--source: shapes are drawn by code, so there is nothing to read.")
        from findtta.data.shapes import shapes

        source, test = DrawnShapes(recipe.images_per_epoch, recipe.seed, recipe.epochs // 4), shapes()
    else:
        from findtta.data.open import load

        place = arguments.source or arguments.data
        source, test = Augmented(load(place, split="train"), recipe.seed), load(place, split="test")
    torch.manual_seed(recipe.seed)  # the first weights
    model = build(
        arguments.arch,
        num_classes=len(test.classes),
        normalization="half" if arguments.data == "shapes" else arguments.data,
        img_size=arguments.img_size,
    )
    model = train(
        model, source, test, out, recipe, device=device, half=arguments.half, test_images=arguments.test_images
    )
    card = model.card
    print(f"{out}: {card.arch}, {card.clean_accuracy:.2f}% right on {card.clean_images} clean test images")
    return 0


def _recipe_fields() -> tuple[Any, ...]:
    from findtta.training.recipe import Recipe

    return fields(Recipe)


def _parser_of(name: str) -> type:
    return {"optimizer": str, "precision": str, "learning_rate": float, "weight_decay": float}.get(name, int)
