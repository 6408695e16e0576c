"""What controls share: parts of a network, and the document around their tables."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from findtta.paper.document import Cell, Document, Table
from findtta.paper.items import Context, Item, Probe, Results, Setup
from findtta.paper.notes import outcome_notes, provenance, setting_notes

NETWORK = "ResNet-50"
PARTS = ("first third of the layers", "middle third", "last third")
_BATCHES, _BATCHES_QUICK = 40, 6


class Control(Item):
    """A control of a claim of the paper."""

    kind = "control"

    def tables(self, context: Context, results: Results) -> list[Table]:
        """Return the tables."""
        raise NotImplementedError

    def claims(self) -> list[str]:
        """Return what the paper says that the control is about."""
        return []

    def notes(self, context: Context) -> list[str]:
        """Return what else a reader must know."""
        return []

    def document(self, context: Context, results: Results) -> Document:
        own = results.only(self.specs(context), self.probes(context))
        setups = context.for_network(NETWORK)
        return Document(
            id=self.id,
            title=f"Control: {self.title}",
            tables=tuple(self.tables(context, results)),
            notes=tuple(
                [
                    *(f"The paper says: {claim}" for claim in self.claims()),
                    *self.notes(context),
                    *([] if setups else ["No ResNet is at hand, so there is nothing to show."]),
                    *setting_notes(context, own, NETWORK),
                    *outcome_notes(own),
                ]
            ),
            provenance=provenance(context, own),
        )


def groups_probe(context: Context, setup: Setup, stream: str, batch_size: int) -> Probe:
    """Return the measurement of groups in a stream."""
    return Probe(
        kind="findtta.paper.measure.groups:measure_groups",
        spec=context.spec(setup, method="find", stream=stream, batch_size=batch_size),
        settings={"batches": _BATCHES_QUICK if context.quick else _BATCHES},
    )


def part_means(results: Results, probe: Probe, measure: str) -> list[Cell]:
    """Return the mean of a measure over the layers of each part of the network."""
    reading = results.reading(probe)
    if reading is None or reading.status == "failed":
        return [Cell(text="failed" if reading else "")] * len(PARTS)
    seed = int(reading.probe["spec"]["seed"])
    return [
        Cell(values={seed: statistics.fmean(layer[measure]["mean"] for layer in layers)} if layers else {})
        for layers in _thirds(reading.value["layers"])
    ]


def _thirds(layers: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    count = len(layers)
    cuts = [round(count * part / len(PARTS)) for part in range(len(PARTS) + 1)]
    return [layers[start:end] for start, end in itertools.pairwise(cuts)]
