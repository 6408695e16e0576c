"""The training loop: one pass over a recipe, which a kill can only pause."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from findtta._io import atomic_write
from findtta.data.dataset import DomainDataset
from findtta.errors import OptionError
from findtta.images import to_input
from findtta.models.card import Classifier
from findtta.models.check import clean_accuracy
from findtta.models.weights import write_weights
from findtta.training.recipe import Recipe
from findtta.training.source import TrainingSource

_SECONDS_BETWEEN_CHECKPOINTS = 60.0


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
    progress: bool = True,
    checkpoint_every: float = _SECONDS_BETWEEN_CHECKPOINTS,
) -> Classifier:
    """Train a network and write its weights, with its clean accuracy in the card.

    A checkpoint is kept beside ``out`` while it trains. Called again after a kill with the same arguments, it
    goes on from there and ends with the same weights as if it had never stopped.

    Args:
        model: The network with fresh weights; it is trained in place.
        source: Gives the training images.
        test: A dataset with a ``"clean"`` domain, for the accuracy in the card.
        out: The ``.safetensors`` file to write.
        recipe: How to train.
        device: Where to train.
        half: Store the weights in half precision; the accuracy in the card is that of what is stored.
        test_images: How many test images to measure the accuracy on.
        progress: Whether to draw a progress bar.
        checkpoint_every: Seconds between checkpoints.

    Returns:
        The trained network in eval mode.
    """
    out = Path(out)
    checkpoint = out.with_suffix(".checkpoint")
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = _optimizer(model, recipe)
    batches = len(source) // recipe.batch_size
    if not batches:
        raise OptionError(
            f"batch_size must be at most the {len(source)} training images, got {recipe.batch_size}."
        )
    identity = {"recipe": asdict(recipe), "arch": model.card.arch, "classes": model.card.num_classes}
    done = _resume(checkpoint, identity, model, optimizer)
    total = recipe.epochs * batches
    bar = tqdm(total=total, initial=done, unit="step", disable=not progress, desc=f"training {model.card.arch}")
    model.train()
    saved = time.monotonic()
    with bar:
        for step in range(done, total):
            epoch, position = divmod(step, batches)
            order = np.random.default_rng((recipe.seed, epoch)).permutation(len(source))
            rows = order[position * recipe.batch_size : (position + 1) * recipe.batch_size]
            loss = _step(model, optimizer, source, epoch, rows, recipe, recipe.rate(step / total), device)
            bar.update()
            if step % 20 == 0:
                bar.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.3f}")
            if time.monotonic() - saved > checkpoint_every:
                _write_checkpoint(checkpoint, identity, step + 1, model, optimizer)
                saved = time.monotonic()
    model.eval()
    if half:
        _round_to_half(model.net)
    right, count = clean_accuracy(model, test, test_images)
    model.card = replace(
        model.card,
        trained_on=test.name,
        classes=test.classes,
        clean_accuracy=round(100 * right / count, 2),
        clean_images=count,
        recipe=asdict(recipe),
    )
    write_weights(out, model.net.state_dict(), model.card, half=half)
    checkpoint.unlink(missing_ok=True)
    return model


def _step(
    model: Classifier,
    optimizer: torch.optim.Optimizer,
    source: TrainingSource,
    epoch: int,
    rows: np.ndarray,
    recipe: Recipe,
    rate: float,
    device: str,
) -> torch.Tensor:
    images, labels = source.batch(epoch, rows)
    low = recipe.precision == "bfloat16" or (recipe.precision == "auto" and torch.device(device).type == "cuda")
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=low):
        logits = model(to_input(images, device))
    loss = F.cross_entropy(
        logits.float(), torch.from_numpy(labels).to(device), label_smoothing=recipe.label_smoothing
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    # Shrinking the scale of a normalisation layer or a bias regularises nothing.
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.learning_rate)
    return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, nesterov=recipe.momentum > 0)


def _round_to_half(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.data = parameter.data.half().float()


def _write_checkpoint(
    path: Path, identity: dict[str, Any], step: int, model: Classifier, optimizer: torch.optim.Optimizer
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "identity": identity,
        "step": step,
        "net": model.net.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    with atomic_write(path) as partial:  # a kill leaves the old checkpoint or the new one, never half of one
        torch.save(state, partial)


def _resume(path: Path, identity: dict[str, Any], model: Classifier, optimizer: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise OptionError(
            f"checkpoint {str(path)!r} cannot be read ({error}): delete it to start again."
        ) from error
    if state["identity"] != identity:
        raise OptionError(
            f"checkpoint {str(path)!r} belongs to a training with other settings: "
            "repeat those to go on with it, or delete it to start again."
        )
    model.net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
