"""Birch (scikit-learn): samples are added one by one to a tree of groups of bounded radius."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from findtta.errors import OptionError
from findtta.options import option
from findtta.partitioners.host import (
    SMALLEST_SCALE,
    HostPartitioner,
    Labels,
    Points,
    distances,
    import_scikit_learn,
    neighbour_scale,
)


@dataclass(frozen=True)
class Birch(HostPartitioner):
    """Groups no wider than a radius; the order of the samples matters."""

    name = "birch"
    summary = "a tree of groups of bounded radius (scikit-learn)"
    library_defaults: ClassVar[Mapping[str, Any]] = {"radius": 0.5, "clusters": 3, "metric": "euclidean"}

    radius: float | None = option(
        None, "largest radius of a group; None for the median distance to the nearest sample"
    )
    branching: int = option(50, "largest number of groups in a node of the tree, at least 2")
    clusters: int | None = option(None, "merge down to this number of groups afterwards; None for not")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None:
            self.require_at_least_zero("radius")
        if self.clusters is not None:
            self.require_positive_int("clusters")
        self.require_positive_int("branching")
        if self.branching < 2:
            raise OptionError(f"branching must be at least 2, got {self.branching}.")
        import_scikit_learn(self.name)

    def cluster(self, points: Points) -> Labels:
        radius = neighbour_scale(distances(points), 1) if self.radius is None else self.radius
        estimator = import_scikit_learn(self.name).Birch(
            threshold=max(radius, SMALLEST_SCALE),
            branching_factor=self.branching,
            n_clusters=None if self.clusters is None else min(self.clusters, len(points)),
        )
        with warnings.catch_warnings():
            # Fewer groups than asked for: there was nothing to merge, and that is well.
            warnings.filterwarnings("ignore", message="Number of subclusters found")
            labels: Labels = estimator.fit_predict(points)
        return labels
