"""The items of the paper by id, by number and in groups; they are declared in ``items.toml``."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping

from findtta.errors import UnknownNameError, close_matches
from findtta.paper.items import Item
from findtta.paper.numbers import SIDE_BY_SIDE


@functools.cache
def items() -> Mapping[str, Item]:
    """Return all items by their ids, in the order of the paper."""
    text = importlib.resources.files(__package__).joinpath("items.toml").read_text(encoding="utf-8")
    found: dict[str, Item] = {}
    for kind, declared in tomllib.loads(text).items():
        for id, fields in declared.items():
            module, _, name = fields.pop("class").partition(":")
            maker = getattr(importlib.import_module(f"findtta.paper.{module}"), name)
            found[id] = maker(id=id, kind=kind, **fields)
    return found


def groups() -> dict[str, list[str]]:
    """Return the names for several items, with the ids of these."""
    kinds = ("table", "figure", "control")
    return {
        "all": list(items()),
        **{f"{kind}s": [item.id for item in items().values() if item.kind == kind] for kind in kinds},
        **{name: list(ids) for name, ids in SIDE_BY_SIDE.items()},
    }


def find(name: str) -> list[Item]:
    """Return the items of a name: an id such as ``"main-resnet50"``, a number such as ``"table1"``, or a group."""
    aliases = {item.alias: [item.id] for item in items().values() if item.alias}
    known = {**{id: [id] for id in items()}, **aliases, **groups()}
    if name not in known:
        raise UnknownNameError(
            f"item must be one of {', '.join([*groups(), *items()])}, or a number such as table1, got {name!r}."
            f"{close_matches(name, known)}"
        )
    return [items()[id] for id in known[name]]
