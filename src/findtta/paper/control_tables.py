"""Controls that the paper lacks: groups where there are none, other groupings, and streams without corruptions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.data.dataset import CLEAN
from findtta.paper import numbers
from findtta.paper.accuracy_tables import STREAM_TITLES, stream_of
from findtta.paper.context import Setup
from findtta.paper.feature_figures import measured_groups
from findtta.paper.items import Item
from findtta.paper.measure import FEATURES, TRUTHS
from findtta.paper.notes import display
from findtta.paper.numbers import METHODS
from findtta.paper.results import FAILED, Reading, Study
from findtta.tables import Cell, Column, Row, Table

PARTS = ("first third of the layers", "middle third", "last third")
BATCH_SIZES = (32, 64, 128)
_PAPER_SIZE = 64
_CLAIMED_GROUPS = ("slightly over 15", "about 15", "about 10")  # by the paper, for batches of 64


@dataclass(kw_only=True, eq=False)
class Control(Item):
    """A control of a claim of the paper.

    Attributes:
        figures: The figures of the paper whose claims it is about.
        claim: The claim of its text that it is about.
        comment: What else the paper says or lacks about that.
    """

    figures: Sequence[str] = ()
    claim: str = ""
    comment: str = ""

    def paper_notes(self) -> list[str]:
        claims = [(numbers.figure(id).claim, f"Figure {numbers.figure(id).number}") for id in self.figures]
        if self.claim:
            claim = numbers.claim(self.claim)
            stated = f"{claim.low:g} {claim.unit} " if claim.unit == "points" else ""
            claims.append((f"{stated}{claim.says}", claim.where))
        return [f"The paper says: {says} ({where}) {self.comment}".strip() for says, where in claims]

    def tables(self, study: Study) -> list[Table]:
        return [table for setup in self.setups(study) for table in self.tables_of(study, setup)]

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        """Return the tables of a setup."""
        raise NotImplementedError


def part_means(reading: Reading | None, measure: str) -> list[Cell]:
    """Return the mean of a measure of groups over the layers of each part of the model."""
    if reading is None or not reading.is_done:
        return [Cell(text=FAILED if reading else "")] * len(PARTS)
    layers = reading.value["layers"]
    cuts = [round(len(layers) * part / len(PARTS)) for part in range(len(PARTS) + 1)]
    means = [[layer[measure]["mean"] for layer in layers[start:end]] for start, end in itertools.pairwise(cuts)]
    seed = int(reading.probe["spec"]["seed"])
    return [Cell(values={seed: statistics.fmean(part)} if part else {}) for part in means]


def part_rows(columns: Sequence[Sequence[Cell]]) -> tuple[Row, ...]:
    """Return a row for each part of the model."""
    return tuple(Row((part,), tuple(cells)) for part, *cells in zip(PARTS, *columns, strict=True))


class GroupCountControl(Control):
    """How many groups LFD finds where there are none, and how their number depends on the batch size."""

    titles: Mapping[str, str] = {"real": "features", "shuffled": "shuffled features", "noise": "noise"}

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        rows = []
        for size in BATCH_SIZES:
            reading = measured_groups(study, setup, "crossmix", size)
            claimed = [Cell(text=text if size == _PAPER_SIZE else "") for text in _CLAIMED_GROUPS]
            found = part_rows([claimed, *(part_means(reading, f"groups_{feature}") for feature in FEATURES)])
            rows += [Row((f"B {size}, {row.titles[0]}",), row.cells) for row in found]
        by_size = Table(
            title=f"{setup.title}, CrossMix, groups per batch of B images",
            row_titles=("batch and part of the model",),
            columns=(
                Column(title="paper", kind="text", unit=""),
                *(Column(title=self.titles[feature], unit="", decimals=1) for feature in FEATURES),
            ),
            rows=tuple(rows),
        )
        readings = {one: measured_groups(study, setup, one, _PAPER_SIZE) for one in ("crossmix", "static")}
        by_stream = Table(
            title=f"{setup.title}, groups per batch of {_PAPER_SIZE} images",
            row_titles=("part of the model",),
            columns=tuple(
                Column(title=f"{STREAM_TITLES[stream]}, {_domains(reading)}", unit="", decimals=1)
                for stream, reading in readings.items()
            ),
            rows=part_rows([part_means(reading, "groups_real") for reading in readings.values()]),
        )
        return [by_size, by_stream]


def _domains(reading: Reading | None) -> str:
    known = reading is not None and "domains" in reading.value
    return f"{reading.value['domains']:.1f} domains a batch" if reading and known else "domains not counted"


class AgreementControl(Control):
    """Whether groups are domains or classes: purity and mutual information, beside those of random groups."""

    measures: Mapping[str, str] = {"purity": "purity", "nmi": "normalized mutual information"}

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        reading = measured_groups(study, setup, "crossmix", _PAPER_SIZE)
        columns = {
            f"{truth}{suffix}": f"{truth}{title}"
            for truth in TRUTHS
            for suffix, title in (("", ""), ("_chance", ", by chance"))
        }
        return [
            Table(
                title=f"{setup.title}, CrossMix, batches of {_PAPER_SIZE}, {name} (0 to 1)",
                row_titles=("part of the model",),
                columns=tuple(Column(title=title, unit="", decimals=3) for title in columns.values()),
                rows=part_rows([part_means(reading, f"{measure}_{column}") for column in columns]),
            )
            for measure, name in self.measures.items()
        ]


class GroupingControl(Control):
    """What the groups contribute: FIND with random groups of the same sizes, single images, no groups."""

    streams = ("crossmix", "random", "static")
    #: For each row the partitioner, or a method that the paper compares.
    groupings: Mapping[str, str] = {
        "Source": "source",
        "TBN": "tbn",
        "whole batch, alpha as FIND": "none",
        "single images, alpha as FIND": "instance",
        "random groups, sizes as FIND": "random",
        "FIND": "find",
    }

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        cells = {
            name: [self._cell(study, setup, stream, grouping) for stream in self.streams]
            for name, grouping in self.groupings.items()
        }
        titles = [STREAM_TITLES[stream] for stream in self.streams]
        accuracies = Table(
            title=f"{setup.title}, accuracy in %",
            row_titles=("groups",),
            columns=tuple(
                Column(title=title, kind="ours" if title == "Static" else "compared") for title in titles
            ),
            rows=tuple(Row((name,), tuple(of_row)) for name, of_row in cells.items()),
        )
        gains = Table(
            title=f"{setup.title}, gain of FIND over each, in points",
            row_titles=("FIND over",),
            columns=tuple(Column(title=title, unit="points") for title in titles),
            rows=tuple(
                Row((name,), tuple(minus(*pair) for pair in zip(cells["FIND"], of_row, strict=True)))
                for name, of_row in cells.items()
                if name != "FIND"
            ),
        )
        return [accuracies, gains]

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


def minus(left: Cell, right: Cell) -> Cell:
    """Return the difference of two cells, seed by seed."""
    seeds = [seed for seed in left.values if seed in right.values]
    return Cell(
        values={seed: left.values[seed] - right.values[seed] for seed in seeds}, text=left.text or right.text
    )


class CleanControl(Control):
    """What adaptation costs where there is nothing to adapt to: clean and mostly clean streams."""

    longer = 10  # times as many images per domain, so that streams with one domain are not much shorter
    streams: Mapping[str, Mapping[str, Any]] = {
        "clean": {"stream": "crossmix", "domains": (CLEAN,)},
        "nine tenths clean": {"stream": "mostly-clean:fraction=0.9"},
        "all corrupted (CrossMix)": {"stream": "crossmix"},
    }

    def tables_of(self, study: Study, setup: Setup) -> list[Table]:
        columns, rows = [], []
        for name in self.streams:
            columns += [Column(title=name), Column(title="against Source", unit="points")]
        for method in METHODS:
            if study.context.wants(method) or method == "source":
                cells = []
                for stream in self.streams:
                    own, source = (self._cell(study, setup, stream, name) for name in (method, "source"))
                    cells += [own, minus(own, source)]
                rows.append(Row((display(method),), tuple(cells)))
        title = f"{setup.title}, accuracy in %, and points against the source model"
        return [Table(title=title, row_titles=("method",), columns=tuple(columns), rows=tuple(rows))]

    def _cell(self, study: Study, setup: Setup, stream: str, method: str) -> Cell:
        settings = dict(self.streams[stream])
        images = study.context.spec(setup).images
        if images is not None and "clean" in stream:
            settings["images"] = self.longer * images
        return study.cell(setup, method=method, **settings)
