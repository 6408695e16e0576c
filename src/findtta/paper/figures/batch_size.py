"""Figure 7: every method by the batch size, on the two small datasets."""

from __future__ import annotations

from findtta.bench.spec import RunSpec
from findtta.paper.figures.base import RESNET, PaperFigure, method_series
from findtta.paper.items import Context, Results, Setup
from findtta.paper.notes import dataset_title
from findtta.paper.numbers import METHODS
from findtta.plots import Panel

BATCH_SIZES, BATCH_SIZES_QUICK = (1, 4, 16, 64, 256), (1, 8, 64)


def sizes(context: Context) -> tuple[int, ...]:
    """Return the batch sizes to compare."""
    return BATCH_SIZES_QUICK if context.quick else BATCH_SIZES


def ticks(context: Context) -> dict[str, float]:
    """Return the ticks of an axis of batch sizes."""
    return {str(size): float(size) for size in sizes(context)}


class BatchSize(PaperFigure):
    """Accuracy of every method against the batch size."""

    def specs(self, context: Context) -> list[RunSpec]:
        return [
            spec
            for _, setup in self.at_hand(context)
            for method in METHODS
            if context.wants(method)
            for size in sizes(context)
            for spec in self._specs(context, setup, method, size)
        ]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "The learning rates are the same at every batch size, so that with small batches methods that learn "
            "take more steps; the paper does not say what it did.",
            "In a batch of one FIND has one group of one image: a blend of source and instance statistics.",
        ]

    def panels(self, context: Context, results: Results) -> list[Panel]:
        return [
            Panel(
                title=f"{dataset_title(setup)}, CrossMix",
                x="batch size",
                y="accuracy (%)",
                series=tuple(
                    one
                    for method in METHODS
                    if context.wants(method)
                    for one in method_series(
                        results,
                        method,
                        [(size, self._specs(context, setup, method, size)) for size in sizes(context)],
                    )
                ),
                doubling=True,
                ticks=ticks(context),
            )
            for _, setup in self.at_hand(context)
        ]

    def _specs(self, context: Context, setup: Setup, method: str, size: int) -> list[RunSpec]:
        return context.specs(setup, method=method, stream="crossmix", batch_size=size)


ITEM = BatchSize("batch-size", [("cifar10-c", RESNET), ("cifar100-c", RESNET)])
