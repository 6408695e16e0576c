"""Partitioners that cluster on the CPU, in double precision.

The features of every layer have to be fetched from the device first, so a GPU waits in every layer:
these are for comparison, not for serving.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from findtta._extras import require
from findtta.functional.partition import NORM_FLOOR
from findtta.options import option
from findtta.partitioners.base import Partitioner, is_usable, lowest_members

Points = NDArray[np.float64]
Labels = NDArray[np.int64]

NOISE = -1
SMALLEST_SCALE = 1e-9  # identical samples have distance 0, which cannot serve as a length scale


@dataclass(frozen=True)
class HostPartitioner(Partitioner):
    """Clusters points on the CPU; poisoned samples are left out and stay alone."""

    exportable = False
    #: The package that it clusters with, of the extra ``cluster``.
    package: ClassVar[str | None] = None

    metric: Literal["cosine", "euclidean"] = option(
        "cosine",
        "'cosine': distances after scaling to length 1, as LFD compares samples; 'euclidean': without scaling",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.package is not None:
            self.library()  # so that a missing package is found at once

    def library(self) -> Any:
        """Import the package that it clusters with."""
        return require(str(self.package), "cluster", f"partitioner {self.name!r}")

    def cluster(self, points: Points) -> Labels:
        """Label two or more points, ``(n, C)``; samples with the label -1, noise, belong to no cluster."""
        raise NotImplementedError

    def place_noise(self, labels: Labels) -> Labels:
        """Give noise one label or several; by default it is one group."""
        return labels

    def label(self, features: Tensor) -> Tensor:
        points = features.detach().to("cpu", torch.float64)
        labels = torch.arange(len(points))
        rows = is_usable(points).nonzero().flatten()
        if len(rows) >= 2:
            points = points[rows]
            if self.metric == "cosine":
                points = points / torch.linalg.vector_norm(points, dim=1, keepdim=True).clamp_min(NORM_FLOOR)
            found = self.place_noise(self.cluster(points.numpy()).astype(np.int64))
            labels[rows] = rows[lowest_members(torch.from_numpy(found))]
        return labels.to(features.device)


@dataclass(frozen=True)
class NoisyHostPartitioner(HostPartitioner):
    """A clustering that leaves some points out, as noise."""

    noise: Literal["together", "alone"] = option(
        "together", "samples that belong to no cluster: one group 'together', or each 'alone'"
    )

    def place_noise(self, labels: Labels) -> Labels:
        if self.noise == "together":
            return labels
        alone = labels.max() + 1 + np.arange(len(labels))
        return np.where(labels == NOISE, alone, labels)


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
