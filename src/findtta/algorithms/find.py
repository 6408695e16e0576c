"""FIND: split the batch into groups of similar features in every layer, and normalise each group.

Layer-wise feature disentanglement (LFD) makes the groups; feature-aware batch normalisation (FABN)
normalises each with a blend of the source's statistics and its own.

``partitioner`` puts something else in the place of LFD: the clusterings that the paper compares it with
(kmeans, agglomerative, birch, dbscan, hdbscan, rcc, dsets-dbscan), controls that show what the groups
contribute (none, instance, random), or a function of your own. See find-partitioners.md for each of them.
The clusterings compute on the CPU, so that a GPU waits for them in every layer, and cannot be exported.

``variance`` is how the variance of a group is estimated. Equation 4 of the paper is ``"biased"``. The authors'
public code of DYN, an earlier form of FIND without S-FABN (DYW77/DATTA), has two others: ``"unbiased"`` over all
values of the group (commit b7faf06, 2024), and ``"instance-unbiased"`` (3bee755, 2025), the mean of the unbiased
variances of its samples plus the biased variance of their means, with eps added to the size of the group. With the
latter, FIND reproduces the outputs recorded from that code in float64. A single value has variance 0 in all three.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from findtta.algorithms.alpha_bn import AlphaNorm
from findtta.algorithms.base import Adapted
from findtta.errors import OptionError
from findtta.functional import count_groups, group_moments, native, partition
from findtta.functional.moments import Estimator
from findtta.functional.partition import NORM_FLOOR
from findtta.layers.adaptive import AdaptiveNorm
from findtta.options import Fraction, Options, option
from findtta.partitioners import Partitioner, make_partitioner

Partition = Callable[[Tensor], Tensor]


def require_pairs(name: str, value: Any) -> None:
    """Raise ``OptionError`` unless a value is a mapping from option to value, or None."""
    try:
        dict(() if value is None else value)
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be a mapping from option to value, got {value!r}.") from None


@dataclass(frozen=True)
class FINDOptions(Options):
    """Options of FIND."""

    alpha: Fraction = option(
        0.8, "weight of the source statistics: 0 is group statistics only, 1 the source model"
    )
    partitioner: str | Partition = option(
        "first-neighbor",
        "how a batch is split into groups: the name of a partitioner, file.py:NAME, or a function from instance "
        "means (B, C) to labels (B,)",
    )
    partitioner_options: Annotated[Mapping[str, Any] | None, require_pairs] = option(
        None, "options of a partitioner given by name, as a mapping from option to value"
    )
    variance: Estimator = option(
        "biased",
        "estimator of the variance of a group: 'biased' (the paper), 'unbiased' (over all its values) or "
        "'instance-unbiased' (mean of unbiased instance variances plus variance of instance means)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partitioner_options is not None:
            pairs = sorted(dict(self.partitioner_options).items(), key=str)
            object.__setattr__(self, "partitioner_options", tuple(pairs))
        self.make_partitioner()  # so that wrong names and values are found at once

    def make_partitioner(self) -> Partitioner:
        """Build the partitioner that the options name."""
        return make_partitioner(self.partitioner, dict(self.partitioner_options or ()))

    def partition(self) -> Partition:
        """Return what layers call for labels."""
        # The paper's own is a plain function, with nothing around it.
        return partition if self.partitioner == "first-neighbor" else self.make_partitioner()


class FABN(AlphaNorm):
    """Normalises each group of similar samples with a blend of source and group statistics."""

    def __init__(
        self, norm: nn.Module, alpha: float, partition: Partition = partition, variance: Estimator = "biased"
    ) -> None:
        super().__init__(norm, alpha, variance)
        self.partition = partition

    def test_statistics(self, mean: Tensor, variance: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        labels = self.partition(mean)
        self.record(labels=labels)
        return group_moments(mean, variance, labels, self.variance, positions, self.eps)

    def in_one_call(self, features: Tensor, overwrite: bool) -> Tensor | None:
        # What a subclass changes is not in the compiled function, which has the paper's partition and estimator.
        if not self.is_plain() or self.alpha == 1 or self.partition is not partition or self.variance != "biased":
            return None
        if (call := self.prepare_call(features, overwrite)) is None:
            return None
        labels = native.find(call, self.alpha, NORM_FLOOR)
        return None if labels is None else self.finish_call(call, labels=labels)

    def is_plain(self) -> bool:
        """Whether the layer is now nothing but FABN."""
        return type(self) is FABN

    def describe(self) -> dict[str, Any]:
        labels = self.last_batch.get("labels")
        return {"groups": None if labels is None else count_groups(labels), "split": True}


class FIND(Adapted):
    """Feature-based instance neighbour discovery."""

    name = "find"
    summary = "groups of similar features per layer, each normalised with a blend of source and own statistics"
    citation = (
        "Jiang et al., Feature-Based Instance Neighbor Discovery: Advanced Stable Test-Time Adaptation "
        "in Dynamic World, NeurIPS 2025"
    )
    weakness = (
        "Groups are small, so their statistics are noisy: on inputs that have not drifted it costs some "
        "accuracy, and more the lower alpha is. Groups follow the similarity of features, which in deep "
        "layers may mean class rather than drift. In a batch of one each sample is its own group."
    )
    options_type = FINDOptions

    @classmethod
    def depends_on_batch(cls, options: Any) -> bool:
        """Whether with these options a sample's output depends on other samples."""
        # What a subclass adds may depend on them again.
        return cls is not FIND or (options.alpha < 1 and options.make_partitioner().batch_dependent)

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return FABN(norm, self.options.alpha, self.options.partition(), self.options.variance)

    def export_problem(self) -> str | None:
        """Say why the model cannot be exported with the options it has, or return None."""
        partitioner = self.options.make_partitioner()
        if partitioner.exportable:
            return None
        return (
            f"partitioner {partitioner.name!r} cannot be part of a fixed graph: use partitioner='first-neighbor'."
        )
