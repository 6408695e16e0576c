"""What figures share: the document around their pictures, and points made of runs."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from findtta.bench.result import Result
from findtta.bench.spec import RunSpec
from findtta.paper import numbers
from findtta.paper.document import Cell, Document, Picture, picture
from findtta.paper.items import DATASETS, Context, Item, Probe, Reading, Results, Setup
from findtta.paper.notes import dataset_title, display, outcome_notes, provenance, setting_notes
from findtta.plots import Panel, Series

RESNET, TRANSFORMER = "ResNet-50", "EfficientViT-M5"
#: The dynamic streams of the paper, with what it calls them.
DYNAMIC = {"crossmix": "CrossMix", "random:variant=paper": "Random", "shuffle": "Shuffle"}
#: Why two of them may lie upon each other.
SAME_BATCHES = (
    "Random has the batches of Shuffle in another order, so what FIND does in them, which keeps nothing from "
    "batch to batch, is the same."
)
#: A dataset and a network of the paper.
Place = tuple[str, str]


class PaperFigure(Item):
    """A figure of the paper.

    Args:
        id: Its id.
        places: What its panels are of, each a dataset with a network of the paper; by default every dataset with a
            ResNet-50.
    """

    kind = "figure"

    def __init__(self, id: str, places: Sequence[Place] | None = None) -> None:
        self.id = id
        self.places = tuple(places or ((dataset, RESNET) for dataset in DATASETS))
        known = numbers.figures().get(id)
        self.paper = known
        if known is not None:
            self.title, self.aliases = known.title, (f"figure{known.number}",)

    def specs(self, context: Context) -> list[RunSpec]:
        return []

    def panels(self, context: Context, results: Results) -> list[Panel]:
        """Return the panels; those without a series are not drawn."""
        return []

    def pictures(self, context: Context, results: Results) -> list[Picture]:
        """Return the pictures: all panels in one, unless the figure is of another kind."""
        shown = [panel for panel in self.panels(context, results) if panel.series]
        return [picture(self.title, shown)] if shown else []

    def notes(self, context: Context, results: Results) -> list[str]:
        """Return what else a reader must know."""
        return []

    def at_hand(self, context: Context) -> list[tuple[Place, Setup]]:
        """Return the places that something at hand stands for."""
        found = [(place, context.find(*place)) for place in self.places]
        return [(place, setup) for place, setup in found if setup is not None]

    def document(self, context: Context, results: Results) -> Document:
        own = results.only(self.specs(context), self.probes(context))
        pictures = self.pictures(context, own)
        networks = dict.fromkeys(network for (_, network), _ in self.at_hand(context))
        settings = dict.fromkeys(
            note for network in networks for note in _setting_notes(self, context, own, network)
        )
        return Document(
            id=self.id,
            title=f"Figure {self.paper.number}: {self.title}" if self.paper else f"Figure: {self.title}",
            pictures=tuple(pictures),
            notes=tuple(
                [
                    *self._paper_notes(),
                    *self.notes(context, own),
                    *self._missing_notes(context, bool(pictures)),
                    *settings,
                    *outcome_notes(own),
                ]
            ),
            provenance=provenance(context, own),
        )

    def _paper_notes(self) -> list[str]:
        if self.paper is None:
            return []
        points = "It prints no numbers of this figure, so there are none to compare with."
        measured = [points] if self.paper.kind == "measurement" else []
        return [
            f"The paper says: {self.paper.claim}",
            *measured,
            *(f"The paper: {note}" for note in self.paper.notes),
        ]

    def _missing_notes(self, context: Context, is_drawn: bool) -> list[str]:
        present = [place for place, _ in self.at_hand(context)]
        missing = [f"{DATASETS[place[0]]} with {place[1]}" for place in self.places if place not in present]
        notes = [f"Nothing at hand stands for {', '.join(missing)}."] if missing else []
        return notes if is_drawn else [*notes, "There is nothing to draw: no run or measurement of it is done."]


def _setting_notes(item: PaperFigure, context: Context, own: Results, network: str) -> list[str]:
    """Return where the setting differs, of the setups that stand for this network."""
    setups = [setup for (_, name), setup in item.at_hand(context) if name == network]
    distinct = [setup for index, setup in enumerate(setups) if setup not in setups[:index]]
    return setting_notes(dataclasses.replace(context, setups=tuple(distinct)), own, network)


def panel_title(setup: Setup, network: str) -> str:
    """Return what a panel is of: dataset and network of the paper, with what stands for them."""
    return f"{dataset_title(setup)}, {network} ({setup.model})" if setup.model != network else dataset_title(setup)


def accuracy_series(
    results: Results, name: str, points: Iterable[tuple[float, Sequence[RunSpec]]], look: str = ""
) -> list[Series]:
    """Return the accuracy over some values as one series, or none if no run is done.

    Args:
        results: What there is.
        name: What the legend calls the series.
        points: Each value with its runs, one for every seed.
        look: Which colour it has: a method or a name of ``LOOKS``; the name by default.
    """
    cells = [(x, Cell(values=results.values(specs))) for x, specs in points]
    done = [
        (x, cell.ours, cell.deviation) for x, cell in cells if cell.ours is not None and math.isfinite(cell.ours)
    ]
    if not done:
        return []
    return [
        Series(
            name=name,
            look=look or name,
            x=tuple(x for x, _, _ in done),
            y=tuple(mean for _, mean, _ in done),
            spread=tuple(deviation or 0.0 for _, _, deviation in done),
        )
    ]


def method_series(
    results: Results, method: str, points: Iterable[tuple[float, Sequence[RunSpec]]]
) -> list[Series]:
    """Return the accuracy of a method over some values, in its colour."""
    return accuracy_series(results, display(method), points, look=method)


def done_runs(results: Results, specs: Iterable[RunSpec]) -> list[Result]:
    """Return the results of the runs that are done."""
    found = (results.run(spec) for spec in specs)
    return [result for result in found if result is not None and result.status == "done"]


def done_reading(results: Results, probe: Probe) -> Reading | None:
    """Return the reading of a probe, if it is done."""
    reading = results.reading(probe)
    return reading if reading is not None and reading.status == "done" else None


def mean_over_runs(runs: Sequence[Result], field: str) -> dict[int, float]:
    """Return for each layer, by its place, the mean over runs of a number of it, where all of them have it."""
    columns = zip(*(run.layers for run in runs), strict=False)
    found = {}
    for place, layers in enumerate(columns):
        values = [layer.get(field) for layer in layers]
        if all(value is not None for value in values):
            found[place] = statistics.fmean(values)
    return found
