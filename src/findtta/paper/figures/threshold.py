"""Figure 6: accuracy and time of FIND* by its threshold."""

from __future__ import annotations

from findtta.bench.spec import RunSpec
from findtta.paper.cost import TIMING_NOTE, times_probe, timing_failures
from findtta.paper.figures.base import RESNET, PaperFigure, accuracy_series, done_reading, panel_title
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.plots import Panel, Series

THRESHOLDS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
THRESHOLDS_QUICK = (0.0, 0.1, 0.3, 1.0)
_PAPER_CHOICE = 0.1


def thresholds(context: Context) -> tuple[float, ...]:
    """Return the thresholds to compare."""
    return THRESHOLDS_QUICK if context.quick else THRESHOLDS


class Threshold(PaperFigure):
    """Accuracy and time of FIND* against its threshold."""

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for _, setup in self.at_hand(context)
            for value in thresholds(context)
            for spec in self._specs(context, setup, value)
        ]

    def probes(self, context: Context) -> list[Probe]:
        return [self._times(context, setup) for _, setup in self.at_hand(context)]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "At 0 every layer is split, as in FIND; at 1 only the most sensitive one. The dotted line is the "
            f"paper's choice, {_PAPER_CHOICE:g}.",
            TIMING_NOTE,
            *(note for reading in results.readings for note in timing_failures(reading)),
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        return [
            Panel(
                title=panel_title(setup, place[1]),
                x="threshold gamma",
                y="accuracy (%)",
                right="time per batch (times Source)",
                series=(*self._accuracies(context, results, setup), *self._ratios(context, results, setup)),
                mark=_PAPER_CHOICE,
            )
            for place, setup in self.at_hand(context)
        ]

    def _specs(self, context: Context, setup: Setup, value: float) -> list[RunSpec]:
        return context.specs(setup, method="find-star", options={"threshold": value}, stream="crossmix")

    def _times(self, context: Context, setup: Setup) -> Probe:
        candidates = {_name(value): ("find-star", {"threshold": value}) for value in thresholds(context)}
        return times_probe(context, setup, candidates)

    def _accuracies(self, context: Context, results: Results, setup: Setup) -> list[Series]:
        points = [(value, self._specs(context, setup, value)) for value in thresholds(context)]
        return accuracy_series(results, "accuracy", points, look="find-star")

    def _ratios(self, context: Context, results: Results, setup: Setup) -> list[Series]:
        reading = done_reading(results, self._times(context, setup))
        found = reading.value.get("candidates", {}) if reading else {}
        points = [
            (value, found[_name(value)]["ratio"])
            for value in thresholds(context)
            if "ratio" in found.get(_name(value), {})
        ]
        if not points:
            return []
        x, y = zip(*points, strict=True)
        return [Series(name="time", look="time", x=x, y=y, right=True)]


def _name(value: float) -> str:
    return f"threshold {value:g}"


ITEM = Threshold("threshold", [("imagenet-c", RESNET), ("cifar10-c", RESNET)])
