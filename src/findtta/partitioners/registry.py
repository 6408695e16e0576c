"""The one list of partitioners, and how a name, or a function, becomes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from findtta.errors import OptionError, UnknownNameError, close_matches
from findtta.partitioners.base import Partitioner
from findtta.partitioners.custom import Custom

# Imported only when used.
BUILT_IN: dict[str, str] = {
    "first-neighbor": "findtta.partitioners.first_neighbor:FirstNeighbor",
    "none": "findtta.partitioners.none:WholeBatch",
    "instance": "findtta.partitioners.instance:Instance",
    "random": "findtta.partitioners.random:Random",
    "kmeans": "findtta.partitioners.kmeans:KMeans",
    "agglomerative": "findtta.partitioners.agglomerative:Agglomerative",
    "birch": "findtta.partitioners.birch:Birch",
    "dbscan": "findtta.partitioners.dbscan:DBSCAN",
    "hdbscan": "findtta.partitioners.hdbscan:HDBSCAN",
    "rcc": "findtta.partitioners.rcc:RobustContinuous",
    "dsets-dbscan": "findtta.partitioners.dsets_dbscan:DSetsDBSCAN",
}


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
        return _build(partitioner, given)
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


def _build(name: str, given: dict[str, Any]) -> Partitioner:
    partitioner = _load(name)
    known = {field.name: field for field in dataclasses.fields(partitioner)}
    for option in given:
        if option not in known:
            raise UnknownNameError(
                f"partitioner {name!r} has no option {option!r}.{close_matches(str(option), known)}"
                + (f" Its options are {', '.join(known)}." if known else " It has no options.")
            )
    return partitioner(**given)


def _load(name: str) -> type[Partitioner]:
    if name not in BUILT_IN:
        raise UnknownNameError(
            f"partitioner must be one of {', '.join(BUILT_IN)}, or a function, got {name!r}."
            f"{close_matches(name, BUILT_IN)}"
        )
    module_name, _, class_name = BUILT_IN[name].partition(":")
    partitioner: type[Partitioner] = getattr(import_module(module_name), class_name)
    return partitioner
