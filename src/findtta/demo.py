"""The demo: corrupted images in mixed batches, and what each method makes of them.

Everything comes with the package: drawn shapes, their corruptions and a model trained on clean ones.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import findtta
from findtta.bench.evaluate import interleaved_ratios
from findtta.bench.execute import schedule
from findtta.bench.executors import Serial, Watch, ignore
from findtta.bench.plan import Planner, RunSpec
from findtta.bench.result import Result
from findtta.bench.store import Store
from findtta.tables import render

METHODS = ("source", "tbn", "alpha-bn", "iabn", "tent", "find", "find-star", "find-soft")
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

    def table(self) -> str:
        """Return the accuracies as a table; the best of each stream has a star."""
        best = {stream: max(METHODS, key=lambda name: self.accuracy(name, stream)) for stream in STREAMS}
        rows = []
        for method in METHODS:
            cells = [f"{self.accuracy(method, stream):.1f}{' *'[best[stream] == method]}" for stream in STREAMS]
            rows.append((method, *cells, f"{self.ratios[method]:.2f}x"))
        return render(("method", *STREAMS, "time per batch"), rows)

    def sentences(self) -> str:
        """Describe the table in words, from its own numbers."""
        over_source, over_tbn = (
            {stream: self.accuracy("find", stream) - self.accuracy(other, stream) for stream in STREAMS}
            for other in ("source", "tbn")
        )
        mixed = (
            "Where corruptions are mixed (crossmix), the accuracy of FIND differs by "
            f"{over_source['crossmix']:+.1f} points from the source model's, and by {over_tbn['crossmix']:+.1f} "
            "points from that of statistics over the whole batch (tbn), which fit none of the corruptions."
        )
        ahead = "tbn, which is made for this, is ahead by" if over_tbn["static"] < 0 else "FIND is ahead of tbn by"
        static = f"With one corruption at a time (static), {ahead} {abs(over_tbn['static']):.1f} points."
        wild = (
            f"With few classes in a batch (wild), FIND differs from tbn by {over_tbn['wild']:+.1f} points and "
            f"from the source model by {over_source['wild']:+.1f}."
        )
        return "\n".join(textwrap.fill(sentence, 100) for sentence in (mixed, static, wild))


def run(store: Store, *, seed: int = 0, images: int = IMAGES, watch: Watch = ignore) -> Outcome:
    """Run the methods on the streams, with some images per corruption; what is stored already is not run again."""
    planner = Planner()
    shared: dict[str, Any] = {"seed": seed, "data_options": {"count": images}, "images": None}
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
