"""Accuracy of FIND by alpha, the weight of the source statistics; the paper announces it without a figure."""

from __future__ import annotations

from findtta.bench.spec import RunSpec
from findtta.paper.figures.base import DYNAMIC, SAME_BATCHES, PaperFigure, accuracy_series
from findtta.paper.items import Context, Results, Setup
from findtta.paper.notes import dataset_title
from findtta.plots import Panel

ALPHAS = tuple(step / 10 for step in range(11))
ALPHAS_QUICK = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_PAPER_CHOICE = 0.8
_STREAMS = {**DYNAMIC, "static": "Static"}


def alphas(context: Context) -> tuple[float, ...]:
    """Return the weights to compare."""
    return ALPHAS_QUICK if context.quick else ALPHAS


class Alpha(PaperFigure):
    """Accuracy of FIND against alpha."""

    title = "accuracy of FIND against alpha, the weight of the source statistics"

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for _, setup in self.at_hand(context)
            for stream in _STREAMS
            for alpha in alphas(context)
            for spec in self._specs(context, setup, stream, alpha)
        ]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "The paper refers to a detailed analysis of alpha in its supplementary material, but shows none; it "
            f"uses {_PAPER_CHOICE:g} everywhere (dotted line).",
            "At 1 FIND is the source model, at 0 only the statistics of the groups count (TFN).",
            SAME_BATCHES,
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        return [
            Panel(
                title=dataset_title(setup),
                x="alpha",
                y="accuracy (%)",
                series=tuple(
                    one
                    for stream, title in _STREAMS.items()
                    for one in accuracy_series(
                        results,
                        title,
                        [(alpha, self._specs(context, setup, stream, alpha)) for alpha in alphas(context)],
                    )
                ),
                mark=_PAPER_CHOICE,
            )
            for _, setup in self.at_hand(context)
        ]

    def _specs(self, context: Context, setup: Setup, stream: str, alpha: float) -> list[RunSpec]:
        return context.specs(setup, method="find", options={"alpha": alpha}, stream=stream)


ITEM = Alpha("alpha")
