"""What an item of the paper is: the runs and measurements it asks for, and the document it makes of them.

An item never computes anything itself: ``findtta.paper.gather`` does, through a store, so that nothing is computed
twice.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from findtta.bench import RunSpec
from findtta.paper import numbers
from findtta.paper.context import RESNET, Context, Setup
from findtta.paper.document import Document, Picture, picture
from findtta.paper.notes import outcome_notes, provenance, setting_notes
from findtta.paper.numbers import DATASETS
from findtta.paper.results import Probe, Results, Study
from findtta.plots import Panel
from findtta.tables import Table

#: A dataset and a network of the paper.
Place = tuple[str, str]
EVERY_DATASET: tuple[Place, ...] = tuple((dataset, RESNET) for dataset in DATASETS)


@dataclass(kw_only=True, eq=False)
class Item:
    """A table or figure of the paper, or a control that it lacks."""

    id: str
    title: str
    kind: Literal["table", "figure", "control"]
    alias: str = ""  # its number in the paper, such as "table1"; empty if it has none
    fixed_notes: tuple[str, ...] = ()  # what a reader must know, whatever it is made with
    places: tuple[Place, ...] = EVERY_DATASET  # the datasets and networks of the paper that it is about

    @property
    def heading(self) -> str:
        """The title of the document."""
        return f"{self.kind.capitalize()}{self.alias.replace(self.kind, ' ')}: {self.title}"

    def tables(self, study: Study) -> list[Table]:
        """Return its tables. What is asked of the study is what the item needs."""
        return []

    def panels(self, study: Study) -> list[Panel]:
        """Return the panels of its figure; those without a series are not drawn."""
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
        return []

    def available(self, context: Context) -> list[tuple[Place, Setup]]:
        """Return the places that a setup stands for."""
        found = [(place, context.find(*place)) for place in self.places]
        return [(place, setup) for place, setup in found if setup is not None]

    def setups(self, study: Study) -> list[Setup]:
        """Return the setups that stand for its places."""
        return [setup for _, setup in self.available(study.context)]

    def specs(self, context: Context) -> list[RunSpec]:
        """Return the runs that the item needs."""
        return list(self._asked(context).specs.values())

    def probes(self, context: Context) -> list[Probe]:
        """Return the measurements that the item needs."""
        return list(self._asked(context).probes.values())

    def _asked(self, context: Context) -> Study:
        study = Study(context)
        self.tables(study)
        self.pictures(study)
        return study

    def document(self, context: Context, results: Results) -> Document:
        """Make the document of what ``specs`` and ``probes`` gave; anything may be missing or failed."""
        study = Study(context, results)
        tables, pictures = self.tables(study), self.pictures(study)
        own = study.own
        notes = [*self.paper_notes(), *self._setting_notes(context, own), *self.fixed_notes]
        notes += [*self.notes(context, own), *self._missing_notes(context, bool(pictures)), *outcome_notes(own)]
        return Document(
            id=self.id,
            title=self.heading,
            tables=(*tables, *self.claims(Study(context, results))),
            pictures=tuple(pictures),
            notes=tuple(dict.fromkeys(notes)),
            provenance=provenance(context, own),
        )

    def _setting_notes(self, context: Context, own: Results) -> list[str]:
        notes: list[str] = []
        for network in dict.fromkeys(network for _, network in self.places):
            fitting = dataclasses.replace(context, setups=tuple(context.for_network(network)))
            notes += setting_notes(fitting, own, network)
        return notes

    def _missing_notes(self, context: Context, is_drawn: bool) -> list[str]:
        present = [place for place, _ in self.available(context)]
        missing = [f"{DATASETS[place[0]]} with {place[1]}" for place in self.places if place not in present]
        notes = [f"No setup stands for {', '.join(missing)}."] if missing else []
        if self.kind == "figure" and not is_drawn:
            notes.append("Nothing is drawn: no run or measurement of this figure is done.")
        return notes


class FigureItem(Item):
    """A figure of the paper, or one that it only announces."""

    def paper_notes(self) -> list[str]:
        if self.id not in numbers.figures():
            return []
        printed = numbers.figure(self.id)
        points = "The paper prints no numbers of this figure, so there are none to compare with."
        return [
            f"The paper says: {printed.claim}",
            *([points] if printed.kind == "measurement" else []),
            *(f"The paper: {note}" for note in printed.notes),
        ]
