"""The clusterings of scikit-learn that the paper compares LFD with, with length scales taken from the batch."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from findtta.options import AtLeastTwo, AtLeastZero, Count, option, require_int
from findtta.partitioners.base import (
    SMALLEST_SCALE,
    HostPartitioner,
    Labels,
    NoisyHostPartitioner,
    Points,
    distances,
    neighbour_scale,
)

NumpySeed = Annotated[int, partial(require_int, low=0, high=2**32 - 1)]  # of the generator of scikit-learn


@dataclass(frozen=True)
class ScikitLearn(HostPartitioner):
    """Runs the estimator of ``sklearn.cluster`` that has the name of the class; subclasses give its arguments."""

    package = "sklearn.cluster"

    def arguments(self, table: Points) -> dict[str, Any]:
        """Return the arguments of the estimator for points with these distances, ``(n, n)``."""
        raise NotImplementedError

    def cluster(self, points: Points) -> Labels:
        table = distances(points)
        arguments = self.arguments(table)
        estimator = getattr(self.library(), type(self).__name__)(**arguments)
        with warnings.catch_warnings():
            # Fewer distinct samples, or fewer groups, than asked for: some groups stay empty, as they should.
            warnings.filterwarnings("ignore", message="Number of (distinct clusters|subclusters found)")
            return estimator.fit_predict(table if arguments.get("metric") == "precomputed" else points)


@dataclass(frozen=True)
class KMeans(ScikitLearn):
    """K-means with k-means++ starts, the one alternative that must be told the number of groups."""

    name = "kmeans"
    library_defaults: ClassVar[Mapping[str, Any]] = {"clusters": 8, "starts": 1, "metric": "euclidean"}

    clusters: Count = option(15, "number of groups, at most one per sample; the paper's streams have 15 domains")
    starts: Count = option(10, "number of runs from different starts, of which the best is kept")
    seed: NumpySeed = option(0, "seed of the starts")

    def arguments(self, table: Points) -> dict[str, Any]:
        count = min(self.clusters, len(table))
        return {"n_clusters": count, "init": "k-means++", "n_init": self.starts, "random_state": self.seed}


@dataclass(frozen=True)
class AgglomerativeClustering(ScikitLearn):
    """Merges groups until the nearest two are too far apart, or until a given number is left."""

    name = "agglomerative"
    library_defaults: ClassVar[Mapping[str, Any]] = {"clusters": 2, "linkage": "ward", "metric": "euclidean"}

    linkage: Literal["average", "complete", "single", "ward"] = option(
        "average", "distance of two groups: 'average', 'complete', 'single' or 'ward'"
    )
    reach: AtLeastZero = option(
        1.5, "largest merging distance, as a multiple of the median nearest-neighbour distance"
    )
    clusters: Count | None = option(None, "number of groups to merge down to instead; None: merge by distance")

    def arguments(self, table: Points) -> dict[str, Any]:
        metric = "euclidean" if self.linkage == "ward" else "precomputed"
        if self.clusters is None:
            until = {"n_clusters": None, "distance_threshold": self.reach * neighbour_scale(table, 1)}
        else:
            until = {"n_clusters": min(self.clusters, len(table))}
        return {"metric": metric, "linkage": self.linkage, **until}


@dataclass(frozen=True)
class Birch(ScikitLearn):
    """Samples are added one by one to a tree of groups of bounded radius, so that their order matters."""

    name = "birch"
    depends_on_order = True
    library_defaults: ClassVar[Mapping[str, Any]] = {"radius": 0.5, "clusters": 3, "metric": "euclidean"}

    radius: AtLeastZero | None = option(
        None, "largest radius of a group; None: the median distance to the nearest sample"
    )
    branching: AtLeastTwo = option(50, "largest number of groups in a node of the tree, at least 2")
    clusters: Count | None = option(None, "number of groups to merge down to afterwards; None: no merging")

    def arguments(self, table: Points) -> dict[str, Any]:
        radius = neighbour_scale(table, 1) if self.radius is None else self.radius
        count = None if self.clusters is None else min(self.clusters, len(table))
        return {
            "threshold": max(radius, SMALLEST_SCALE),
            "branching_factor": self.branching,
            "n_clusters": count,
        }


@dataclass(frozen=True)
class DBSCAN(NoisyHostPartitioner, ScikitLearn):
    """Regions in which every sample has near neighbours; samples in none of them are noise."""

    name = "dbscan"
    library_defaults: ClassVar[Mapping[str, Any]] = {"radius": 0.5, "min_samples": 5, "metric": "euclidean"}

    radius: AtLeastZero | None = option(
        None, "largest distance of neighbours; None: the median distance to the third neighbour"
    )
    min_samples: Count = option(4, "samples within the radius, itself included, that make a sample dense")

    def arguments(self, table: Points) -> dict[str, Any]:
        radius = neighbour_scale(table, 3) if self.radius is None else self.radius
        return {"eps": max(radius, SMALLEST_SCALE), "min_samples": self.min_samples, "metric": "precomputed"}


@dataclass(frozen=True)
class HDBSCAN(NoisyHostPartitioner, ScikitLearn):
    """Dense regions, each at the scale at which it lasts longest; samples in none of them are noise."""

    name = "hdbscan"
    library_defaults: ClassVar[Mapping[str, Any]] = {
        "min_size": 5,
        "min_samples": 5,
        "allow_single": False,
        "metric": "euclidean",
    }

    min_size: AtLeastTwo = option(2, "number of samples in the smallest group, at least 2")
    min_samples: Count = option(1, "number of neighbours, itself included, by which density is measured")
    allow_single: bool = option(True, "whether all samples may form one group")

    def arguments(self, table: Points) -> dict[str, Any]:
        return {
            "min_cluster_size": self.min_size,
            "min_samples": min(self.min_samples, len(table)),
            "allow_single_cluster": self.allow_single,
            "metric": "precomputed",
            "copy": True,
        }
