"""K-means (scikit-learn), the one alternative that must be told the number of groups."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from findtta.errors import OptionError
from findtta.options import option
from findtta.partitioners.host import HostPartitioner, Labels, Points, import_scikit_learn

LARGEST_SEED = 2**32 - 1  # of numpy's generator, which scikit-learn uses


@dataclass(frozen=True)
class KMeans(HostPartitioner):
    """K-means with k-means++ starts."""

    name = "kmeans"
    summary = "K-means with a given number of groups (scikit-learn)"
    library_defaults: ClassVar[Mapping[str, Any]] = {"clusters": 8, "starts": 1, "metric": "euclidean"}

    clusters: int = option(15, "number of groups, at most one per sample; the paper's streams have 15 domains")
    starts: int = option(10, "runs from different starts, of which the best is kept")
    seed: int = option(0, "of the starts")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive_int("clusters")
        self.require_positive_int("starts")
        self.require_seed("seed")
        if self.seed > LARGEST_SEED:
            raise OptionError(f"seed must be at most {LARGEST_SEED}, got {self.seed}.")
        import_scikit_learn(self.name)

    def cluster(self, points: Points) -> Labels:
        library = import_scikit_learn(self.name)
        count = min(self.clusters, len(points))
        estimator = library.KMeans(count, init="k-means++", n_init=self.starts, random_state=self.seed)
        with warnings.catch_warnings():
            # Fewer distinct samples than groups: some groups stay empty, and that is well.
            warnings.filterwarnings("ignore", message="Number of distinct clusters")
            labels: Labels = estimator.fit_predict(points)
        return labels
