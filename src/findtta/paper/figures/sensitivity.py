"""Figure 10: the sensitivity score of every layer, and what the length of the cold start changes about it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from findtta.bench.result import Result
from findtta.bench.spec import RunSpec
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper.document import Picture, picture
from findtta.paper.figures.base import (
    RESNET,
    TRANSFORMER,
    PaperFigure,
    done_runs,
    mean_over_runs,
    panel_title,
)
from findtta.paper.items import Context, Results, Setup
from findtta.plots import Panel, Series

COLD_STARTS, COLD_STARTS_QUICK = (3, 5, 10, 20, 50, 100), (3, 10, 20)
_USUAL = 10
_COLD_START_PLACE = ("cifar10-c", RESNET)


def cold_starts(context: Context) -> tuple[int, ...]:
    """Return the lengths of the cold start to compare."""
    return COLD_STARTS_QUICK if context.quick else COLD_STARTS


class Sensitivity(PaperFigure):
    """Score of every layer."""

    def specs(self, context: Context) -> list[RunSpec]:
        usual = [spec for _, setup in self.at_hand(context) for spec in self._usual(context, setup)]
        return usual + [spec for length in cold_starts(context) for spec in self._cold(context, length)]

    def notes(self, context: Context, results: Results) -> list[str]:
        asked = [("the usual cold start", _USUAL)] + [
            (f"{length} batches", length) for length in cold_starts(context)
        ]
        runs = [run for run in results.runs if run.status == "done"]
        left_out = [
            name
            for name, length in dict(asked).items()
            if any(_cold_start(run) == length and not _is_scored(run) for run in runs)
        ]
        return [
            "Scores are brought to 0 for the lowest layer of a network and 1 for its highest, as FIND* uses them: "
            "compare where they are high, not how high they are in two panels.",
            *([f"Left out, since a stream ends before: {', '.join(left_out)}."] if left_out else []),
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        usual = [
            _panel(
                panel_title(setup, place[1]),
                self._series("score", results, self._usual(context, setup), "find-star"),
            )
            for place, setup in self.at_hand(context)
        ]
        cold = [
            one
            for length in cold_starts(context)
            for one in self._series(f"{length} batches", results, self._cold(context, length))
        ]
        setup = context.find(*_COLD_START_PLACE)
        title = f"cold starts of several lengths, {panel_title(setup, RESNET)}" if setup else ""
        return [*usual, _panel(title, cold)]

    def pictures(self, context: Context, results: Results) -> list[Picture]:
        shown = [panel for panel in self.panels(context, results) if panel.series]
        return [picture(self.title, shown, columns=1)] if shown else []

    def _usual(self, context: Context, setup: Setup) -> list[RunSpec]:
        return context.specs(setup, method="find-star", stream="crossmix")

    def _cold(self, context: Context, length: int) -> list[RunSpec]:
        setup = context.find(*_COLD_START_PLACE)
        if setup is None:
            return []
        images = context.spec(setup).images
        # All of one stream, long enough for the longest.
        needed = math.ceil(max(cold_starts(context)) * context.batch_size / len(MAIN_CORRUPTIONS)) + 1
        return context.specs(
            setup,
            method="find-star",
            options={"cold_start": length},
            stream="crossmix",
            images=None if images is None else max(images, needed),
        )

    def _series(self, name: str, results: Results, specs: Sequence[RunSpec], look: str = "") -> list[Series]:
        scores = mean_over_runs([run for run in done_runs(results, specs) if _is_scored(run)], "score")
        if not scores:
            return []
        return [Series(name=name, look=look, x=tuple(map(float, scores)), y=(*scores.values(),))]


def _panel(title: str, series: Sequence[Series]) -> Panel:
    return Panel(title=title, x="BatchNorm layer", y="score", series=tuple(series))


def _cold_start(run: Result) -> int:
    return int(run.config["options"]["cold_start"])


def _is_scored(run: Result) -> bool:
    """Return whether the cold start ended; before that the scores are not yet comparable."""
    return int(run.config["stream"]["batches"]) >= _cold_start(run)


ITEM = Sensitivity(
    "sensitivity",
    [*((name, RESNET) for name in ("imagenet-c", "cifar10-c", "cifar100-c")), ("cifar10-c", TRANSFORMER)],
)
