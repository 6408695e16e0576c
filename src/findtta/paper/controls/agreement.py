"""Whether groups are domains or classes: purity and mutual information, beside those of random groups."""

from __future__ import annotations

from findtta.bench.spec import RunSpec
from findtta.paper.controls.base import NETWORK, PARTS, Control, groups_probe, part_means
from findtta.paper.document import Column, Row, Table
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.paper.measure.groups import TRUTHS
from findtta.paper.notes import dataset_title
from findtta.paper.numbers import figure


class Agreement(Control):
    """Agreement of groups with domains and with classes."""

    id = "control-agreement"
    title = "how far groups agree with true domains and classes, beside random groups of the same sizes"

    def specs(self, context: Context) -> list[RunSpec]:
        return []

    def probes(self, context: Context) -> list[Probe]:
        return [self._probe(context, setup) for setup in context.for_network(NETWORK)]

    def claims(self) -> list[str]:
        return [f"{figure(name).claim} (Figure {figure(name).number})" for name in ("tsne", "group-counts")]

    def notes(self, context: Context) -> list[str]:
        return [
            "Small groups are pure by chance, so what counts is what is above random groups of the same sizes.",
        ]

    def tables(self, context: Context, results: Results) -> list[Table]:
        return [
            self._table(context, results, setup, measure)
            for setup in context.for_network(NETWORK)
            for measure in ("purity", "nmi")
        ]

    def _probe(self, context: Context, setup: Setup) -> Probe:
        return groups_probe(context, setup, "crossmix", 64)

    def _table(self, context: Context, results: Results, setup: Setup, measure: str) -> Table:
        probe = self._probe(context, setup)
        columns, cells = [], []
        for truth in TRUTHS:
            for suffix, title in (("", truth), ("_chance", f"{truth}, by chance")):
                columns.append(Column(title=title, kind="ours", unit="", decimals=3))
                cells.append(part_means(results, probe, f"{measure}_{truth}{suffix}"))
        name = {"purity": "purity", "nmi": "normalised mutual information"}[measure]
        return Table(
            title=f"{dataset_title(setup)}, CrossMix, batches of 64, {name} (0 to 1)",
            row_title="part of the network",
            columns=tuple(columns),
            rows=tuple(
                Row(part, tuple(of_column[index] for of_column in cells)) for index, part in enumerate(PARTS)
            ),
        )


ITEM = Agreement()
