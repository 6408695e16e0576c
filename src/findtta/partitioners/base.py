"""What every partitioner has in common, the list of all of them, and how a name or a function becomes one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from findtta._extras import require
from findtta.errors import OptionError
from findtta.functional.graph_mode import traced
from findtta.functional.partition import NORM_FLOOR
from findtta.options import Options, make_options, option
from findtta.plugins import Kind, takes

Points = NDArray[np.float64]
Labels = NDArray[np.int64]

WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NOISE = -1
SMALLEST_SCALE = 1e-9  # identical samples have distance 0, which cannot serve as a length scale

# Imported only when used.
BUILT_IN: dict[str, str] = {
    "first-neighbor": "findtta.partitioners.first_neighbor:FirstNeighbor",
    "none": "findtta.partitioners.first_neighbor:WholeBatch",
    "instance": "findtta.partitioners.first_neighbor:Instance",
    "random": "findtta.partitioners.first_neighbor:Random",
    "kmeans": "findtta.partitioners.scikit_learn:KMeans",
    "agglomerative": "findtta.partitioners.scikit_learn:AgglomerativeClustering",
    "birch": "findtta.partitioners.scikit_learn:Birch",
    "dbscan": "findtta.partitioners.scikit_learn:DBSCAN",
    "hdbscan": "findtta.partitioners.scikit_learn:HDBSCAN",
    "rcc": "findtta.partitioners.rcc:RobustContinuous",
    "dsets-dbscan": "findtta.partitioners.dsets_dbscan:DSetsDBSCAN",
}


@dataclass(frozen=True)
class Partitioner(Options):
    """A pure function from features to labels, whose settings are its fields.

    Labels name a group by the index of one of its members, so that they lie in ``0 .. B-1``. A sample
    whose features are not all finite forms a group of its own.
    """

    name: ClassVar[str]
    #: Whether it can be part of a fixed graph.
    exportable: ClassVar[bool] = True
    #: Whether the group of a sample depends on the other samples.
    batch_dependent: ClassVar[bool] = True
    #: Whether the groups of the same samples in another order are others.
    depends_on_order: ClassVar[bool] = False
    #: Settings with which it behaves like its library with default arguments.
    library_defaults: ClassVar[Mapping[str, Any]] = {}

    def __call__(self, features: Tensor) -> Tensor:
        """Return labels, int64 ``(B,)``, of the samples of a batch, by their means in one layer, ``(B, C)``."""
        label = self.label
        if not self.exportable and traced():
            # A compiled graph cannot hold it; compilation resumes after it. Not as a decorator: that would
            # import the compiler, which takes seconds, for everybody.
            label = torch.compiler.disable(label)
        return label(features)

    def label(self, features: Tensor) -> Tensor:
        """Do what :meth:`__call__` promises."""
        raise NotImplementedError


@dataclass(frozen=True)
class Custom(Partitioner):
    """Calls a function of the user's for labels, which may be any whole numbers; they are checked and renamed."""

    name = "custom"

    function: Callable[[Tensor], Tensor]

    @property
    def exportable(self) -> bool:  # type: ignore[override]
        """Whether the function has a true attribute ``exportable``: it can be part of a fixed graph."""
        return bool(getattr(self.function, "exportable", False))

    def __call__(self, features: Tensor) -> Tensor:
        labels: object = self.function(features)
        batch = features.shape[0]
        if not isinstance(labels, Tensor) or labels.dtype not in WHOLE_NUMBERS or labels.shape != (batch,):
            kind = getattr(labels, "dtype", type(labels).__name__)
            came = f"{kind} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else f"a {kind}"
            raise OptionError(
                f"partitioner must return a tensor of {batch} whole numbers, one label per sample (convert them "
                f"with .long()), but returned {came}."
            )
        return isolate_poisoned(labels.to(features.device), features)


