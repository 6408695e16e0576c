"""The accuracy of a model on clean images, against what its card says, and in other domains."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from findtta.data.dataset import CLEAN, DomainDataset
from findtta.errors import InputError, OptionError
from findtta.images import to_input
from findtta.models.card import Classifier

_BATCH_SIZE = 250


@dataclass(frozen=True)
class AccuracyCheck:
    """The outcome of a check of clean accuracy, in %.

    Attributes:
        measured: The accuracy found.
        expected: What it should be.
        tolerance: How far below can be due to the choice of images.
        images: How many images were classified.
    """

    measured: float
    expected: float
    tolerance: float
    images: int

    @property
    def passed(self) -> bool:
        """Whether the accuracy is as expected; higher is fine."""
        return self.measured >= self.expected - self.tolerance

    def __str__(self) -> str:
        found = f"{self.measured:.1f}% on {self.images} clean images, {self.expected:.1f}% expected"
        if self.passed:
            return f"clean accuracy is as expected: {found}"
        return (
            f"clean accuracy is too low: {found} (at most {self.tolerance:.1f} below by chance). "
            "Check the normalization, the order of the classes and the image size first."
        )


def clean_accuracy(model: nn.Module, dataset: DomainDataset, images: int) -> tuple[int, int]:
    """Return the numbers of correct predictions and of images, on clean images spread over the set."""
    if CLEAN not in dataset.domains:
        raise OptionError(
            f"data: {dataset.name} has no clean images (its domains are {', '.join(dataset.domains[:4])}, ...), "
            "so clean accuracy cannot be checked on it. Give a set that has them."
        )
    return _correct(model, dataset.pick([CLEAN], limit=images), CLEAN)


def accuracy_by_domain(model: nn.Module, dataset: DomainDataset) -> dict[str, float]:
    """Return the accuracy in % in each domain of a dataset."""
    counts = {domain: _correct(model, dataset, domain) for domain in dataset.domains}
    return {domain: round(100 * correct / images, 2) for domain, (correct, images) in counts.items()}


def _correct(model: nn.Module, dataset: DomainDataset, domain: str) -> tuple[int, int]:
    device = next(model.parameters()).device
    labels = dataset.labels(domain)
    was_training = model.training
    model.eval()
    correct = 0
    try:
        for rows in np.split(np.arange(len(labels)), range(_BATCH_SIZE, len(labels), _BATCH_SIZE)):
            with torch.inference_mode():
                predicted = model(to_input(dataset.images(domain, rows), device)).argmax(1).cpu().numpy()
            correct += int((predicted == labels[rows]).sum())
    finally:
        model.train(was_training)
    return correct, len(labels)


def check_clean_accuracy(
    model: nn.Module, dataset: DomainDataset, *, expected: float | None = None, images: int = 1000
) -> AccuracyCheck:
    """Compare the accuracy of a model on clean images with what its card says.

    Args:
        model: The model; it takes RGB in [0, 1].
        dataset: A dataset with a ``"clean"`` domain.
        expected: The accuracy in %; by default what the model's card says.
        images: How many images to predict.

    Returns:
        The outcome; ``.passed`` tells whether it is as expected, ``str()`` describes it.
    """
    if expected is None and isinstance(model, Classifier):
        expected = model.card.clean_accuracy
    if expected is None:
        raise OptionError("expected must be given: the model's card does not say how accurate it is.")
    correct, count = clean_accuracy(model, dataset, images)
    if not count:
        raise InputError(f"data: {dataset.name} has no clean images to check the model on.")
    share = min(max(expected / 100, 0.0), 1.0)
    # Three standard errors of a proportion, and a point for another choice of test images.
    tolerance = 300 * math.sqrt(share * (1 - share) / count) + 1
    return AccuracyCheck(100 * correct / count, expected, tolerance, count)
