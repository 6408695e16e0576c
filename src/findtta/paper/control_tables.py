"""Controls that the paper lacks: groups where there are none, other groupings, and streams without corruptions."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.paper import numbers
from findtta.paper.accuracy_tables import INTERVALS, MARGINS, STREAM_TITLES, gains, stream_of
from findtta.paper.context import Setup
from findtta.paper.feature_figures import measured_groups
from findtta.paper.items import Item, table
from findtta.paper.measure import TRUTHS
from findtta.paper.notes import display
from findtta.paper.numbers import METHODS
from findtta.paper.study import Reading, Study
from findtta.tables import Cell, Column, Table

PARTS = ("first third of the layers", "middle third", "last third")
_PAPER_SIZE = 64


def part_table(title: str, columns: Mapping[str, Sequence[Cell]], decimals: int) -> Table:
    """Return a table with a row for each part of the model, of columns by their titles."""
    headings = [Column(title=name, unit="", decimals=decimals) for name in columns]
    return table(
        title, "part of the model", headings, dict(zip(PARTS, zip(*columns.values(), strict=True), strict=True))
    )


def part_means(reading: Reading, measure: str) -> list[Cell]:
    """Return the mean of a measure of groups over the layers of each part of the model."""
    layers = reading.value.get("layers", [])
    cuts = [round(len(layers) * part / len(PARTS)) for part in range(len(PARTS) + 1)]
    means = [[layer[measure]["mean"] for layer in layers[start:end]] for start, end in itertools.pairwise(cuts)]
    return [reading.cell(statistics.fmean(part) if part else None) for part in means]


@dataclass(kw_only=True, eq=False)
class GroupCountControl(Item):
    """How many groups LFD finds where there are none, and how their number depends on the batch size."""

    features: Mapping[str, str]  # the title of each kind of features that groups are counted in
    batch_sizes: Sequence[int]
    claimed: Sequence[str]  # by the paper, for each part of the model and batches of 64

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        rows = {}
        for size in self.batch_sizes:
            reading = measured_groups(study, setup, "crossmix", size)
            claimed = [Cell(text=text if size == _PAPER_SIZE else "") for text in self.claimed]
            found = (part_means(reading, f"groups_{feature}") for feature in self.features)
            for part, *cells in zip(PARTS, claimed, *found, strict=True):
                rows[f"B {size}, {part}"] = cells
        by_size = table(
            f"{setup.title}, CrossMix, groups per batch of B images",
            "batch and part of the model",
            (
                Column(title="paper", kind="text", unit=""),
                *(Column(title=title, unit="", decimals=1) for title in self.features.values()),
            ),
            rows,
        )
        columns = {}
        for stream in ("crossmix", "static"):
            reading = measured_groups(study, setup, stream, _PAPER_SIZE)
            domains = reading.value.get("domains")
            counted = "domains not counted" if domains is None else f"{domains:.1f} domains a batch"
            columns[f"{STREAM_TITLES[stream]}, {counted}"] = part_means(reading, "groups_real")
        title = f"{setup.title}, groups per batch of {_PAPER_SIZE} images"
        return [by_size, part_table(title, columns, decimals=1)]


@dataclass(kw_only=True, eq=False)
class AgreementControl(Item):
    """Whether groups are domains or classes: purity and mutual information, beside those of random groups."""

    measures: Mapping[str, str]  # their titles

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        reading = measured_groups(study, setup, "crossmix", _PAPER_SIZE)
        tables = []
        for measure, name in self.measures.items():
            columns = {}
            for truth in TRUTHS:
                columns[truth] = part_means(reading, f"{measure}_{truth}")
                columns[f"{truth}, by chance"] = part_means(reading, f"{measure}_{truth}_chance")
            title = f"{setup.title}, CrossMix, batches of {_PAPER_SIZE}, {name} (0 to 1)"
            tables.append(part_table(title, columns, decimals=3))
        return tables


@dataclass(kw_only=True, eq=False)
class GroupingControl(Item):
    """What the groups contribute: FIND with random groups of the same sizes, single images, no groups."""

    streams: Sequence[str]
    groupings: Mapping[str, str]  # for each row the partitioner, or a method that the paper compares

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        cells = {
            name: [self._cell(study, setup, stream, grouping) for stream in self.streams]
            for name, grouping in self.groupings.items()
        }
        titles = [STREAM_TITLES[stream] for stream in self.streams]
        accuracies = table(
            f"{setup.title}, accuracy in %; {MARGINS}",
            "groups",
            (Column(title=title, kind="ours" if title == "Static" else "compared") for title in titles),
            cells,
        )
        return [accuracies, *gains(setup.title, accuracies.columns, cells)]

    def _cell(self, study: Study, setup: Setup, stream: str, grouping: str) -> Cell:
        printed = numbers.printed_accuracy(stream, setup.stands_for) if stream != "static" else None

        def options(seed: int) -> dict[str, Any]:
            random = {"partitioner_options": {"seed": seed}} if grouping == "random" else {}
            return {} if grouping in METHODS else {"partitioner": grouping, **random}

        return study.cell(
            setup,
            paper=printed.value(grouping) if printed else None,
            method=grouping if grouping in METHODS else "find",
            options=options,
            stream=stream_of(stream),
        )


@dataclass(kw_only=True, eq=False)
class CleanControl(Item):
    """What adaptation costs where there is nothing to adapt to: clean and mostly clean streams."""

    longer: int  # times as many images per domain, so that streams with one domain are not much shorter
    streams: Mapping[str, Mapping[str, Any]]  # the settings of their runs

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        columns = []
        rows: dict[str, list[Cell]] = {}
        for name in self.streams:
            columns += [Column(title=name), Column(title="against Source", kind="signed", unit="points")]
        for method in dict.fromkeys(("source", *study.context.compared)):
            cells = rows[display(method)] = []
            for stream in self.streams:
                own, source = (self._cell(study, setup, stream, name) for name in (method, "source"))
                cells += [own, own.minus(source)]
        title = f"{setup.title}, accuracy in %, and points against the source model; {INTERVALS}"
        return [table(title, "method", columns, rows)]

    def _cell(self, study: Study, setup: Setup, stream: str, method: str) -> Cell:
        settings = dict(self.streams[stream])
        images = study.context.spec(setup).images
        if images is not None and "clean" in stream:
            settings["images"] = self.longer * images
        return study.cell(setup, method=method, **settings)
