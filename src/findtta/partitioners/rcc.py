"""Robust continuous clustering (Shah and Koltun, PNAS 2017).

Every sample has a representative; neighbouring representatives attract each other with a force that
vanishes where they are far apart, and representatives that end up close make a group.

The paper calls this row of its table RccCluster, which is the name of an implementation of this
algorithm, but cites another one (recursive consensus clustering). This is the first of the two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from findtta.options import AtLeastZero, Count, option
from findtta.partitioners.base import HostPartitioner, Labels, Points, distances

EPSILON = 1e-5  # keeps square roots away from 0
NEGLIGIBLE = 0.01  # edges shorter than this, per square root of a channel, say nothing about scale
SHORTEST_SHARE, SHORTEST_MOST = 0.01, 250  # of the edges, to measure the radius by
ROUNDS, ROUNDS_PER_SCALE = 100, 4
CONVERGED = 0.1  # change of the objective
STRONGEST = 1e12  # beyond it the equations are singular in double precision

Edges = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class RobustContinuous(HostPartitioner):
    """Groups of samples whose representatives have moved together."""

    name = "rcc"
    package = "scipy.sparse.csgraph"
    library_defaults: ClassVar[Mapping[str, Any]] = {"neighbours": 10, "threshold": 1.0, "metric": "euclidean"}

    neighbours: Count = option(
        10, "two samples are connected if each is among this many nearest neighbours of the other"
    )
    threshold: AtLeastZero = option(1.0, "representatives closer than this multiple of the radius share a group")

    def cluster(self, points: Points) -> Labels:
        graphs = self.library()
        first, second = edges(distances(points), self.neighbours, graphs)
        representatives, radius = represent(points, (first, second))
        close = _lengths(representatives, (first, second)) <= self.threshold * radius
        joined = np.zeros((len(points), len(points)), dtype=bool)
        joined[first[close], second[close]] = True
        return graphs.connected_components(joined, directed=False)[1]


def edges(table: Points, neighbours: int, graphs: Any) -> Edges:
    """Pairs of mutual nearest neighbours, and a minimum spanning forest of all pairs of nearest neighbours.

    ``table`` holds distances, ``(n, n)``, and ``graphs`` is scipy's module of graph functions. The result is the
    lower and the higher index of every pair.
    """
    others = table.copy()
    np.fill_diagonal(others, np.inf)
    count = min(neighbours, len(table) - 1)
    nearest = np.argsort(others, axis=1, kind="stable")[:, :count]
    points_at = np.zeros(table.shape, dtype=bool)
    np.put_along_axis(points_at, nearest, True, axis=1)
    # Ranks of the distances instead of distances: scipy takes an edge of length 0 for none.
    ranks = np.unique(table, return_inverse=True)[1].reshape(table.shape) + 1
    tree = graphs.minimum_spanning_tree(np.where(points_at | points_at.T, ranks, 0)).toarray() > 0
    first, second = np.nonzero(np.triu((points_at & points_at.T) | tree | tree.T))
    return first, second


def represent(points: Points, pairs: Edges) -> tuple[Points, float]:
    """Move the representatives of points, ``(n, C)``, along the edges until the objective settles.

    Returns the representatives, in ``(n, C)`` or in ``(n, n)`` coordinates if that is less, and the radius below
    which two of them are one.
    """
    degree = np.bincount(np.concatenate(pairs), minlength=len(points))
    weight = degree.mean() / np.sqrt(degree[pairs[0]] * degree[pairs[1]])
    scale, radius = _scale_and_radius(points, pairs)
    # Only lengths matter from here on, and n points have them in n dimensions, too.
    if points.shape[1] > len(points):
        triangle: Any = np.linalg.qr(points.T, mode="r")
        points = triangle.T
    norm = float(np.linalg.norm(points, 2))
    representatives = points
    strength = _strength(norm, _laplacian(weight, pairs, len(points)))
    objective, rounds = math.inf, 0
    for _ in range(ROUNDS):
        pull = (scale / (scale + _lengths(representatives, pairs) ** 2)) ** 2
        laplacian = _laplacian(weight * pull, pairs, len(points))
        representatives = np.linalg.solve(np.eye(len(points)) + strength * laplacian, points).astype(np.float64)
        before = objective
        apart = pull * _lengths(representatives, pairs) ** 2 + scale * (np.sqrt(pull + EPSILON) - 1) ** 2
        objective = 0.5 * float(((points - representatives) ** 2).sum() + strength * (weight @ apart))
        rounds += 1
        if abs(before - objective) >= CONVERGED and rounds < ROUNDS_PER_SCALE:
            continue
        if scale >= radius:
            scale /= 2
        elif rounds == ROUNDS_PER_SCALE:
            scale = radius / 2
        else:
            break
        strength, rounds = _strength(norm, laplacian), 0
    return representatives, radius


def _lengths(points: Points, pairs: Edges) -> Points:
    return np.linalg.norm(points[pairs[0]] - points[pairs[1]], axis=1)


def _scale_and_radius(points: Points, pairs: Edges) -> tuple[float, float]:
    channels = points.shape[1]
    lengths = np.sqrt(_lengths(points, pairs) ** 2 + channels * EPSILON)
    lengths = np.sort(np.where(lengths / math.sqrt(channels) < NEGLIGIBLE, lengths.max(), lengths))
    shortest = min(SHORTEST_MOST, max(1, math.ceil(SHORTEST_SHARE * len(lengths))))
    return 3 * float(lengths[-1]) ** 2, float(lengths[:shortest].mean())


def _laplacian(weight: Points, pairs: Edges, count: int) -> Points:
    table = np.zeros((count, count))
    table[pairs[0], pairs[1]] = table[pairs[1], pairs[0]] = weight
    return np.diag(table.sum(1)) - table


def _strength(norm: float, laplacian: Points) -> float:
    return min(norm / float(np.linalg.eigvalsh(laplacian)[-1]), STRONGEST)
