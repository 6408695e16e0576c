"""How many groups LFD finds where there is nothing to find, and how their number follows the batch size."""

from __future__ import annotations

from findtta.bench.spec import RunSpec
from findtta.paper.controls.base import NETWORK, PARTS, Control, groups_probe, part_means
from findtta.paper.document import Cell, Column, Row, Table
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.paper.measure.groups import FEATURES
from findtta.paper.notes import dataset_title
from findtta.paper.numbers import figure

BATCH_SIZES = (32, 64, 128)
_PAPER_SIZE = 64
_CLAIMED = ("slightly over 15", "about 15", "about 10")  # by the paper, for batches of 64
_TITLES = {"real": "features", "shuffled": "shuffled features", "noise": "noise"}


class GroupCounts(Control):
    """Numbers of groups in features, in shuffled features and in noise, for several batch sizes."""

    id = "control-group-counts"
    title = "how many groups there are in features, in shuffled features and in noise, by batch size"

    def specs(self, context: Context) -> list[RunSpec]:
        return []

    def probes(self, context: Context) -> list[Probe]:
        return [
            probe
            for setup in context.for_network(NETWORK)
            for probe in (*self._by_size(context, setup).values(), self._static(context, setup))
        ]

    def claims(self) -> list[str]:
        found = figure("group-counts")
        return [f"{found.claim} (Figure {found.number})"]

    def notes(self, context: Context) -> list[str]:
        return [
            "Shuffled features: every channel is shuffled over the batch on its own, so that no sample is like "
            "another any more. Noise: independent normal numbers. If their numbers of groups equal those of the "
            "features, or grow with the batch, the number of groups says nothing about domains or classes.",
            "A batch of the static stream has a single domain: if groups were domains, it would have one group.",
        ]

    def tables(self, context: Context, results: Results) -> list[Table]:
        tables = []
        for setup in context.for_network(NETWORK):
            tables += [self._sizes_table(context, results, setup), self._streams_table(context, results, setup)]
        return tables

    def _by_size(self, context: Context, setup: Setup) -> dict[int, Probe]:
        return {size: groups_probe(context, setup, "crossmix", size) for size in BATCH_SIZES}

    def _static(self, context: Context, setup: Setup) -> Probe:
        return groups_probe(context, setup, "static", _PAPER_SIZE)

    def _sizes_table(self, context: Context, results: Results, setup: Setup) -> Table:
        rows = []
        for size, probe in self._by_size(context, setup).items():
            found = [part_means(results, probe, f"groups_{feature}") for feature in FEATURES]
            for index, part in enumerate(PARTS):
                claimed = Cell(text=_CLAIMED[index] if size == _PAPER_SIZE else "")
                rows.append(Row(f"B {size}, {part}", (claimed, *(of_feature[index] for of_feature in found))))
        return Table(
            title=f"{dataset_title(setup)}, CrossMix, groups per batch of B images",
            row_title="batch and part of the network",
            columns=(
                Column(title="paper", kind="text", unit=""),
                *(Column(title=_TITLES[feature], kind="ours", unit="", decimals=1) for feature in FEATURES),
            ),
            rows=tuple(rows),
        )

    def _streams_table(self, context: Context, results: Results, setup: Setup) -> Table:
        probes = {"CrossMix": self._by_size(context, setup)[_PAPER_SIZE], "Static": self._static(context, setup)}
        found = [part_means(results, probe, "groups_real") for probe in probes.values()]
        return Table(
            title=f"{dataset_title(setup)}, groups per batch of {_PAPER_SIZE} images",
            row_title="part of the network",
            columns=tuple(
                Column(title=f"{name}, {_domains(results, probe)}", kind="ours", unit="", decimals=1)
                for name, probe in probes.items()
            ),
            rows=tuple(
                Row(part, tuple(of_stream[index] for of_stream in found)) for index, part in enumerate(PARTS)
            ),
        )


def _domains(results: Results, probe: Probe) -> str:
    reading = results.reading(probe)
    if reading is None or "domains" not in reading.value:
        return "domains not counted"
    return f"{reading.value['domains']:.1f} domains a batch"


ITEM = GroupCounts()
