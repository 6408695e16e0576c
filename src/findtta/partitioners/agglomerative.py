"""Agglomerative clustering (scikit-learn), which merges the nearest groups up to a distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from findtta.options import option
from findtta.partitioners.host import (
    HostPartitioner,
    Labels,
    Points,
    distances,
    import_scikit_learn,
    neighbour_scale,
)


@dataclass(frozen=True)
class Agglomerative(HostPartitioner):
    """Merges groups until the nearest two are too far apart, or until a given number is left."""

    name = "agglomerative"
    summary = "nearest groups merged up to a distance (scikit-learn)"
    library_defaults: ClassVar[Mapping[str, Any]] = {"clusters": 2, "linkage": "ward", "metric": "euclidean"}

    linkage: str = option("average", "distance of two groups: 'average', 'complete', 'single' or 'ward'")
    reach: float = option(1.5, "merge up to this many median nearest-neighbour distances")
    clusters: int | None = option(None, "merge down to this number of groups instead; None for a distance")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_choice("linkage", "average", "complete", "single", "ward")
        self.require_at_least_zero("reach")
        if self.clusters is not None:
            self.require_positive_int("clusters")
        import_scikit_learn(self.name)

    def cluster(self, points: Points) -> Labels:
        table = distances(points)
        if self.clusters is None:
            until = {"n_clusters": None, "distance_threshold": self.reach * neighbour_scale(table, 1)}
        else:
            until = {"n_clusters": min(self.clusters, len(points))}
        metric = "euclidean" if self.linkage == "ward" else "precomputed"
        library = import_scikit_learn(self.name)
        estimator = library.AgglomerativeClustering(metric=metric, linkage=self.linkage, **until)
        labels: Labels = estimator.fit_predict(points if self.linkage == "ward" else table)
        return labels
