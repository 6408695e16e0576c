"""The one list of items, in the order of the paper, and how a name becomes one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from findtta.errors import UnknownNameError, close_matches
from findtta.paper.figures import FIGURES
from findtta.paper.items import Item
from findtta.paper.numbers import SIDE_BY_SIDE

# Each module has an ITEM, and is imported only when used.
TABLES: Mapping[str, str] = MappingProxyType(
    {
        "main-resnet50": "findtta.paper.tables.main_resnet50",
        "main-efficientvit": "findtta.paper.tables.main_efficientvit",
        "clustering": "findtta.paper.tables.clustering",
        "efficiency": "findtta.paper.tables.efficiency",
        "ablation": "findtta.paper.tables.ablation",
        "domains": "findtta.paper.tables.domains",
        "resnet26": "findtta.paper.tables.resnet26",
        "static": "findtta.paper.tables.static",
        "wild-0.1": "findtta.paper.tables.wild_0_1",
        "wild-0.01": "findtta.paper.tables.wild_0_01",
        "wild-0.005": "findtta.paper.tables.wild_0_005",
        "lifelong-2": "findtta.paper.tables.lifelong_2",
        "lifelong-3": "findtta.paper.tables.lifelong_3",
    }
)
CONTROLS: Mapping[str, str] = MappingProxyType(
    {
        "control-group-counts": "findtta.paper.controls.group_counts",
        "control-agreement": "findtta.paper.controls.agreement",
        "control-groupings": "findtta.paper.controls.groupings",
        "control-clean": "findtta.paper.controls.clean",
    }
)
ITEMS: Mapping[str, str] = MappingProxyType({**TABLES, **FIGURES, **CONTROLS})

#: Names for several items.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all": tuple(ITEMS),
        "tables": tuple(TABLES),
        "figures": tuple(FIGURES),
        "controls": tuple(CONTROLS),
        **SIDE_BY_SIDE,
    }
)


def load(id: str) -> Item:
    """Return an item by its id."""
    item: Item = importlib.import_module(ITEMS[id]).ITEM
    return item


def items() -> list[Item]:
    """Return all items, in the order of the paper."""
    return [load(id) for id in ITEMS]


def find(name: str) -> list[Item]:
    """Return the items that a name means.

    Args:
        name: An id such as ``"main-resnet50"``, a number such as ``"table1"``, or a name in ``GROUPS``.

    Returns:
        The items.
    """
    if name in GROUPS:
        return [load(id) for id in GROUPS[name]]
    if name in ITEMS:
        return [load(name)]
    everything = items()
    found = [item for item in everything if name in item.aliases]
    if found:
        return found
    known = [*ITEMS, *(alias for item in everything for alias in item.aliases), *GROUPS]
    raise UnknownNameError(
        f"item must be one of {', '.join([*GROUPS, *ITEMS])}, or its number such as table1, got {name!r}."
        f"{close_matches(name, known)}"
    )
