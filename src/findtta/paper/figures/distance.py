"""Figure 13: how far instance statistics are from batch statistics, against accuracy, over severities."""

from __future__ import annotations

from findtta.data.dataset import SEVERITIES, domain_name
from findtta.paper.figures.base import PaperFigure, done_reading
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.paper.notes import dataset_title
from findtta.plots import Panel, Series

#: One of each family: the paper shows four and does not name them.
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")
MEASURES = {"l2": "L2 distance", "cosine": "cosine distance"}
_DEEP = 1 / 3


class Distance(PaperFigure):
    """Distance of instance and batch statistics against accuracy."""

    def probes(self, context: Context) -> list[Probe]:
        return [self._probe(context, setup) for _, setup in self.at_hand(context)]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "Distances are those of the mean of an image to the mean of its batch, averaged over images and the "
            "last third of the layers; the accuracy is that of TBN. Points are severities 1 to 5.",
            f"The corruptions are {', '.join(CORRUPTIONS)}; the paper does not name its four.",
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        return [
            self._panel(context, results, setup, measure)
            for _, setup in self.at_hand(context)
            for measure in MEASURES
        ]

    def _probe(self, context: Context, setup: Setup) -> Probe:
        return Probe(
            kind="findtta.paper.measure.features:measure_distances",
            spec=context.spec(setup, method="tbn", stream="static", domains=CORRUPTIONS, severity=SEVERITIES),
            settings={"part": _DEEP},
        )

    def _panel(self, context: Context, results: Results, setup: Setup, measure: str) -> Panel:
        reading = done_reading(results, self._probe(context, setup))
        domains = reading.value["domains"] if reading else {}
        series = []
        for corruption in CORRUPTIONS:
            levels = [level for level in SEVERITIES if domain_name(corruption, level) in domains]
            points = [domains[domain_name(corruption, level)] for level in levels]
            if points:
                series.append(
                    Series(
                        name=corruption.replace("_", " "),
                        x=tuple(point[measure] for point in points),
                        y=tuple(point["accuracy"] for point in points),
                        labels=tuple(map(str, levels)),
                    )
                )
        return Panel(
            title=f"{dataset_title(setup)}, severities 1 to 5",
            x=f"{MEASURES[measure]} of instance and batch mean",
            y="accuracy of TBN (%)",
            series=tuple(series),
            style="points",
        )


ITEM = Distance("distance")
