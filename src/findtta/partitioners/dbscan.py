"""DBSCAN (scikit-learn): groups are regions in which every sample has near neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from findtta.options import option
from findtta.partitioners.host import (
    SMALLEST_SCALE,
    Labels,
    NoisyHostPartitioner,
    Points,
    distances,
    import_scikit_learn,
    neighbour_scale,
)


@dataclass(frozen=True)
class DBSCAN(NoisyHostPartitioner):
    """Dense regions; samples in none of them are noise."""

    name = "dbscan"
    summary = "dense regions at one scale (scikit-learn)"
    library_defaults: ClassVar[Mapping[str, Any]] = {"radius": 0.5, "min_samples": 5, "metric": "euclidean"}

    radius: float | None = option(
        None, "how far neighbours may be; None for the median distance to the third neighbour"
    )
    min_samples: int = option(4, "samples within the radius, itself included, that make a sample dense")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None:
            self.require_at_least_zero("radius")
        self.require_positive_int("min_samples")
        import_scikit_learn(self.name)

    def cluster(self, points: Points) -> Labels:
        table = distances(points)
        radius = neighbour_scale(table, 3) if self.radius is None else self.radius
        library = import_scikit_learn(self.name)
        estimator = library.DBSCAN(
            eps=max(radius, SMALLEST_SCALE), min_samples=self.min_samples, metric="precomputed"
        )
        return self.place_noise(estimator.fit_predict(table))
