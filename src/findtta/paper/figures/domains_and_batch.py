"""Figure 4: source and batch statistics by the number of domains in a batch, and by the batch size."""

from __future__ import annotations

import statistics

from findtta.bench.spec import RunSpec
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper.document import Cell
from findtta.paper.figures.base import PaperFigure, accuracy_series
from findtta.paper.figures.batch_size import sizes, ticks
from findtta.paper.items import Context, Results, Setup
from findtta.paper.notes import dataset_title
from findtta.plots import Panel, Series

METHODS = {"source": "SBN", "tbn": "TBN"}
#: Numbers of domains that share the fifteen out evenly.
COUNTS = (1, 3, 5, 15)


def mixtures(count: int) -> list[tuple[str, ...]]:
    """Share the fifteen corruptions out to mixtures of so many, each of unlike kinds.

    >>> mixtures(5)[0]
    ('gaussian_noise', 'defocus_blur', 'zoom_blur', 'fog', 'elastic_transform')
    """
    parts = len(MAIN_CORRUPTIONS) // count
    return [MAIN_CORRUPTIONS[first::parts] for first in range(parts)]


class DomainsAndBatch(PaperFigure):
    """Accuracy of SBN and TBN against the number of domains and against the batch size."""

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for _, setup in self.at_hand(context)
            for method in METHODS
            for spec in [
                *(
                    spec
                    for count in COUNTS
                    for domains in mixtures(count)
                    for spec in self._mixed(context, setup, method, domains)
                ),
                *(spec for size in sizes(context) for spec in self._sized(context, setup, method, size)),
            ]
        ]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "By the number of domains: every point is of the same images. For n domains the fifteen are shared "
            "out to 15 / n streams of n, and the accuracies averaged, so that only what shares a batch differs; "
            "otherwise a change could be that of harder domains.",
            "SBN is the source model: its outputs do not depend on the batch at all.",
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        panels = []
        for _, setup in self.at_hand(context):
            by_count = [one for method in METHODS for one in self._by_count(context, results, setup, method)]
            by_size = [
                one
                for method in METHODS
                for one in accuracy_series(
                    results,
                    METHODS[method],
                    [(size, self._sized(context, setup, method, size)) for size in sizes(context)],
                    look=method,
                )
            ]
            panels += [
                Panel(
                    title=dataset_title(setup),
                    x="domains in a batch",
                    y="accuracy (%)",
                    series=tuple(by_count),
                    ticks={str(count): count for count in COUNTS},
                ),
                Panel(
                    title=f"{dataset_title(setup)}, CrossMix",
                    x="batch size",
                    y="accuracy (%)",
                    series=tuple(by_size),
                    doubling=True,
                    ticks=ticks(context),
                ),
            ]
        return panels

    def _mixed(self, context: Context, setup: Setup, method: str, domains: tuple[str, ...]) -> list[RunSpec]:
        everything = len(domains) == len(MAIN_CORRUPTIONS)
        return context.specs(setup, method=method, stream="crossmix", domains=None if everything else domains)

    def _sized(self, context: Context, setup: Setup, method: str, size: int) -> list[RunSpec]:
        return context.specs(setup, method=method, stream="crossmix", batch_size=size)

    def _by_count(self, context: Context, results: Results, setup: Setup, method: str) -> list[Series]:
        points = []
        for count in COUNTS:
            found = [results.values(self._mixed(context, setup, method, domains)) for domains in mixtures(count)]
            seeds = set.intersection(*map(set, found))
            cell = Cell(values={seed: statistics.fmean(one[seed] for one in found) for seed in sorted(seeds)})
            if cell.ours is not None:
                points.append((float(count), cell.ours, cell.deviation or 0.0))
        if not points:
            return []
        x, y, spread = zip(*points, strict=True)
        return [Series(name=METHODS[method], look=method, x=x, y=y, spread=spread)]


ITEM = DomainsAndBatch("domains-and-batch")
