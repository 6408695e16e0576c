"""What adaptation costs where there is nothing to adapt to: clean and mostly clean streams."""

from __future__ import annotations

from typing import Any

from findtta.bench.spec import RunSpec
from findtta.data.dataset import CLEAN
from findtta.paper.controls.base import NETWORK, Control
from findtta.paper.controls.groupings import minus
from findtta.paper.document import Cell, Column, Row, Table
from findtta.paper.items import Context, Results, Setup
from findtta.paper.notes import dataset_title, display
from findtta.paper.numbers import METHODS, claim
from findtta.paper.printed import FAILED

#: Of what a stream of all fifteen domains has, so that these streams are not much shorter.
_LONGER = 10
_STREAMS: dict[str, dict[str, Any]] = {
    "clean": {"stream": "crossmix", "domains": (CLEAN,)},
    "nine tenths clean": {"stream": "mostly-clean:fraction=0.9"},
    "all drifted (CrossMix)": {"stream": "crossmix"},
}


class Clean(Control):
    """Accuracy of every method on clean and on mostly clean streams."""

    id = "control-clean"
    title = "accuracy of every method on clean and on mostly clean streams"

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for setup in context.for_network(NETWORK)
            for stream in _STREAMS
            for method in self._methods(context)
            for spec in self._specs(context, setup, stream, method)
        ]

    def claims(self) -> list[str]:
        gain = claim("gain-over-source")
        return [f"{gain.says} ({gain.where}). It shows no stream without drift, or with little of it."]

    def notes(self, context: Context) -> list[str]:
        return [f"The clean streams have up to {_LONGER} times as many images per domain, to be of like length."]

    def tables(self, context: Context, results: Results) -> list[Table]:
        return [self._table(context, results, setup) for setup in context.for_network(NETWORK)]

    def _table(self, context: Context, results: Results, setup: Setup) -> Table:
        columns = [
            column
            for name in _STREAMS
            for column in (
                Column(title=name, kind="ours"),
                Column(title="against Source", kind="ours", unit="points"),
            )
        ]
        rows = []
        for method in self._methods(context):
            cells = []
            for stream in _STREAMS:
                own, source = (self._cell(context, results, setup, stream, name) for name in (method, "source"))
                cells += [own, minus(own, source)]
            rows.append(Row(display(method), tuple(cells)))
        return Table(
            title=f"{dataset_title(setup)}, accuracy in %, and points against the plain model",
            row_title="method",
            columns=tuple(columns),
            rows=tuple(rows),
        )

    def _methods(self, context: Context) -> list[str]:
        return [name for name in METHODS if context.wants(name) or name == "source"]

    def _specs(self, context: Context, setup: Setup, stream: str, method: str) -> list[RunSpec]:
        settings = dict(_STREAMS[stream])
        images = context.spec(setup).images
        if images is not None and "clean" in stream:
            settings["images"] = _LONGER * images
        return context.specs(setup, method=method, **settings)

    def _cell(self, context: Context, results: Results, setup: Setup, stream: str, method: str) -> Cell:
        specs = self._specs(context, setup, stream, method)
        return Cell(values=results.values(specs), text=FAILED if results.failed(specs) else "")


ITEM = Clean()
