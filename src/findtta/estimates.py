"""Which of several methods is the most accurate, from their predictions on unlabelled images: pure functions.

Probabilities are arrays ``(images, classes)``; ``sizes`` are the numbers of images of consecutive batches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from findtta.errors import InputError

Floats = NDArray[np.floating]
Counts = Sequence[int] | NDArray[np.integer]

#: By how much a method is more accurate than another for each unit by which its evidence is higher; fitted, as the
#: number below, on the streams that docs/recommend.md names (benchmarks/recommend.py --fit).
WEIGHTS: Mapping[str, float] = {
    "spread": 0.6,
    "agreement_if_mixed": 0.8,
    "classes_if_mixed": 1.15,
    "classes_if_sorted": -2.65,
}
#: How much accuracy methods lose on average for each image in which one disagrees with the others.
DISAGREEMENT_COST = 0.85
#: Fewer images say too little: the evidence of a hundred has a standard error of some points.
FEWEST_IMAGES = 100


@dataclass(frozen=True)
class Evidence:
    """What the predictions of one method on unlabelled images say about it; each is from 0 to 1.

    Attributes:
        spread: How rarely two images get the same class, see :func:`spread`. Drift that the method leaves in
            pushes images into few classes.
        agreement: The probability that another method gives the same class, if classes are drawn from predictions;
            on average over the others.
        classes: Part of the variance of the predictions that lies between batches, less what chance gives: how
            much of the classes of a batch the method keeps.
    """

    spread: float
    agreement: float
    classes: float

    def score(self, drift_between: float) -> float:
        """Return the accuracy that the evidence supports, up to a number that all methods have in common.

        Where batches are alike in drift, their predictions may only differ because of their classes, and a method
        that removes the difference removes classes. Where batches differ in drift (``drift_between`` near 1),
        predictions that follow the batch follow the drift; and agreement with methods that make no use of
        the batch says little.
        """
        terms = self.terms(drift_between)
        return math.fsum(WEIGHTS[name] * value for name, value in terms.items())

    def terms(self, drift_between: float) -> dict[str, float]:
        """Return what the score is the weighted sum of, by the names of the weights."""
        return {
            "spread": self.spread,
            "agreement_if_mixed": self.agreement * (1 - drift_between),
            "classes_if_mixed": self.classes * (1 - drift_between),
            "classes_if_sorted": self.classes * drift_between,
        }


def collect_evidence(probabilities: Floats, others: Sequence[Floats], sizes: Counts) -> Evidence:
    """Return the evidence about one method.

    Args:
        probabilities: Its predictions.
        others: The predictions of other methods.
        sizes: The number of images of each batch.
    """
    return Evidence(
        spread=spread(probabilities),
        agreement=agreement(probabilities, others),
        classes=between_batches(probabilities, sizes),
    )


def estimate_accuracies(
    evidence: Mapping[str, Evidence], judges: Collection[str], drift_between: float
) -> dict[str, float]:
    """Return the accuracy of each method that its evidence supports, from 0 to 1.

    The mean accuracy of the ``judges``, whose predictions are the others' in the evidence, follows from how often
    they agree; a method is as far above it as its score is above the mean score of the judges.
    """
    scores = {name: found.score(drift_between) for name, found in evidence.items()}
    mean_agreement, mean_score = (
        math.fsum(values[name] for name in judges) / len(judges)
        for values in ({name: found.agreement for name, found in evidence.items()}, scores)
    )
    level = 1 - DISAGREEMENT_COST * (1 - mean_agreement)
    return {name: min(max(level + score - mean_score, 0.0), 1.0) for name, score in scores.items()}


def estimate_gain(first: Floats, second: Floats, drift: Floats, sizes: Counts) -> float:
    """Return by how much the first of two methods is estimated more accurate than the second, from -1 to 1 or so.

    Args:
        first: Its predictions.
        second: Those of the other method.
        drift: The drift of each image in each layer, ``(images, layers)``.
        sizes: The number of images of each batch.
    """
    between = drift_between(drift, sizes)
    one, other = (
        collect_evidence(own, [others], sizes).score(between) for own, others in ((first, second), (second, first))
    )
    return one - other


def drift_between(drift: Floats, sizes: Counts) -> float:
    """Return how much of the variety of drift, ``(images, layers)``, lies between batches, from 0 to 1."""
    return max(0.0, between_batches(np.log(np.maximum(drift, np.finfo(np.float64).tiny)), sizes))


def spread(probabilities: Floats) -> float:
    """Return the collision entropy of the classes, in units of the largest there is, at most 1.

    It is minus the logarithm of the probability that two images get the same class, if classes are drawn from
    predictions. Only pairs of different images count: the entropy of the mean prediction is too low for few
    images, and the lower the surer their predictions are.
    """
    images, classes = probabilities.shape
    if classes < 2:
        raise InputError("the model must have at least two classes, or nothing can be told from them, got one.")
    total = probabilities.sum(0)
    same = float(total @ total - (probabilities**2).sum()) / (images * (images - 1))
    return -math.log(max(same, 1 / classes)) / math.log(classes)


def agreement(probabilities: Floats, others: Sequence[Floats]) -> float:
    """Return the probability that one of ``others`` gives the same class, on average over them."""
    return float((probabilities * np.mean(others, axis=0)).sum(1).mean())


def between_batches(values: Floats, sizes: Counts) -> float:
    """Return the part of the variance of ``values``, ``(images, features)``, between batches, less that by chance.

    It is 0 on average if images come in random order, 1 if all images of a batch are alike, and 0 by definition
    if batches cannot be told from images or nothing varies.
    """
    sizes = np.asarray(sizes)
    images, batches = len(values), len(sizes)
    if not 1 < batches < images:
        return 0.0
    centred = values - values.mean(0)
    total = float((centred**2).sum())
    if total == 0:
        return 0.0
    sums = np.add.reduceat(centred, np.cumsum(sizes) - sizes, axis=0)
    explained = float(((sums**2).sum(1) / sizes).sum()) / total
    by_chance = (batches - 1) / (images - 1)
    return (explained - by_chance) / (1 - by_chance)


def classes_per_batch(predicted: NDArray[np.integer], sizes: Counts) -> float:
    """Return the mean number of distinct classes in a batch."""
    batches = np.split(predicted, np.cumsum(sizes)[:-1])
    return float(np.mean([len(np.unique(batch)) for batch in batches]))


def classes_by_chance(predicted: NDArray[np.integer], sizes: Counts) -> float:
    """Return the number of distinct classes in a batch that is expected if images came in random order."""
    counts = np.unique(predicted, return_counts=True)[1]
    images = int(counts.sum())

    def distinct(size: int) -> float:
        # A class of c images is missing if all of the batch are drawn from the other images.
        left = images - size - np.arange(counts.max())
        factors = np.clip(left / (images - np.arange(counts.max())), 0, None)
        missing = np.cumprod(factors)[counts - 1]
        return float((1 - missing).sum())

    return float(np.mean([distinct(int(size)) for size in sizes]))
