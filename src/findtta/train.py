"""Training of the source models of the benchmark: one recipe, and training that a kill only pauses."""

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from findtta._io import atomic_write
from findtta._progress import progress_bar
from findtta.data.corrupted import CorruptedDataset
from findtta.data.dataset import CLEAN, DomainDataset, Images, Labels, Rows
from findtta.data.randomness import integers, sample_keys
from findtta.data.shapes import draw, draw_labels
from findtta.errors import OptionError
from findtta.images import to_input
from findtta.models.card import Classifier
from findtta.models.check import accuracy_by_domain, clean_accuracy
from findtta.models.open import find_weights
from findtta.models.weights import fit, read_weights, write_weights
from findtta.options import AtLeastZero, Count, Fraction, Options, Positive, Seed, option, require_device

#: The part of the training in which the images grow to their full size.
GROWING = 2 / 3


@dataclass(frozen=True, kw_only=True)
class Recipe(Options):
    """How a source model is trained; :func:`default_recipe` knows the values for each dataset and architecture."""

    epochs: Count = option(60, "passes over the training set", shown="28 for shapes, 150 for CIFAR; less for ViTs")
    batch_size: Count = option(128, "images per step")
    learning_rate: Positive = option(
        0.1, "largest learning rate; it rises to it and falls to 0 along a cosine", shown="0.1, or 0.002 for ViTs"
    )
    warmup: Fraction = option(0.1, "fraction of the training in which the learning rate rises")
    momentum: Fraction = option(0.9, "Nesterov momentum of SGD")
    weight_decay: AtLeastZero = option(
        5e-4, "weight decay, except on normalization layers and biases", shown="0.0005, or 0.05 for ViTs"
    )
    optimizer: Literal["sgd", "adamw"] = option("sgd", "the optimizer", shown="sgd, or adamw for ViTs")
    label_smoothing: Fraction = option(0.0, "label smoothing of the cross-entropy")
    first_size: Fraction = option(
        1.0,
        "side of the first images as a fraction of their full side, which they reach after two thirds of the "
        "training; smaller images take less time",
    )
    start_from: str | None = option(
        None,
        "trained weights to start from: a shipped model or a .safetensors file",
        metavar="NAME|FILE",
        shown="random weights",
    )
    images_per_epoch: Count = option(10_000, "of shapes: new images drawn for each epoch")
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "precision of the forward pass; auto is bfloat16 on a GPU and float32 on a CPU"
    )
    seed: Seed = option(0, "seed of the first weights, the order of images and the crops")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup == 1:
            raise OptionError("warmup must be below 1, got 1: the learning rate must fall again.")
        if self.first_size == 0:
            raise OptionError("first_size must be above 0, got 0: an image needs pixels.")

    def rate(self, progress: float) -> float:
        """Return the learning rate at a point of the training, from 0 at its start to 1 at its end."""
        if progress < self.warmup:
            return self.learning_rate * (progress + 1e-3) / (self.warmup + 1e-3)
        falling = (progress - self.warmup) / (1 - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * falling))

    def side(self, progress: float, full: int) -> int:
        """Return the side of the images at a point of the training: a multiple of 4 until it is the full side."""
        grown = min(1.0, progress / GROWING)
        if grown == 1 or self.first_size == 1:
            return full
        return min(full, max(4, 4 * round(full * (self.first_size + (1 - self.first_size) * grown) / 4)))


def default_recipe(data: str, arch: str, **changes: Any) -> Recipe:
    """Return the recipe for "shapes", "cifar10" or "cifar100" and an architecture, with some settings changed."""
    transformer = "vit" in arch
    settings: dict[str, Any] = {"epochs": 150 if data != "shapes" else 16 if transformer else 28}
    if transformer:
        settings |= {"optimizer": "adamw", "learning_rate": 2e-3, "weight_decay": 0.05}
    return Recipe(**(settings | changes))


class DrawnShapes:
    """Shapes that no epoch shows twice, so that a model cannot memorize them.

    Clutter grows to its full strength over the first epochs: with full clutter from the start, the loss stays flat
    for many epochs.
    """

    def __init__(self, images_per_epoch: int, seed: int, easy_epochs: int) -> None:
        self._count, self._seed, self._easy = images_per_epoch, seed, easy_epochs
        self.identity = f"shapes, {images_per_epoch} per epoch, seed {seed}, {easy_epochs} easy epochs"

    def __len__(self) -> int:
        return self._count

    def batch(self, epoch: int, positions: Rows) -> tuple[Images, Labels]:
        """Draw the images at these positions of an epoch."""
        index = epoch * self._count + positions
        clutter = min(epoch / self._easy, 1.0) if self._easy else 1.0
        images = draw(index, seed=self._seed, split="train", clutter=clutter)
        return images, draw_labels(index, self._seed, "train")


class Augmented:
    """The clean images of a dataset, shifted by up to four pixels and mirrored at random."""

    def __init__(self, dataset: DomainDataset, seed: int, pad: int = 4) -> None:
        self._seed, self._pad = seed, pad
        self.identity = dataset.identity
        self._labels = dataset.labels(CLEAN)
        # Kept in memory, so that image files are decoded once and not in every epoch.
        self._images = dataset.images(CLEAN, np.arange(len(self._labels)))

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, epoch: int, positions: Rows) -> tuple[Images, Labels]:
        """Read the images at these positions, in the crop and orientation of an epoch."""
        keys = sample_keys(self._seed, positions, "augment", epoch)
        top, left, mirrored = integers(keys, 0, 2 * self._pad + 1, 3).T
        return crop(self._images[positions], top, left, mirrored % 2 == 1, self._pad), self._labels[positions]


#: Gives the images of an epoch, the same for the same seed, epoch and position.
TrainingSource = DrawnShapes | Augmented


