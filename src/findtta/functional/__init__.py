"""Pure tensor functions: every equation of the paper, with shapes, and no state."""

from findtta.functional.information import gaussian_kl, layer_score, nmi, normalize_scores, purity, softmax_entropy
from findtta.functional.moments import batch_moments, group_moments, instance_aware_moments, instance_moments
from findtta.functional.normalize import blend, normalize
from findtta.functional.partition import components, count_groups, first_neighbours, partition
from findtta.functional.soft import (
    class_guard,
    common_share,
    drift_gate,
    in_source_units,
    log_drift,
    soft_neighbours,
    weighted_moments,
)

__all__ = [
    "batch_moments",
    "blend",
    "class_guard",
    "common_share",
    "components",
    "count_groups",
    "drift_gate",
    "first_neighbours",
    "gaussian_kl",
    "group_moments",
    "in_source_units",
    "instance_aware_moments",
    "instance_moments",
    "layer_score",
    "log_drift",
    "nmi",
    "normalize",
    "normalize_scores",
    "partition",
    "purity",
    "soft_neighbours",
    "softmax_entropy",
    "weighted_moments",
]
