"""The items of the paper by id, by number and in groups; they are declared in ``items.toml``."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from findtta.errors import UnknownNameError, close_matches
from findtta.paper import numbers

if TYPE_CHECKING:
    from findtta.paper.items import Item


@dataclass(frozen=True)
class Entry:
    """The declaration of an item."""

    id: str
    kind: Literal["table", "figure", "control"]
    title: str
    alias: str  # its number in the paper, such as "table1"; empty if it has none
    maker: str  # the class that makes it, as module:class below ``findtta.paper``
    settings: Mapping[str, Any]  # what the class is given besides

    def load(self) -> Item:
        """Make the item; only now its module is imported."""
        module, _, name = self.maker.partition(":")
        maker = getattr(importlib.import_module(f"findtta.paper.{module}"), name)
        item: Item = maker(id=self.id, kind=self.kind, title=self.title, alias=self.alias, **self.settings)
        return item


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Return the declarations of all items by their ids, in the order of the paper."""
    text = importlib.resources.files(__package__).joinpath("items.toml").read_text(encoding="utf-8")
    found = [
        _entry(id, kind, fields) for kind, items in tomllib.loads(text).items() for id, fields in items.items()
    ]
    return MappingProxyType({entry.id: entry for entry in found})


def groups() -> dict[str, list[str]]:
    """Return the names for several items, with the ids of these."""
    kinds = ("table", "figure", "control")
    return {
        "all": list(entries()),
        **{f"{kind}s": [entry.id for entry in entries().values() if entry.kind == kind] for kind in kinds},
        **{name: list(ids) for name, ids in numbers.SIDE_BY_SIDE.items()},
    }


def find(name: str) -> list[Item]:
    """Return the items of a name: an id such as ``"main-resnet50"``, a number such as ``"table1"``, or a group."""
    aliases = {entry.alias: [entry.id] for entry in entries().values() if entry.alias}
    known = {**{id: [id] for id in entries()}, **aliases, **groups()}
    if name not in known:
        raise UnknownNameError(
            f"item must be one of {', '.join([*groups(), *entries()])}, or a number such as table1, got {name!r}."
            f"{close_matches(name, known)}"
        )
    return [entries()[id].load() for id in known[name]]


def _entry(id: str, kind: Any, fields: Mapping[str, Any]) -> Entry:
    settings = {name: value for name, value in fields.items() if name not in ("class", "title", "notes", "places")}
    settings["fixed_notes"] = tuple(fields.get("notes", ()))
    if "places" in fields:
        settings["places"] = tuple((dataset, network) for dataset, network in fields["places"])
    title, alias = fields.get("title", ""), ""
    if kind == "table":
        printed = numbers.table(id)
        title, alias = printed.title, f"table{printed.numbers[0]}"
    elif id in numbers.figures():
        title, alias = numbers.figure(id).title, f"figure{numbers.figure(id).number}"
    return Entry(id, kind, title, alias, fields["class"], settings)
