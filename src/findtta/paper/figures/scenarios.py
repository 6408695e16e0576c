"""Figure 9: the streams, drawn from the streams themselves."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from findtta.paper.document import Picture
from findtta.paper.figures.base import DYNAMIC, PaperFigure, done_reading
from findtta.paper.items import Context, Probe, Results, Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = {"static": "Static", **DYNAMIC}
_COLUMNS = 120
_LEGEND_COLUMNS = 5


class Scenarios(PaperFigure):
    """Shares of the domains along the streams."""

    def probes(self, context: Context) -> list[Probe]:
        setup = self._setup(context)
        return [self._probe(context, setup, stream) for stream in STREAMS] if setup else []

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "Batches from left to right, and in each the shares of the domains; of the first dataset at hand and "
            "the first seed."
        ]

    def pictures(self, context: Context, results: Results) -> list[Picture]:
        setup = self._setup(context)
        readings = {
            title: done_reading(results, self._probe(context, setup, stream)) if setup else None
            for stream, title in STREAMS.items()
        }
        shown = {title: dict(reading.value) for title, reading in readings.items() if reading is not None}
        if not shown:
            return []
        return [
            Picture(
                name="",
                title=self.title,
                draw=functools.partial(_draw, streams=shown),
                size=(9.0, 1.5 * len(shown) + 1.0),
                data={"streams": shown},
            )
        ]

    def _setup(self, context: Context) -> Setup | None:
        return next((setup for _, setup in self.at_hand(context)), None)

    def _probe(self, context: Context, setup: Setup, stream: str) -> Probe:
        return Probe(
            kind="findtta.paper.measure.drawings:measure_shares",
            spec=context.spec(setup, method="source", stream=stream),
            settings={"columns": _COLUMNS},
        )


def _draw(figure: Figure, streams: Mapping[str, Mapping[str, Any]]) -> None:
    import numpy as np
    from matplotlib.patches import Patch

    from findtta.streams.plot import View, domain_colours, draw_view

    colours = domain_colours([domain for stream in streams.values() for domain in stream["domains"]])
    axes = figure.subplots(len(streams), 1, squeeze=False)[:, 0]
    for axis, (title, stream) in zip(axes, streams.items(), strict=True):
        view = View(stream["title"], np.asarray(stream["edges"]), np.asarray(stream["shares"], dtype=float))
        draw_view(axis, view, [colours[domain] for domain in stream["domains"]])
        axis.set_title(title, loc="left", fontsize=10)
    figure.legend(
        handles=[Patch(color=colours[name], label=label) for name, label in _labels(list(colours))],
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS,
        fontsize=8,
        frameon=False,
    )


def _labels(domains: Sequence[str]) -> list[tuple[str, str]]:
    return [(domain, domain.partition("@")[0].replace("_", " ")) for domain in domains]


ITEM = Scenarios("scenarios")
