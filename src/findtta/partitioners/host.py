"""Partitioners that cluster on the CPU, in double precision.

The features of every layer have to be fetched from the device first, so a GPU waits in every layer:
these are for comparison, not for serving.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from findtta.errors import MissingExtraError
from findtta.functional.partition import NORM_FLOOR
from findtta.options import option
from findtta.partitioners.base import Partitioner, is_usable, lowest_members, outside_graphs

Points = NDArray[np.float64]
Labels = NDArray[np.int64]

NOISE = -1
# Identical samples are at distance 0, which is no scale to measure others by.
SMALLEST_SCALE = 1e-9


@dataclass(frozen=True)
class HostPartitioner(Partitioner):
    """Clusters points on the CPU; the samples that are poisoned are left out and stay alone."""

    leaves_device = True
    exportable = False

    metric: str = option(
        "cosine",
        "'cosine': rows scaled to length 1, as LFD compares them; 'euclidean': rows as they are",
    )

    def __post_init__(self) -> None:
        self.require_choice("metric", "cosine", "euclidean")

    def cluster(self, points: Points) -> Labels:
        """Label two or more points, ``(n, C)``; a label of -1 stands for noise."""
        raise NotImplementedError

    def __call__(self, features: Tensor) -> Tensor:
        return outside_graphs(self._label, features)

    def _label(self, features: Tensor) -> Tensor:
        points = features.detach().to("cpu", torch.float64)
        labels = torch.arange(len(points))
        rows = is_usable(points).nonzero().flatten()
        if len(rows) >= 2:
            points = points[rows]
            if self.metric == "cosine":
                points = points / torch.linalg.vector_norm(points, dim=1, keepdim=True).clamp_min(NORM_FLOOR)
            found = torch.from_numpy(self.cluster(points.numpy()).astype(np.int64))
            labels[rows] = rows[lowest_members(found)]
        return labels.to(features.device)


@dataclass(frozen=True)
class NoisyHostPartitioner(HostPartitioner):
    """A clustering that leaves some points out, as noise."""

    noise: str = option("together", "samples that no cluster takes: one group 'together', or each 'alone'")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_choice("noise", "together", "alone")

    def place_noise(self, labels: Labels) -> Labels:
        """Give noise a label, or labels, as the option ``noise`` says."""
        if self.noise == "together":
            return labels
        alone = labels.max() + 1 + np.arange(len(labels))
        return np.where(labels == NOISE, alone, labels)


def import_scikit_learn(name: str) -> Any:
    """Import scikit-learn's clustering module for the partitioner ``name``."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingExtraError(
            f"partitioner {name!r} needs scikit-learn, the 'cluster' extra: pip install \"findtta[cluster]\""
        )
    return importlib.import_module("sklearn.cluster")


def distances(points: Points) -> Points:
    """Euclidean distances between points, ``(n, n)``; exactly 0 between equal ones."""
    rows = torch.from_numpy(points)
    # The quicker way through inner products is off by 1e-8 for points that are equal.
    table: Points = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    return table


def neighbour_scale(table: Points, neighbour: int) -> float:
    """Median distance to the ``neighbour``-th nearest other point: the length scale of a batch."""
    nearest = np.sort(table, axis=1)[:, min(neighbour, len(table) - 1)]
    return max(float(np.median(nearest)), SMALLEST_SCALE)


def connected_components(joined: NDArray[np.bool_]) -> Labels:
    """Label the connected components of a symmetric table of edges, ``(n, n)``, by their lowest index."""
    labels = np.arange(len(joined))
    while True:
        lowest = np.minimum(labels, np.where(joined, labels, len(joined)).min(1))
        lowest = lowest[lowest]
        if np.array_equal(lowest, labels):
            return labels
        labels = lowest
