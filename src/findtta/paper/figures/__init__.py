"""The figures of the paper, one module each, with an ``ITEM``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: The module of each figure by its id, in the order of the paper. Drawings of the method itself (figures 1 and 5)
#: have none; ``alpha`` is a sweep that the paper announces and does not show.
FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "gain-and-gradient": "findtta.paper.figures.gain_and_gradient",
        "tsne": "findtta.paper.figures.tsne",
        "domains-and-batch": "findtta.paper.figures.domains_and_batch",
        "threshold": "findtta.paper.figures.threshold",
        "batch-size": "findtta.paper.figures.batch_size",
        "corruptions": "findtta.paper.figures.corruptions",
        "scenarios": "findtta.paper.figures.scenarios",
        "sensitivity": "findtta.paper.figures.sensitivity",
        "threshold-more": "findtta.paper.figures.threshold_more",
        "group-counts": "findtta.paper.figures.group_counts",
        "distance": "findtta.paper.figures.distance",
        "wings": "findtta.paper.figures.wings",
        "batch-size-all": "findtta.paper.figures.batch_size_all",
        "alpha": "findtta.paper.figures.alpha",
    }
)
