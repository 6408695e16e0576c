"""``findtta train``: train a source model with the recipe of the shipped models; a kill only pauses it."""

from __future__ import annotations

import argparse
from pathlib import Path

from findtta.cli.flags import add_flags, given
from findtta.errors import OptionError
from findtta.train import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta train``."""
    parser.add_argument("data", choices=("shapes", "cifar10", "cifar100"), help="the dataset to train on")
    parser.add_argument("--arch", default="resnet26", metavar="NAME", help="the architecture (default: resnet26)")
    parser.add_argument(
        "--source", metavar="PATH", help="archive or folder of CIFAR (default: what 'findtta data get' downloaded)"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="the .safetensors file to write (default: DATA-ARCH.safetensors)",
    )
    parser.add_argument(
        "--image-size",
        type=int,
        metavar="N",
        help="side that a vision transformer resizes its inputs to",
    )
    parser.add_argument("--device", metavar="DEVICE", help="where to train (default: cuda if there is one)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all)")
    parser.add_argument("--half", action="store_true", help="store the weights in half precision")
    parser.add_argument(
        "--test-images",
        type=int,
        default=10_000,
        metavar="N",
        help="test images for the clean accuracy in the card (default: 10000)",
    )
    add_flags(parser.add_argument_group("recipe"), Recipe)


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the clean accuracy."""
    import torch

    from findtta._processes import torch_threads
    from findtta.data.open import load_as_is
    from findtta.models import build
    from findtta.train import Augmented, DrawnShapes, TrainingSource, default_recipe, train

    recipe = default_recipe(arguments.data, arguments.arch, **given(arguments, Recipe))
    output = arguments.output or Path(f"{arguments.data}-{arguments.arch}.safetensors")
    if output.suffix != ".safetensors":
        raise OptionError(f"--output must end in .safetensors, got {str(output)!r}.")
    if output.exists():
        raise OptionError(f"--output {str(output)!r} exists already: delete it, or name another file.")
    if arguments.data == "shapes" and arguments.source:
        raise OptionError("--source is for CIFAR: shapes are drawn by code.")
    place = arguments.source or arguments.data
    test = load_as_is(place)
    source: TrainingSource
    if arguments.data == "shapes":
        source = DrawnShapes(recipe.images_per_epoch, recipe.seed, recipe.epochs // 4)
    else:
        source = Augmented(load_as_is(place, split="train"), recipe.seed)
    torch.manual_seed(recipe.seed)  # the first weights
    model = build(
        arguments.arch,
        num_classes=len(test.classes),
        normalization="half" if arguments.data == "shapes" else arguments.data,
        img_size=arguments.image_size,
    )
    with torch_threads(arguments.threads):
        card = train(
            model,
            source,
            test,
            output,
            recipe,
            device=arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"),
            half=arguments.half,
            test_images=arguments.test_images,
        ).card
    print(f"{output}: {card.arch}, accuracy {card.clean_accuracy:.2f}% on {card.clean_images} clean test images")
    return 0
