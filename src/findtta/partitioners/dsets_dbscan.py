"""DSets-DBSCAN (Hou, Gao and Li, TIP 2016): dominant sets, each extended by DBSCAN at its own scale.

Unlike in the authors' code a sample keeps the first group it gets, and one that is reached but not
dense does not bring its neighbours along.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from findtta.options import AtLeastZero, Count, option
from findtta.partitioners.base import NOISE, Labels, NoisyHostPartitioner, Points, distances

BINS = 100
MOST_STEPS = 1000

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class DSetsDBSCAN(NoisyHostPartitioner):
    """Dominant sets of the graph of similarities, one after the other, each extended to its border."""

    name = "dsets-dbscan"

    min_points: Count = option(3, "number of neighbours that make a sample dense")
    tolerance: AtLeastZero = option(
        1e-4, "distance from the equilibrium at which the search for a dominant set stops"
    )

    def cluster(self, points: Points) -> Labels:
        table = distances(points)
        if not table.any():
            return np.zeros(len(points), dtype=np.int64)  # all the same: there is no length scale
        similarity = equalize(np.exp(-table / table.mean()))
        with np.errstate(divide="ignore"):
            dissimilarity = -np.log(similarity)
        np.fill_diagonal(similarity, 0)
        labels = np.full(len(points), NOISE)
        while (labels == NOISE).sum() > self.min_points + 1 or not (labels != NOISE).any():
            free = labels == NOISE
            members = dominant_set(np.where(free[:, None] & free, similarity, 0), free, self.tolerance)
            if members.sum() <= self.min_points:
                break
            labels[extend(members, dissimilarity, free, self.min_points)] = labels.max() + 1
        return labels


def equalize(similarity: Points) -> Points:
    """Equalise the histogram (of 100 bins) of a symmetric table of similarities, ``(n, n)``; 1 on the diagonal."""
    pairs = ~np.eye(len(similarity), dtype=bool)
    values = similarity[pairs]
    width = values.max() - values.min()
    position = (values - values.min()) / (width if width > 0 else 1.0)
    bins = np.minimum((position * BINS).astype(np.int64), BINS - 1)
    above = np.cumsum(np.bincount(bins, minlength=BINS)) / len(values)
    below = np.concatenate([[0.0], above[:-1]])
    lowest, highest = np.full(BINS, np.inf), np.full(BINS, -np.inf)
    np.minimum.at(lowest, bins, values)
    np.maximum.at(highest, bins, values)
    occupied = (highest - lowest)[bins]
    within = np.where(occupied > 0, (values - lowest[bins]) / np.where(occupied > 0, occupied, 1), 0.5)
    result = np.ones_like(similarity)
    result[pairs] = below[bins] + within * (above - below)[bins]
    return result


def dominant_set(similarity: Points, free: Mask, tolerance: float) -> Mask:
    """Find a set of samples more similar to each other than to the rest, by infection and immunisation.

    ``similarity``, ``(n, n)``, is 0 on the diagonal and beyond the ``free`` samples, of which the set may consist.
    The search ends within ``tolerance`` of an equilibrium.
    """
    share = free / free.sum()
    for _ in range(MOST_STEPS):
        payoff = similarity @ share
        gain = payoff - share @ payoff
        if np.linalg.norm(np.minimum(share, -gain)) < tolerance:
            break
        best = int(gain.argmax())
        worst = int(np.where(share > 0, gain, np.inf).argmin())
        immunise = -gain[worst] > gain[best]
        changed = worst if immunise else best
        # The longest step: until the sample is the whole set, or has left it.
        limit = share[worst] / (share[worst] - 1) if immunise else 1.0
        curvature = -payoff[changed] - gain[changed]
        step = limit
        if curvature < 0:
            step = max(limit, -gain[changed] / curvature) if immunise else min(limit, -gain[changed] / curvature)
        removed = immunise and step == limit
        share = (1 - step) * share
        share[changed] = 0.0 if removed else share[changed] + step
        share /= share.sum()
    return share > 0


def extend(members: Mask, dissimilarity: Points, free: Mask, min_points: int) -> Mask:
    """Add to the members of a dominant set the free samples that are reached through dense samples.

    ``dissimilarity``, ``(n, n)``, is 0 on the diagonal; ``min_points`` neighbours make a sample dense.
    """
    inside = np.sort(dissimilarity[np.ix_(members, members)], axis=1)
    within = dissimilarity <= inside[:, min_points].max()  # column 0 is the sample itself
    dense = within.sum(1) > min_points
    while True:
        reached = members | (within[members & dense].any(0) & free)
        if np.array_equal(reached, members):
            return members
        members = reached