def crop(images: Images, top: Rows, left: Rows, mirrored: np.ndarray, pad: int) -> Images:
    """Cut each image out of its zero-padded self, ``top`` and ``left`` pixels in, and mirror some."""
    _, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = top[:, None] + np.arange(height)
    columns = left[:, None] + np.arange(width)
    columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    return padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]


def train(
    model: Classifier,
    source: TrainingSource,
    test: DomainDataset,
    out: str | Path,
    recipe: Recipe,
    *,
    device: str = "cpu",
    half: bool = False,
    test_images: int = 10_000,
    corrupted_images: int = 0,
    progress: bool = True,
    checkpoint_every: float = 60.0,
) -> Classifier:
    """Train a model in place, write its weights to a ``.safetensors`` file, and return it in eval mode.

    The card of the model gets its accuracy on at most ``test_images`` images of the domain ``"clean"`` of the test
    set, and its accuracy under each of the fifteen corruptions at severity 5 on at most ``corrupted_images``
    images, if any. With ``half``, weights are stored in half precision, and the accuracy is that of what is
    stored.

    A checkpoint is kept beside ``out`` during training, written every ``checkpoint_every`` seconds. Called again
    after a kill with the same arguments, training continues from there and ends with the same weights as if it had
    never stopped.
    """
    require_device(device)
    out = Path(out)
    checkpoint = out.with_suffix(".checkpoint")
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = _optimizer(model, recipe)
    batches = len(source) // recipe.batch_size
    if not batches:
        raise OptionError(
            f"batch_size must be at most the {len(source)} training images, got {recipe.batch_size}."
        )
    card = model.card
    identity = {
        "recipe": asdict(recipe),
        "arch": card.arch,
        "classes": card.num_classes,
        "input": [list(card.mean), list(card.std), list(test.image_size)],
        "data": source.identity,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    done, before = _resume(checkpoint, identity, model, optimizer)
    if recipe.start_from is not None and not done:
        first, its_card = read_weights(find_weights(recipe.start_from))
        fit(model.net, first, arch=card.arch, source=recipe.start_from)
        before = dict(its_card.recipe) if its_card and its_card.recipe else None
    total = recipe.epochs * batches
    model.train()
    saved = time.monotonic()
    about = {"initial": done, "desc": f"training {model.card.arch}"}
    with progress_bar(total, "step", quiet=not progress, **about) as bar:
        for step in range(done, total):
            epoch, position = divmod(step, batches)
            order = np.random.default_rng((recipe.seed, epoch)).permutation(len(source))
            rows = order[position * recipe.batch_size : (position + 1) * recipe.batch_size]
            loss = _step(model, optimizer, *source.batch(epoch, rows), recipe, step / total)
            bar.update()
            if step % 20 == 0:
                bar.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.3f}")
            if time.monotonic() - saved > checkpoint_every:
                state = {"net": model.net.state_dict(), "optimizer": optimizer.state_dict(), "before": before}
                with atomic_write(checkpoint) as partial:
                    torch.save({"identity": identity, "step": step + 1, **state}, partial)
                saved = time.monotonic()
    model.eval()
    if half:
        for parameter in model.net.parameters():
            parameter.data = parameter.data.half().float()
    right, count = clean_accuracy(model, test, test_images)
    made = asdict(recipe)
    if recipe.start_from is not None:
        # The folder is nobody's business: a card is given away.
        made |= {"start_from": Path(recipe.start_from).name, "before": before}
    corrupted: dict[str, Any] = {}
    if corrupted_images:
        fifteen = CorruptedDataset(test).pick(limit=corrupted_images)
        corrupted = {
            "corrupted_accuracy": accuracy_by_domain(model, fifteen),
            "corrupted_images": corrupted_images,
        }
    model.card = replace(
        model.card,
        trained_on=test.name,
        image_size=test.image_size[0],
        crop=1.0,
        interpolation="bilinear",
        classes=test.classes,
        clean_accuracy=round(100 * right / count, 2),
        clean_images=count,
        **corrupted,
        recipe=made,
    )
    write_weights(out, model.net.state_dict(), model.card, half=half)
    checkpoint.unlink(missing_ok=True)
    return model


def _step(
    model: Classifier,
    optimizer: torch.optim.Optimizer,
    images: Images,
    labels: Labels,
    recipe: Recipe,
    progress: float,
) -> torch.Tensor:
    device = model.mean.device
    inputs = to_input(images, device)
    side = recipe.side(progress, inputs.shape[-1])
    if side != inputs.shape[-1]:
        inputs = F.interpolate(inputs, (side, side), mode="bilinear", antialias=True)
    low = recipe.precision == "bfloat16" or (recipe.precision == "auto" and device.type == "cuda")
    for group in optimizer.param_groups:
        group["lr"] = recipe.rate(progress)
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        logits = model(inputs)
    loss = F.cross_entropy(
        logits.float(), torch.from_numpy(labels).to(device), label_smoothing=recipe.label_smoothing
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    # Decay of the scales of normalization layers and of biases does not regularize.
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.learning_rate)
    return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, nesterov=recipe.momentum > 0)


def _resume(
    path: Path, identity: dict[str, Any], model: Classifier, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, Any] | None]:
    """Return the steps that are done, and the recipe of the weights that these began with."""
    if not path.exists():
        return 0, None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise OptionError(
            f"checkpoint {str(path)!r} cannot be read ({error}): delete it to start again."
        ) from error
    if not isinstance(state, dict) or state.get("identity") != identity:
        raise OptionError(
            f"checkpoint {str(path)!r} belongs to a training with other settings or data: "
            "give those to continue it, or delete it to start again."
        )
    model.net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]), state["before"]
