"""What every partitioner has in common, the list of all of them, and how a name or a function becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar

import torch
from torch import Tensor

from findtta.errors import OptionError
from findtta.options import Options, make_options, require_known

# Imported only when used.
BUILT_IN: dict[str, str] = {
    "first-neighbor": "findtta.partitioners.first_neighbor:FirstNeighbor",
    "none": "findtta.partitioners.first_neighbor:WholeBatch",
    "instance": "findtta.partitioners.first_neighbor:Instance",
    "random": "findtta.partitioners.first_neighbor:Random",
    "kmeans": "findtta.partitioners.scikit_learn:KMeans",
    "agglomerative": "findtta.partitioners.scikit_learn:Agglomerative",
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
    summary: ClassVar[str]
    #: Whether it can be part of a fixed graph.
    exportable: ClassVar[bool] = True
    #: Settings with which it behaves like its library with default arguments.
    library_defaults: ClassVar[Mapping[str, Any]] = {}

    def __call__(self, features: Tensor) -> Tensor:
        """Label the samples of a batch.

        Args:
            features: Instance means of one layer, ``(B, C)``.

        Returns:
            Labels, int64 ``(B,)``, on the device of ``features``.
        """
        label = self.label
        if not self.exportable and torch.compiler.is_compiling():
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
    summary = "a function of your own"

    function: Callable[[Tensor], Tensor]

    @property
    def exportable(self) -> bool:  # type: ignore[override]
        """Whether the function has a true attribute ``exportable``: it can be part of a fixed graph."""
        return bool(getattr(self.function, "exportable", False))

    def __call__(self, features: Tensor) -> Tensor:
        labels: object = self.function(features)
        batch = features.shape[0]
        expected = f"partitioner must return a tensor of {batch} whole numbers, one label per sample"
        if not isinstance(labels, Tensor):
            raise OptionError(f"{expected}, but returned a {type(labels).__name__}.")
        if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
            raise OptionError(f"{expected}, but returned {labels.dtype}. Convert the labels with .long().")
        if labels.shape != (batch,):
            raise OptionError(f"{expected}, shape ({batch},), but returned shape {tuple(labels.shape)}.")
        return isolate_poisoned(labels.to(features.device), features)


def partitioner_names() -> list[str]:
    """Names of all partitioners, without importing them."""
    return list(BUILT_IN)


def partitioners() -> dict[str, type[Partitioner]]:
    """Return the classes of all partitioners by name."""
    return {name: _load(name) for name in BUILT_IN}


def make_partitioner(
    partitioner: str | Callable[[Tensor], Tensor], options: Mapping[str, Any] | None = None
) -> Partitioner:
    """Make a partitioner from its name and options, or from a function.

    Args:
        partitioner: A name (see :func:`partitioner_names`), or a function from features ``(B, C)`` to
            whole numbers ``(B,)``, equal for samples of one group.
        options: Options of a partitioner given by name; the others keep their defaults.

    Raises:
        UnknownNameError: If there is no such partitioner or option.
        OptionError: If an option has a value it does not accept.
        MissingExtraError: If it needs a package that is not installed.

    Example:
        >>> import torch
        >>> make_partitioner("instance")(torch.randn(3, 8))
        tensor([0, 1, 2])
    """
    given = dict(options or {})
    if isinstance(partitioner, str):
        return make_options(f"partitioner {partitioner!r}", _load(partitioner), given)
    if not callable(partitioner) or isinstance(partitioner, type):
        raise OptionError(
            f"partitioner must be a name or a function of features, got {partitioner!r}. The names "
            f"are {', '.join(BUILT_IN)}."
        )
    if given:
        raise OptionError(
            f"partitioner_options must be left out where 'partitioner' is a function, got {given!r}. "
            "Bind them to the function (functools.partial)."
        )
    return partitioner if isinstance(partitioner, Partitioner) else Custom(partitioner)


def _load(name: str) -> type[Partitioner]:
    require_known("partitioner", name, BUILT_IN)
    partitioner: type[Partitioner] = resolve_name(BUILT_IN[name])
    return partitioner


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