@dataclass(frozen=True)
class HostPartitioner(Partitioner):
    """Clusters points on the CPU, in double precision; poisoned samples are left out and stay alone.

    Features have to be fetched from the device, so a GPU waits in every layer: for comparison, not for serving.
    """

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


PARTITIONER = Kind(
    "partitioner",
    BUILT_IN,
    "a subclass of findtta.partitioners.Partitioner or a function of features",
    lambda found: (
        issubclass(found, Partitioner)
        if isinstance(found, type)
        else isinstance(found, Partitioner) or takes(found, 1)
    ),
)


def partitioner_names() -> list[str]:
    """Names of all partitioners, without importing them."""
    return PARTITIONER.names()


def partitioners() -> dict[str, Any]:
    """Return the classes of all partitioners by name; those of other packages may be functions."""
    return PARTITIONER.available()


def make_partitioner(
    partitioner: str | Callable[[Tensor], Tensor], options: Mapping[str, Any] | None = None
) -> Partitioner:
    """Make a partitioner from its name (see :func:`partitioner_names`) and options, or from a function.

    A name may be ``file.py:NAME``, of a subclass of :class:`Partitioner` or of a function. A function takes
    features ``(B, C)`` and returns whole numbers ``(B,)``, equal for samples of one group. If a partitioner needs
    a package that is not installed, ``MissingExtraError`` is raised.

    Example:
        >>> import torch
        >>> make_partitioner("instance")(torch.randn(3, 8))
        tensor([0, 1, 2])
    """
    given = dict(options or {})
    if isinstance(partitioner, str):
        found = PARTITIONER.load(partitioner)
        if isinstance(found, type):
            return make_options(f"partitioner {partitioner!r}", found, given)
        partitioner = found
    if not callable(partitioner) or isinstance(partitioner, type):
        raise OptionError(
            f"partitioner must be a name, file.py:NAME or a function of features, got {partitioner!r}. The names "
            f"are {', '.join(BUILT_IN)}."
        )
    if given:
        raise OptionError(
            f"partitioner_options must be left out where 'partitioner' is a function, got {given!r}. "
            "Bind them to the function (functools.partial), or make it a subclass of Partitioner with options."
        )
    return partitioner if isinstance(partitioner, Partitioner) else Custom(partitioner)


def is_usable(features: Tensor) -> Tensor:
    """Tell which rows of ``features``, ``(B, C)``, hold finite numbers only: bool ``(B,)``."""
    return features.isfinite().all(1)


def lowest_members(labels: Tensor) -> Tensor:
    """Rename groups, any whole numbers ``(B,)``: each sample gets the index of the first sample of its group."""
    index = torch.arange(labels.shape[0], device=labels.device)
    ordered, order = labels.sort(stable=True)
    begins = (index == 0) | (ordered != ordered.roll(1))
    # The last position, so far, at which a label began.
    first = order[torch.where(begins, index, 0).cummax(0).values]
    return torch.zeros_like(index).scatter(0, order, first)


def isolate_poisoned(labels: Tensor, features: Tensor) -> Tensor:
    """Put every sample that is not :func:`is_usable` into a group of its own; rename as :func:`lowest_members`."""
    index = torch.arange(labels.shape[0], device=labels.device)
    alone = index + labels.shape[0]  # larger than every label after renaming
    return lowest_members(torch.where(is_usable(features), lowest_members(labels), alone))


def distances(points: Points) -> Points:
    """Euclidean distances between points, ``(n, n)``; exactly 0 between equal ones."""
    rows = torch.from_numpy(points)
    # The quicker way through inner products is off by 1e-8 for points that are equal.
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").numpy()


def neighbour_scale(table: Points, neighbour: int) -> float:
    """Median distance to the ``neighbour``-th nearest other point: the length scale of a batch."""
    nearest = np.sort(table, axis=1)[:, min(neighbour, len(table) - 1)]
    return max(float(np.median(nearest)), SMALLEST_SCALE)
