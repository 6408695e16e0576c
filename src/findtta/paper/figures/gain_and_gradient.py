"""Figure 2: what batch statistics add, what fine-tuning adds on top of them, and the gradient at every step."""

from __future__ import annotations

from findtta.bench.spec import RunSpec
from findtta.paper.document import Cell
from findtta.paper.figures.base import PaperFigure, done_reading
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.paper.notes import dataset_title
from findtta.plots import Panel, Series

METHODS = {"source": "Source", "tbn": "+ batch statistics (TBN)", "sar": "+ fine-tuning (SAR)"}
STREAMS = {"static": "Static", "crossmix": "CrossMix"}
STEPS, STEPS_QUICK = 1000, 100


class GainAndGradient(PaperFigure):
    """Gain of normalisation and of fine-tuning, and the gradient in static and dynamic streams."""

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for _, setup in self.at_hand(context)
            for method in METHODS
            for stream in STREAMS
            for spec in context.specs(setup, method=method, stream=stream)
        ]

    def probes(self, context: Context) -> list[Probe]:
        return [
            self._gradients(context, setup, stream) for _, setup in self.at_hand(context) for stream in STREAMS
        ]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "Fine-tuning is SAR, which normalises with batch statistics, so what it has over TBN is its own.",
            "The gradient is that of SAR's loss over the images that it selects, over all parameters that it "
            "trains, at every batch from which it learns; the first seed. The paper says neither which "
            "parameters nor which dynamic stream it shows; here CrossMix.",
            "In a static stream the gradient also follows the domain at hand: where it falls, an easier domain "
            "may have come, so that a fall alone does not show that learning converges.",
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        return [
            panel
            for _, setup in self.at_hand(context)
            for panel in (self._gains(context, results, setup), self._steps(context, results, setup))
        ]

    def _gains(self, context: Context, results: Results, setup: Setup) -> Panel:
        series = []
        for method, title in METHODS.items():
            cells = [
                Cell(values=results.values(context.specs(setup, method=method, stream=one))) for one in STREAMS
            ]
            done = [(float(place), cell) for place, cell in enumerate(cells) if cell.ours is not None]
            if done:
                series.append(
                    Series(
                        name=title,
                        look=method,
                        x=tuple(place for place, _ in done),
                        y=tuple(cell.ours or 0.0 for _, cell in done),
                        spread=tuple(cell.deviation or 0.0 for _, cell in done),
                    )
                )
        return Panel(
            title=dataset_title(setup),
            x="stream",
            y="accuracy (%)",
            series=tuple(series),
            style="bars",
            ticks={title: float(place) for place, title in enumerate(STREAMS.values())},
        )

    def _steps(self, context: Context, results: Results, setup: Setup) -> Panel:
        series = []
        for stream, title in STREAMS.items():
            reading = done_reading(results, self._gradients(context, setup, stream))
            if reading is not None and reading.value["steps"]:
                x, y = (tuple(map(float, reading.value[name])) for name in ("steps", "norms"))
                series.append(Series(name=title, look=title, x=x, y=y))
        return Panel(
            title=f"{dataset_title(setup)}, SAR",
            x="adaptation step",
            y="norm of the gradient",
            series=tuple(series),
            style="bands",
        )

    def _gradients(self, context: Context, setup: Setup, stream: str) -> Probe:
        return Probe(
            kind="findtta.paper.measure.gradients:measure_gradients",
            spec=context.spec(setup, method="sar", stream=stream),
            settings={"batches": STEPS_QUICK if context.quick else STEPS},
        )


ITEM = GainAndGradient("gain-and-gradient")
