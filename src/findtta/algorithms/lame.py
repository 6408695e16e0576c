"""LAME: predictions of images that look alike to the model are drawn together, and nothing else is changed.

Boudiaf et al., Parameter-free Online Test-time Adaptation, CVPR 2022. The assignments ``z`` of a batch minimise
their divergence from the model's probabilities ``p`` plus a Laplacian term over the affinities ``w`` of its
features, by the concave-convex procedure: ``z_i`` becomes proportional to ``p_i exp(sum_j w_ij z_j)`` until the
energy changes by less than ``tolerance``. The defaults are the authors'.

Alone it works on the source model; ``find+lame`` works on the outputs of FIND, and so with every method that
normalises without gradients. Outputs are logarithms of ``z``, whose softmax is ``z``. An image that is not finite
has no affinity to the others, and keeps the output that the model gives it.

Differences from the authors: where images are equal, as in a batch of one, the bandwidth is at least 0.001 (theirs
is 0, and gives NaN); neighbours as far as the last one count too (knn). All iterations are computed, and a batch
that has converged stays as it is, so that nothing waits for the device.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.algorithms.outputs import OutputAdapted, OutputOptions
from findtta.options import AtLeastZero, Count, option

PROBABILITY_FLOOR = 1e-10
LEAST_BANDWIDTH = 1e-3  # far above the rounding of distances, far below those of different images


@dataclass(frozen=True)
class LAMEOptions(OutputOptions):
    """Options of LAME."""

    affinity: Literal["rbf", "knn", "linear"] = option(
        "rbf",
        "affinity of two images: 'rbf' (Gaussian of their distance), 'knn' (1 for nearest neighbours) or 'linear' "
        "(cosine)",
    )
    neighbours: Count = option(
        5,
        "neighbours of an image for 'knn'; for 'rbf' its bandwidth is the mean distance to the last of them, "
        "the image counted as the first",
    )
    iterations: Count = option(100, "most iterations for one batch")
    tolerance: AtLeastZero = option(1e-8, "relative change of the energy at which a batch has converged")


class LAME(OutputAdapted):
    """Laplacian adjusted maximum-likelihood estimation."""

    name = "lame"
    summary = "predictions of a batch drawn together where features are alike; also after others: find+lame"
    citation = "Boudiaf et al., Parameter-free Online Test-time Adaptation, CVPR 2022"
    weakness = (
        "It takes neighbours for images of one class. That is strong on correlated streams, whose batches hold "
        "few classes (sorted by class, videos). On mixed i.i.d. streams it is below the source model, and far "
        "below with many classes: neighbours share a corruption there, and the batch is drawn to few classes."
    )
    options_type = LAMEOptions
    batch_dependent = True

    def adjust(self, features: Tensor, logits: Tensor, usable: Tensor) -> Tensor:
        options = self.options
        affinity = affinities(features, usable, options.affinity, options.neighbours)
        return laplacian_adjustment(logits, affinity, usable, options.iterations, options.tolerance)


def affinities(features: Tensor, usable: Tensor, kind: str, neighbours: int) -> Tensor:
    """Return the affinity of every two images of a batch, ``(B, B)``; 0 to those that are not usable."""
    features = F.normalize(features, dim=1)
    if kind == "linear":
        return features @ features.T  # features of the others are 0
    itself = torch.eye(features.shape[0], dtype=torch.bool, device=features.device)
    squared = (2 - 2 * features @ features.T).clamp_min(0).masked_fill(itself, 0)
    distance = squared.sqrt().masked_fill(~usable, torch.inf)
    nearest, count = distance.sort(1).values, usable.sum()
    if kind == "knn":
        near = distance <= _nth(nearest, count, neighbours + 1)
        return (near & usable & ~itself).to(features.dtype)
    bandwidth = (_nth(nearest, count, neighbours)[:, 0] * usable).sum() / count
    return torch.exp(-0.5 * (distance / bandwidth.clamp_min(LEAST_BANDWIDTH)).square())


def _nth(nearest: Tensor, count: Tensor, n: int) -> Tensor:
    """Return the n-th of each row of sorted distances, ``(B, 1)``; the last of the count if there are fewer."""
    return nearest.index_select(1, (count.clamp(1, n) - 1)[None])


def laplacian_adjustment(
    logits: Tensor, affinity: Tensor, usable: Tensor, iterations: int = 100, tolerance: float = 1e-8
) -> Tensor:
    """Return logarithms of LAME's assignments.

    Args:
        logits: Logits, ``(B, K)``.
        affinity: Affinities, ``(B, B)``; 0 to images that are not usable.
        usable: Which images count, ``(B,)``.
        iterations: Most iterations.
        tolerance: Relative change of the energy at which the assignments stay as they are.

    Returns:
        Logarithms of probabilities, ``(B, K)``.
    """
    unary = (logits.softmax(1) + PROBABILITY_FLOOR).log()
    counted, converged = usable.to(unary.dtype), torch.zeros_like(usable[0])
    exponent, energy = unary, counted[0]
    for iteration in range(iterations):
        exponent = torch.where(converged, exponent, torch.addmm(unary, affinity, exponent.softmax(1)))
        # The negative energy of the assignments softmax(exponent): all else cancels.
        before, energy = energy, exponent.logsumexp(1) @ counted
        if iteration > 1:  # as the authors, not before the third
            converged = converged | ((energy - before).abs() <= tolerance * before.abs())
    return exponent.log_softmax(1)
