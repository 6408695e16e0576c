"""HDBSCAN (scikit-learn): dense regions, each at the scale at which it lasts longest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from findtta.errors import OptionError
from findtta.options import option
from findtta.partitioners.host import Labels, NoisyHostPartitioner, Points, distances, import_scikit_learn


@dataclass(frozen=True)
class HDBSCAN(NoisyHostPartitioner):
    """Dense regions at all scales; samples in none of them are noise."""

    name = "hdbscan"
    summary = "dense regions at all scales (scikit-learn)"
    library_defaults: ClassVar[Mapping[str, Any]] = {
        "min_size": 5,
        "min_samples": 5,
        "allow_single": False,
        "metric": "euclidean",
    }

    min_size: int = option(2, "samples in the smallest group, at least 2")
    min_samples: int = option(1, "neighbours, itself included, by which density is measured")
    allow_single: bool = option(True, "whether all samples may form one group")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive_int("min_size")
        self.require_positive_int("min_samples")
        self.require_flag("allow_single")
        if self.min_size < 2:
            raise OptionError(f"min_size must be at least 2, got {self.min_size}.")
        import_scikit_learn(self.name)

    def cluster(self, points: Points) -> Labels:
        estimator = import_scikit_learn(self.name).HDBSCAN(
            min_cluster_size=self.min_size,
            min_samples=min(self.min_samples, len(points)),
            allow_single_cluster=self.allow_single,
            metric="precomputed",
            copy=True,
        )
        return self.place_noise(estimator.fit_predict(distances(points)))
