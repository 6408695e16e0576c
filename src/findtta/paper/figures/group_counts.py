"""Figure 12: how many groups every layer has in the dynamic streams, with the number in noise beside it."""

from __future__ import annotations

import math

from findtta.bench.spec import RunSpec
from findtta.paper.controls.base import groups_probe
from findtta.paper.figures.base import DYNAMIC, SAME_BATCHES, PaperFigure, done_reading, done_runs, mean_over_runs
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.paper.notes import dataset_title
from findtta.plots import Panel, Series


class GroupCounts(PaperFigure):
    """Number of groups in every layer."""

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for _, setup in self.at_hand(context)
            for stream in DYNAMIC
            for spec in self._specs(context, setup, stream)
        ]

    def probes(self, context: Context) -> list[Probe]:
        return [self._noise(context, setup) for _, setup in self.at_hand(context)]

    def notes(self, context: Context, results: Results) -> list[str]:
        batches = sorted({run.config["stream"]["batches"] for run in results.runs if run.config})
        counted = " or ".join(f"{count:,}" for count in batches)
        return [
            *([f"Bands are one deviation over {counted} batches; the paper: 1,000."] if batches else []),
            "Noise: groups that LFD finds in as many independent normal numbers, which have none; see "
            "control-group-counts for more.",
            SAME_BATCHES,
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        return [
            Panel(
                title=dataset_title(setup),
                x="BatchNorm layer",
                y="groups in a batch",
                series=(
                    *(
                        one
                        for stream, title in DYNAMIC.items()
                        for one in self._series(context, results, setup, stream, title)
                    ),
                    *self._noise_series(context, results, setup),
                ),
                style="bands",
            )
            for _, setup in self.at_hand(context)
        ]

    def _specs(self, context: Context, setup: Setup, stream: str) -> list[RunSpec]:
        return context.specs(setup, method="find", stream=stream)

    def _noise(self, context: Context, setup: Setup) -> Probe:
        return groups_probe(context, setup, "crossmix", context.batch_size)

    def _series(self, context: Context, results: Results, setup: Setup, stream: str, title: str) -> list[Series]:
        runs = done_runs(results, self._specs(context, setup, stream))
        means, deviations = (mean_over_runs(runs, field) for field in ("groups_mean", "groups_std"))
        if not means:
            return []
        spread = tuple(deviations.get(place, 0.0) for place in means)
        return [Series(name=title, look=title, x=tuple(map(float, means)), y=(*means.values(),), spread=spread)]

    def _noise_series(self, context: Context, results: Results, setup: Setup) -> list[Series]:
        reading = done_reading(results, self._noise(context, setup))
        counts = [layer["groups_noise"]["mean"] for layer in reading.value["layers"]] if reading else []
        counts = [count for count in counts if math.isfinite(count)]
        x = tuple(float(place) for place in range(len(counts)))
        return [Series(name="noise", look="noise", x=x, y=tuple(counts))] if counts else []


ITEM = GroupCounts("group-counts")
