"""Table 4: time and memory of all methods, measured side by side, and how often they pass through the model."""

from __future__ import annotations

from findtta.bench.spec import RunSpec
from findtta.paper import numbers
from findtta.paper.claims import claims_about, claims_table
from findtta.paper.cost import (
    TIMING_NOTE,
    memory_cell,
    memory_note,
    memory_probe,
    time_cell,
    times_probe,
    timing_failures,
)
from findtta.paper.document import Cell, Column, Document, Row, Table
from findtta.paper.items import Context, Item, Probe, Results, Setup
from findtta.paper.notes import dataset_title, display, outcome_notes, provenance, setting_notes
from findtta.paper.numbers import METHODS
from findtta.paper.printed import numbered

_REFERENCE = "tbn"  # the cheapest method of the paper's table, which lacks Source


class Efficiency(Item):
    """Time and memory of a batch."""

    kind = "table"
    paper = numbers.table("efficiency")
    id, title = paper.id, paper.title
    aliases = ("table4",)
    network = "ResNet-50"

    def specs(self, context: Context) -> list[RunSpec]:
        return []

    def probes(self, context: Context) -> list[Probe]:
        setups = context.for_network(self.network)
        memory = [memory_probe(context, setup, name, {}) for setup in setups for name in self._methods(context)]
        return [*(self._times(context, setup) for setup in setups), *memory]

    def document(self, context: Context, results: Results) -> Document:
        setups = context.for_network(self.network)
        tables = [self._table(context, results, setup) for setup in (setups or (None,))]
        claims = claims_table(
            claims_about(self.id), lambda *place: self._cell(context, results, place[1], place[2])
        )
        own = results.only([], self.probes(context))
        failures = [
            note for setup in setups for note in timing_failures(results.reading(self._times(context, setup)))
        ]
        return Document(
            id=self.id,
            title=f"{numbered(self.paper)}: {self.title}",
            tables=tuple([*tables, *([claims] if claims else [])]),
            notes=tuple(
                [
                    *setting_notes(context, own, self.network),
                    "The paper measured on a V100 with images of 224x224; here: " + context.device + ".",
                    TIMING_NOTE,
                    memory_note(context),
                    "Passes: forward + backward through the model for a batch that is learned from.",
                    "The paper's times have two digits, TBN's (0.07 s) one: its ratios are good to 7 % at best.",
                    *(f"The paper's table: {note}" for note in self.paper.notes),
                    *failures,
                    *outcome_notes(own),
                ]
            ),
            provenance=provenance(context, own),
        )

    def _methods(self, context: Context) -> list[str]:
        """Return the methods to measure; the two that others are compared with are always among them."""
        return [name for name in METHODS if context.wants(name) or name in ("source", _REFERENCE)]

    def _times(self, context: Context, setup: Setup) -> Probe:
        return times_probe(context, setup, {name: (name, {}) for name in self._methods(context)})

    def _table(self, context: Context, results: Results, setup: Setup | None) -> Table:
        columns = (
            Column(title="s per batch, paper", kind="paper", unit="s"),
            Column(title="s per batch, here", kind="ours", unit="s", decimals=4),
            Column(title="times Source", kind="ours", unit="times"),
            Column(title="times TBN", unit="times"),
            Column(title="GB, paper", kind="paper", unit="GB"),
            Column(title="MB, here", kind="ours", unit="MB", decimals=0),
            Column(title="MB above Source", kind="ours", unit="MB", decimals=0),
            Column(title="passes", kind="text", unit=""),
        )
        title = dataset_title(setup) if setup else "the paper's numbers; no ResNet is at hand"
        rows = [Row(display(name), self._cells(context, results, setup, name)) for name in self._methods(context)]
        return Table(title=title, row_title="method", columns=columns, rows=tuple(rows))

    def _cells(self, context: Context, results: Results, setup: Setup | None, name: str) -> tuple[Cell, ...]:
        latency, memory = (numbers.value(self.id, name, column) for column in ("latency", "memory"))
        reference = numbers.value(self.id, _REFERENCE, "latency")
        ratio = latency / reference if latency is not None and reference else None
        if setup is None:
            return (Cell(paper=latency), Cell(), Cell(), Cell(paper=ratio), Cell(paper=memory), *[Cell()] * 3)
        times = self._times(context, setup)
        peak, base = (memory_probe(context, setup, method, {}) for method in (name, "source"))
        over_reference = time_cell(context, results, times, name, "ratio", _REFERENCE)
        return (
            Cell(paper=latency),
            time_cell(context, results, times, name, "seconds"),
            time_cell(context, results, times, name, "ratio"),
            Cell(paper=ratio, values=over_reference.values, text=over_reference.text),
            Cell(paper=memory),
            memory_cell(context, results, peak),
            memory_cell(context, results, peak, base),
            self._passes(results, times, name),
        )

    def _passes(self, results: Results, times: Probe, name: str) -> Cell:
        reading = results.reading(times)
        found = reading.value.get("candidates", {}).get(name, {}) if reading else {}
        return Cell(text=f"{found['forward']:g} + {found['backward']:g}" if "forward" in found else "")

    def _cell(self, context: Context, results: Results, method: str, column: str) -> Cell:
        """Return what claims are about, of the first setup; memory only where it is the model's alone."""
        setups = context.for_network(self.network)
        paper = self.paper.row(method).values[column]
        if not setups:
            return Cell(paper=paper)
        if column == "latency":
            ours = time_cell(context, results, self._times(context, setups[0]), method, "ratio")
        elif context.device.startswith("cuda"):
            ours = memory_cell(context, results, memory_probe(context, setups[0], method, {}))
        else:
            ours = Cell()
        return Cell(paper=paper, values=ours.values)


ITEM = Efficiency()
