"""The first thing a visitor runs: drift in mixed batches, and what each method makes of it.

Everything comes with the package: drawn shapes, their corruptions and a network trained on clean ones.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import findtta
from findtta.bench.plan import Planner
from findtta.bench.result import Result
from findtta.bench.run import run as run_one
from findtta.bench.spec import RunSpec
from findtta.bench.store import Store
from findtta.bench.timing import interleaved_ratios
from findtta.images import to_input
from findtta.tables import render

METHODS = ("source", "tbn", "alpha-bn", "iabn", "tent", "find", "find-star", "find-soft")
STREAMS = {
    "crossmix": "every batch mixes all fifteen kinds of drift",
    "static": "one kind of drift after another",
    "wild": "random mixtures, and few classes at a time",
}
IMAGES = 160  # per kind of drift
_TIMED_BATCHES = 10  # after as many that only warm up, and take FIND* through its cold start

#: Called with the name of the run, the share of it that is done and the accuracy so far.
Progress = Callable[[str, float, float], None]


@dataclass(frozen=True)
class Outcome:
    """What the demo found.

    Attributes:
        results: The result of every method in every stream.
        ratios: How long a batch takes, compared with the plain model.
        source: The accuracy of the plain model on clean images, in per cent.
    """

    results: Mapping[tuple[str, str], Result]
    ratios: Mapping[str, float]
    source: float

    def accuracy(self, method: str, stream: str) -> float:
        """Return the percentage right of a method in a stream."""
        return self.results[method, stream].accuracy

    def table(self) -> str:
        """Return the accuracies as a table; the best of a stream has a star."""
        best = {stream: max(METHODS, key=lambda name: self.accuracy(name, stream)) for stream in STREAMS}
        rows = [
            (
                method,
                *(
                    f"{self.accuracy(method, stream):.1f}{'*' if best[stream] == method else ' '}"
                    for stream in STREAMS
                ),
                f"{self.ratios[method]:.2f}x",
            )
            for method in METHODS
        ]
        return render(("method", *STREAMS, "time per batch"), rows)

    def sentences(self) -> str:
        """Say in words what the table shows, from its own numbers."""
        gain = {stream: self.accuracy("find", stream) - self.accuracy("source", stream) for stream in STREAMS}
        over_batch = {stream: self.accuracy("find", stream) - self.accuracy("tbn", stream) for stream in STREAMS}
        mixed = (
            f"Where drifts are mixed, FIND gets {_points(gain['crossmix'])} more right than the plain model and "
            f"{_points(over_batch['crossmix'])} more than statistics of the whole batch (tbn), which fit no "
            "part of it."
            if gain["crossmix"] > 0 and over_batch["crossmix"] > 0
            else f"Where drifts are mixed, FIND is {_points(gain['crossmix'])} from the plain model and "
            f"{_points(over_batch['crossmix'])} from statistics of the whole batch (tbn)."
        )
        static = (
            f"One drift at a time is what tbn is made for: there it is {_points(-over_batch['static'])} ahead."
            if over_batch["static"] < 0
            else f"With one drift at a time FIND is {_points(over_batch['static'])} ahead of tbn."
        )
        wild = (
            f"With few classes in a batch the difference to tbn is {over_batch['wild']:+.1f} points, "
            f"to the plain model {gain['wild']:+.1f}."
        )
        return "\n".join(textwrap.fill(sentence, 100) for sentence in (mixed, static, wild))


def run(store: Store, *, seed: int = 0, images: int = IMAGES, progress: Progress | None = None) -> Outcome:
    """Run the methods on the streams; what the store has already is not run again.

    Args:
        store: Where the results are kept.
        seed: The seed of the streams.
        images: Images per kind of drift.
        progress: Called while it runs.

    Returns:
        Accuracies and times.
    """
    planner = Planner()
    results: dict[tuple[str, str], Result] = {}
    for stream in STREAMS:
        for method in METHODS:
            spec = RunSpec(method=method, stream=stream, seed=seed, data_options={"count": images})
            plan = planner.plan(spec)
            name, batches = f"{method} on {stream}", len(plan.stream)

            def report(done: int, accuracy: float, name: str = name, batches: int = batches) -> None:
                if progress is not None:
                    progress(name, done / batches, accuracy)

            known = store.get(plan.digest) if store.has(plan.digest) else None
            if known is None or known.status != "done":
                known = run_one(plan, report)
                store.put(known)
            results[method, stream] = known
    model = findtta.models.load("shapes-resnet26")
    plan = planner.plan(RunSpec(stream="crossmix", seed=seed, data_options={"count": images}))
    batches_of_images = [
        to_input(plan.dataset.batch(batch.domain_ids, batch.rows)[0])
        for batch, _ in zip(plan.stream, range(_TIMED_BATCHES), strict=False)
    ]
    adapted = {method: findtta.adapt(model, method) for method in METHODS}
    ratios = interleaved_ratios(adapted, batches_of_images, baseline="source", warmup=_TIMED_BATCHES)
    return Outcome(results, ratios, model.card.clean_accuracy or 0.0)


def _points(difference: float) -> str:
    return f"{abs(difference):.1f} points"
