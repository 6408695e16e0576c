"""The items of the paper: the runs and measurements each asks for, and the document it makes of them.

An item never computes anything itself: ``gather`` does, through a store, so that nothing is computed twice.
"""

import dataclasses
import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from findtta._io import read_toml
from findtta.bench import RunSpec
from findtta.errors import UnknownNameError, close_matches
from findtta.paper import numbers
from findtta.paper.context import RESNET, Context, Setup
from findtta.paper.document import Document, Picture, picture
from findtta.paper.notes import outcome_notes, provenance, setting_notes
from findtta.paper.numbers import DATASETS
from findtta.paper.study import Probe, Results, Study
from findtta.plots import Panel
from findtta.tables import Cell, Column, Row, Table

#: A dataset and a network of the paper.
Place = Sequence[str]
EVERY_DATASET = tuple((dataset, RESNET) for dataset in DATASETS)


@dataclass(kw_only=True, eq=False)
class Item:
    """A table or figure of the paper, or a control that it lacks."""

    id: str
    kind: Literal["table", "figure", "control"]
    title: str = ""  # the paper's table or figure has its own
    alias: str = dataclasses.field(init=False, default="")  # its number in the paper, such as "table1", if any
    fixed_notes: Sequence[str] = ()  # what a reader must know, whatever it is made with
    figures: Sequence[str] = ()  # the figures of the paper whose claims a control is about
    claim: str = ""  # the claim of its text that a control is about
    comment: str = ""  # what else the paper says or lacks about that
    places: Sequence[Place] = EVERY_DATASET  # the datasets and networks of the paper that it is about

    def __post_init__(self) -> None:
        if self.kind == "table":
            paper = numbers.table(self.id)
            self.title, self.alias = paper.title, f"table{paper.numbers[0]}"
        elif self.id in numbers.figures():
            figure = numbers.figures()[self.id]
            self.title, self.alias = figure.title, f"figure{figure.number}"

    def tables(self, study: Study) -> list[Table]:
        """Return its tables. What is asked of the study is what the item needs."""
        return [table for setup in self.setups(study) for table in self.tables_of(study, setup)]

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        """Return the tables of a setup."""
        return []

    def panels(self, study: Study) -> list[Panel]:
        """Return the panels of its figure; those without a series are not drawn."""
        found = self.available(study.context)
        return [panel for (_, network), setup in found for panel in self.panels_of(study, setup, network)]

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        """Return the panels of a setup that stands for a network of the paper."""
        return []

    def pictures(self, study: Study) -> list[Picture]:
        """Return its figures: all panels in one, unless it is of another kind."""
        return picture(self.title, self.panels(study))

    def claims(self, study: Study) -> list[Table]:
        """Return tables made of results that also other items need."""
        return []

    def notes(self, context: Context, results: Results) -> list[str]:
        """Return what a reader must know besides ``fixed_notes``."""
        return []

    def paper_notes(self) -> list[str]:
        """Return what the paper says about it."""
        figures = numbers.figures()
        says = [f"{figures[id].claim} (Figure {figures[id].number})" for id in self.figures]
        if self.claim:
            claim = numbers.claims()[self.claim]
            stated = f"{claim.low:g} {claim.unit} " if claim.unit == "points" else ""
            says.append(f"{stated}{claim.says} ({claim.where}) {self.comment}")
        notes = []
        if self.id in figures:
            says.append(figures[self.id].claim)
            if figures[self.id].kind == "measurement":
                notes.append("The paper prints no numbers of this figure, so there are none to compare with.")
            notes += [f"The paper: {note}" for note in figures[self.id].notes]
        return [*(f"The paper says: {one}" for one in says), *notes]

    def available(self, context: Context) -> list[tuple[Place, Setup]]:
        """Return the places that a setup stands for."""
        found = [(place, context.find(*place)) for place in self.places]
        return [(place, setup) for place, setup in found if setup is not None]

    def setups(self, study: Study) -> list[Setup]:
        """Return the setups that stand for its places."""
        return [setup for _, setup in self.available(study.context)]

    def asked(self, context: Context) -> list[RunSpec | Probe]:
        """Return the runs and measurements that the item needs."""
        study = Study(context)
        self.tables(study)
        self.pictures(study)
        return list(study.asked.values())

    def document(self, context: Context, results: Results) -> Document:
        """Make the document of what was ``asked`` for; anything may be missing or failed."""
        study = Study(context, results)
        tables, pictures = self.tables(study), self.pictures(study)
        own = study.own
        notes = self.paper_notes()
        for network in dict.fromkeys(network for _, network in self.places):
            fitting = dataclasses.replace(context, setups=tuple(context.for_network(network)))
            notes += setting_notes(fitting, own, network)
        notes += [*self.fixed_notes, *self.notes(context, own)]
        present = [place for place, _ in self.available(context)]
        missing = [f"{DATASETS[place[0]]} with {place[1]}" for place in self.places if place not in present]
        if missing:
            notes.append(f"No setup stands for {', '.join(missing)}.")
        if self.kind == "figure" and not pictures:
            notes.append("Nothing is drawn: no run or measurement of this figure is done.")
        return Document(
            id=self.id,
            title=f"{self.kind.capitalize()}{self.alias.replace(self.kind, ' ')}: {self.title}",
            tables=(*tables, *self.claims(Study(context, results))),
            pictures=tuple(pictures),
            notes=tuple(dict.fromkeys([*notes, *outcome_notes(own)])),
            provenance=provenance(context, own),
        )


def table(title: str, corner: str, columns: Iterable[Column], rows: Mapping[str, Iterable[Cell]]) -> Table:
    """Return a table of cells by the titles of their rows; ``corner`` says what the rows are."""
    return Table(
        title=title,
        row_titles=(corner,),
        columns=tuple(columns),
        rows=tuple(Row((name,), tuple(cells)) for name, cells in rows.items()),
    )


# The items, as ``items.toml`` declares them


@functools.cache
def all_items() -> Mapping[str, Item]:
    """Return all items by their ids, in the order of the paper."""
    found: dict[str, Item] = {}
    for kind, declared in read_toml(Path(__file__).with_suffix(".toml")).items():
        for id, fields in declared.items():
            module, _, name = fields.pop("class").partition(":")
            maker = getattr(importlib.import_module(f"findtta.paper.{module}"), name)
            found[id] = maker(id=id, kind=kind, **fields)
    return found


def groups() -> dict[str, list[str]]:
    """Return the names for several items, with the ids of these."""
    kinds = ("table", "figure", "control")
    return {
        "all": list(all_items()),
        **{f"{kind}s": [item.id for item in all_items().values() if item.kind == kind] for kind in kinds},
        **{name: list(ids) for name, ids in numbers.SIDE_BY_SIDE.items()},
    }


def find(name: str) -> list[Item]:
    """Return the items of a name: an id such as ``"main-resnet50"``, a number such as ``"table1"``, or a group."""
    aliases = {item.alias: [item.id] for item in all_items().values() if item.alias}
    known = {**{id: [id] for id in all_items()}, **aliases, **groups()}
    if name not in known:
        raise UnknownNameError(
            f"item must be one of {', '.join([*groups(), *all_items()])}, or a number such as table1, "
            f"got {name!r}.{close_matches(name, known)}"
        )
    return [all_items()[id] for id in known[name]]
