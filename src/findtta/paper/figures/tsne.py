"""Figure 3: maps of features at a BatchNorm layer, by domain and by class."""

from __future__ import annotations

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper.document import Picture, picture
from findtta.paper.figures.base import PaperFigure, done_reading
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.paper.measure.groups import TRUTHS
from findtta.paper.notes import dataset_title
from findtta.plots import Panel, Series

SAMPLES, SAMPLES_QUICK = 600, 300
_EARLY, _LAST = 0.25, 1.0
#: What each panel shows: a title, the truth that colours it, how deep the layer is, and whether domains are mixed.
_PANELS = (
    ("by domain, all mixed", "domain", _EARLY, True),
    ("by class, one domain", "class", _LAST, False),
    ("by class, all domains mixed", "class", _LAST, True),
)


class TSNE(PaperFigure):
    """Features mapped to two dimensions."""

    def probes(self, context: Context) -> list[Probe]:
        return [
            self._probe(context, setup, depth, mixed)
            for _, setup in self.at_hand(context)
            for _, _, depth, mixed in _PANELS
        ]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "The features are the means over positions of what a layer of the source model is given, each channel "
            "divided by its deviation. The paper names no layer: domains are shown a quarter into the network, "
            "classes at the last BatchNorm layer.",
            f"The one domain is {MAIN_CORRUPTIONS[0]}, which is harder than most: how it differs from the mixture "
            "is due to both.",
            "A map shows clusters where there are none, and may hide some. The titles give what was measured on "
            "the features themselves: how often the nearest neighbour is of the same domain or class, and by "
            "chance; other copies of the same image do not count.",
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        return [
            self._panel(context, results, setup, *panel) for _, setup in self.at_hand(context) for panel in _PANELS
        ]

    def pictures(self, context: Context, results: Results) -> list[Picture]:
        # Apart, since domains and classes have a legend each.
        panels = [panel for panel in self.panels(context, results) if panel.series]
        parts = {truth: [panel for panel in panels if f"by {truth}" in panel.title] for truth in TRUTHS}
        return [picture(f"{self.title}, by {truth}", shown, name=truth) for truth, shown in parts.items() if shown]

    def _probe(self, context: Context, setup: Setup, depth: float, mixed: bool) -> Probe:
        samples = SAMPLES_QUICK if context.quick else SAMPLES
        images = context.spec(setup).images
        return Probe(
            kind="findtta.paper.measure.features:measure_map",
            spec=context.spec(
                setup,
                method="source",
                stream="crossmix" if mixed else "static",
                domains=None if mixed else MAIN_CORRUPTIONS[:1],
                # As many images as in the mixture: neighbours are nearer among more of them.
                images=images if mixed or images is None else max(images, samples),
            ),
            settings={"samples": samples, "depth": depth},
        )

    def _panel(
        self, context: Context, results: Results, setup: Setup, title: str, truth: str, depth: float, mixed: bool
    ) -> Panel:
        reading = done_reading(results, self._probe(context, setup, depth, mixed))
        series: list[Series] = []
        if reading is not None:
            value = reading.value
            agreement = value["agreement"][truth]
            title = (
                f"{dataset_title(setup)}, {title}\nlayer {value['index'] + 1} of {value['layers']}; "
                f"neighbours alike: {agreement['same']:.0f} % (chance {agreement['chance']:.0f} %)"
            )
            for kind in dict.fromkeys(sorted(value[truth])):
                places = [place for place, one in enumerate(value[truth]) if one == kind]
                x, y = (tuple(value[name][place] for place in places) for name in ("x", "y"))
                series.append(Series(name=kind.partition("@")[0].replace("_", " "), x=x, y=y))
        return Panel(title=title, x="t-SNE 1", y="t-SNE 2", series=tuple(series), style="points")


ITEM = TSNE("tsne")
