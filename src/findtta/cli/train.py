"""``findtta train``: train a source model with the recipe of the shipped models; a kill only pauses it."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from findtta.cli.flags import add_flags, given
from findtta.errors import OptionError
from findtta.options import Count, Options, option, require_device
from findtta.train import Recipe


@dataclass(frozen=True, kw_only=True)
class Training(Options):
    """What is trained, where, and what is written."""

    arch: str = option("resnet26", "the architecture")
    source: str | None = option(
        None, "archive or folder of CIFAR", metavar="PATH", shown="what 'findtta data get' downloaded"
    )
    output: Path | None = option(
        None, "the .safetensors file to write", short="-o", metavar="FILE", shown="DATA-ARCH.safetensors"
    )
    image_size: Count | None = option(None, "side that a vision transformer resizes its inputs to")
    device: str | None = option(None, "where to train", metavar="DEVICE", shown="cuda if there is one")
    threads: Count | None = option(None, "CPU threads", shown="all")
    half: bool = option(False, "store the weights in half precision")
    test_images: Count = option(10_000, "test images for the clean accuracy in the card")
    corrupted_images: Count = option(1_000, "test images for the accuracy under each corruption in the card")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device is not None:
            require_device(self.device)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta train``."""
    parser.add_argument("data", choices=("shapes", "cifar10", "cifar100"), help="the dataset to train on")
    add_flags(parser, Training)
    add_flags(parser.add_argument_group("recipe"), Recipe)


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the clean accuracy."""
    import torch

    from findtta._processes import torch_threads
    from findtta.data.open import load_as_is
    from findtta.models import build
    from findtta.train import Augmented, DrawnShapes, TrainingSource, default_recipe, train

    data, settings = arguments.data, Training(**given(arguments, Training))
    recipe = default_recipe(data, settings.arch, **given(arguments, Recipe))
    output = settings.output or Path(f"{data}-{settings.arch}.safetensors")
    if output.suffix != ".safetensors":
        raise OptionError(f"--output must end in .safetensors, got {str(output)!r}.")
    if output.exists():
        raise OptionError(f"--output {str(output)!r} exists already: delete it, or name another file.")
    if data == "shapes" and settings.source:
        raise OptionError("--source is for CIFAR: shapes are drawn by code.")
    place = settings.source or data
    test = load_as_is(place)
    test.name = data  # what the card says that a model was trained on, whatever the folder is called
    source: TrainingSource
    if data == "shapes":
        source = DrawnShapes(recipe.images_per_epoch, recipe.seed, recipe.epochs // 4)
    else:
        source = Augmented(load_as_is(place, split="train"), recipe.seed)
    torch.manual_seed(recipe.seed)  # the first weights
    model = build(
        settings.arch,
        num_classes=len(test.classes),
        normalization="half" if data == "shapes" else data,
        img_size=settings.image_size,
    )
    with torch_threads(settings.threads):
        card = train(
            model,
            source,
            test,
            output,
            recipe,
            device=settings.device or ("cuda" if torch.cuda.is_available() else "cpu"),
            half=settings.half,
            test_images=settings.test_images,
            corrupted_images=settings.corrupted_images,
        ).card
    print(f"{output}: {card.arch}, accuracy {card.clean_accuracy:.2f}% on {card.clean_images} clean test images")
    return 0
