"""The demo: corrupted images in mixed batches, and what each method makes of them.

Everything comes with the package: drawn shapes, their corruptions and a model trained on clean ones.
"""

import dataclasses
import functools
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import findtta
from findtta.bench.comparison import Comparison, compare
from findtta.bench.evaluate import interleaved_ratios
from findtta.bench.execute import schedule
from findtta.bench.executors import Serial, Watch, ignore
from findtta.bench.plan import Plan, Planner, RunSpec
from findtta.bench.result import Result
from findtta.bench.store import Store
from findtta.data.dataset import HeldDataset
from findtta.intervals import interval
from findtta.tables import Cell, Column, Row

METHODS = ("source", "tbn", "alpha-bn", "iabn", "tent", "find", "find-star", "find-soft", "find-domains")
STREAMS = {
    "crossmix": "each batch mixes all fifteen corruptions",
    "static": "one corruption after another",
    "wild": "random mixtures, and few classes at a time",
}
IMAGES = 160  # per corruption
_TIMED_BATCHES = 10  # after as many that only warm up, and take FIND* through its cold start


@dataclass(frozen=True)
class Outcome:
    """What the demo found."""

    results: Mapping[tuple[str, str], Result]  # the result of each method on each stream
    ratios: Mapping[str, float]  # the time per batch, relative to the source model
    source: float  # the accuracy of the source model on clean images, in per cent

    def accuracy(self, method: str, stream: str) -> float:
        """Return the accuracy of a method on a stream, in per cent."""
        return self.results[method, stream].accuracy

    def table(self) -> Comparison:
        """Return the accuracies as a table with intervals, and the time per batch as its last column."""
        (table,) = compare(self.results.values())
        columns = [dataclasses.replace(column, decimals=1) for column in table.columns]
        times = Column(title="time per batch", kind="text")
        rows = [
            Row(row.titles, (*row.cells, Cell(text=f"{self.ratios[row.titles[0]]:.2f}x"))) for row in table.rows
        ]
        return dataclasses.replace(table, columns=(*columns, times), rows=tuple(rows))

    def sentences(self) -> str:
        """Describe the table in words, from its own numbers."""
        mixed = (
            f"Where corruptions are mixed (crossmix), FIND differs by {self._gain('source', 'crossmix')} points "
            f"from the source model, and by {self._gain('tbn', 'crossmix')} from statistics of the whole batch "
            "(tbn), which fit none of the corruptions."
        )
        static = f"With one corruption at a time (static), it differs by {self._gain('tbn', 'static')} from tbn."
        wild = (
            f"With few classes in a batch (wild), it differs by {self._gain('tbn', 'wild')} from tbn and by "
            f"{self._gain('source', 'wild')} from the source model."
        )
        return "\n".join(textwrap.fill(sentence, 100) for sentence in (mixed, static, wild))

    def _gain(self, other: str, stream: str) -> str:
        """Return how far FIND is above another method, with the interval."""
        own, others = self.results["find", stream].scores, self.results[other, stream].scores
        paired = own.minus(others)
        assert paired is not None, "both saw the same stream"
        return interval([paired]).text()


class _Planner(Planner):
    """Plans runs that share the corrupted images, which take as long to make as FIND takes for them."""

    def __init__(self) -> None:
        super().__init__()
        self._held = functools.cache(HeldDataset)

    def plan(self, spec: RunSpec) -> Plan:
        plan = super().plan(spec)
        return dataclasses.replace(plan, dataset=self._held(plan.dataset))


def run(store: Store, *, seed: int = 0, images: int = IMAGES, watch: Watch = ignore) -> Outcome:
    """Run the methods on the streams, with some images per corruption; what is stored already is not run again."""
    planner = _Planner()
    shared: dict[str, Any] = {"seed": seed, "images": images}
    specs = [RunSpec(method=method, stream=stream, **shared) for stream in STREAMS for method in METHODS]
    planned = schedule(specs, store, planner, retry_failed=True)
    for _ in planned.run(Serial(planner, raise_errors=True), watch):
        pass
    results = {(spec.method, spec.stream): result for spec, result in planned.pairs()}
    model = findtta.models.load("shapes-resnet26")
    plan = planner.plan(RunSpec(stream="crossmix", **shared))
    batches = [inputs for inputs, _, _ in plan.batches(_TIMED_BATCHES)]
    adapted = {method: findtta.adapt(model, method) for method in METHODS}
    ratios = interleaved_ratios(adapted, batches, baseline="source", warmup=_TIMED_BATCHES)
    return Outcome(results, ratios, model.card.clean_accuracy or 0.0)
