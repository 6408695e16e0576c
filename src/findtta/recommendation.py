"""Recommending a method for a model and the unlabelled images that arrive at it, and saying why."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from findtta import estimates
from findtta.algorithms.base import Adapted, require_logits
from findtta.algorithms.find_soft import FINDSoftOptions
from findtta.api import adapt
from findtta.errors import InputError, OptionError
from findtta.estimates import FEWEST_IMAGES, Evidence
from findtta.functional.soft import drift_threshold
from findtta.options import parse_assignments
from findtta.predictor import Recorder
from findtta.registry import METHOD, load_method
from findtta.tables import render

SOURCE, FIND, FIND_SOFT = "source", "find", "find-soft"
#: The methods that every candidate is compared with: what agreement with them is worth was fitted for these.
JUDGES = ("tbn", "alpha-bn:alpha=0.6", "iabn", "instance", "find", "find-soft")
#: What may be recommended unless told otherwise: methods that keep no state and need no gradients, and FIND's
#: blends with more weight of the source.
CANDIDATES = (SOURCE, *JUDGES, "instance:alpha=0.9", "find:alpha=0.9", "find:alpha=0.95")
#: By how many points a method must be estimated better before it is preferred to one of :data:`USUAL`, times the
#: root of the number of images: half a point for a thousand images, twice that for a quarter of them.
MARGIN = 16.0

#: What is recommended unless others are clearly better: it is the best or near it on most streams with drift; and
#: instead of it the unadapted model, unless it is clearly better than that.
USUAL = (FIND_SOFT, SOURCE)

Probabilities = NDArray[np.float64]
#: Called with the number of batches that are done.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Candidate:
    """A method with its options, and what its predictions say about it; ``estimate`` is an accuracy in %."""

    name: str  # as it was given, such as ``"find:alpha=0.9"``
    method: str
    options: Mapping[str, Any]
    evidence: Evidence
    estimate: float
    gain: float  # points above the unadapted model

    @property
    def python(self) -> str:
        """The call that adapts a model this way."""
        given = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f'model = findtta.adapt(model, "{self.method}"{given})'

    @property
    def flags(self) -> str:
        """The flags of commands such as ``findtta serve``."""
        return " ".join([f"--method {self.method}", *(f"--option {k}={v}" for k, v in self.options.items())])


@dataclass(frozen=True)
class Traffic:
    """What the images and their batches are like.

    Attributes:
        images: The number of images.
        batches: The number of batches.
        batch_size: The mean number of images of a batch.
        drift: KL divergence of the images from the training data, as ``predict`` and ``serve`` show it; None if
            no layer keeps statistics of the training data.
        drifted: Share of the images that ``find-soft`` would adapt to.
        mixed: How much of the variety of drift of all images a batch has: 1 if batches are as mixed as the whole.
        classes: Distinct predicted classes per batch, on average.
        classes_by_chance: The same if the images came in random order.
    """

    images: int
    batches: int
    batch_size: float
    drift: float | None
    drifted: float | None
    mixed: float
    classes: float
    classes_by_chance: float

    def __str__(self) -> str:
        drift = "unknown drift" if self.drift is None else f"drift {self.drift:.2f}"
        if self.drifted is not None:
            drift += f" ({self.drifted:.0%} of the images have drifted)"
        return (
            f"{self.images:,} images in {self.batches:,} batches of {self.batch_size:.3g}; {drift}; a batch has "
            f"{self.mixed:.0%} of the variety of drift, and {self.classes:.1f} classes "
            f"({self.classes_by_chance:.1f} in random order)"
        )


@dataclass(frozen=True)
class Recommendation:
    """Which method to use and why; prints as a sentence, a table with the evidence, and the lines to run.

    Attributes:
        best: The recommended method.
        candidates: All that were compared, by decreasing estimate.
        traffic: What the images are like.
    """

    best: Candidate
    candidates: tuple[Candidate, ...]
    traffic: Traffic

    @property
    def sentence(self) -> str:
        """The recommendation in a sentence."""
        if self.best.method == SOURCE:
            second = next((c for c in self.candidates if c.method != SOURCE), None)
            nearest = f"; the highest is {second.name} ({second.gain:+.1f})" if second else ""
            return f"Use the unadapted model: no method is estimated clearly better{nearest}."
        top = self.candidates[0]
        higher = f"; {top.name} is estimated only {top.gain - self.best.gain:.1f} higher"
        return (
            f"Use {self.best.name}: its accuracy is estimated at {self.best.estimate:.0f}%, "
            f"{self.best.gain:.1f} points above the unadapted model{'' if top is self.best else higher}."
        )

    @property
    def about_find(self) -> str:
        """How FIND does at its default, and which weight of the source the evidence supports; may be empty."""
        tried = [c for c in self.candidates if c.method == FIND and set(c.options) <= {"alpha"}]
        default = next((c for c in tried if not c.options), None)
        if default is None:
            return ""
        where = "below" if default.gain < 0 else "above"
        text = f"FIND at its default is estimated {abs(default.gain):.1f} points {where} the unadapted model"
        best = max(tried, key=lambda c: c.gain)
        if best is default:
            return f"{text}; no other alpha that was tried is better." if len(tried) > 1 else f"{text}."
        return f"{text}; of the alphas tried the evidence supports {best.options['alpha']:g} ({best.gain:+.1f})."

    def __str__(self) -> str:
        return self.text()

    def text(self, model: str = "...") -> str:
        """Return it for the terminal; ``model`` are the flags that name the model in commands."""
        header = ("method", "estimate", "gain", "spread", "agreement", "classes kept")
        rows = [
            (c.name, f"{c.estimate:.1f}", f"{c.gain:+.1f}", *(f"{v:.3f}" for v in dataclasses.astuple(c.evidence)))
            for c in self.candidates
        ]
        lines = [self.sentence, "", str(self.traffic), "", render(header, rows), ""]
        if self.about_find:
            lines += [self.about_find, ""]
        lines += [f"Python:  {self.best.python}", f"command: findtta serve {self.best.flags} {model}".rstrip()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the recommendation as plain values that JSON can write."""
        return {
            "method": self.best.method,
            "options": dict(self.best.options),
            "sentence": self.sentence,
            "about_find": self.about_find,
            "python": self.best.python,
            "flags": self.best.flags,
            "traffic": dataclasses.asdict(self.traffic),
            "candidates": [dataclasses.asdict(candidate) for candidate in self.candidates],
        }


def recommend(
    model: nn.Module,
    batches: Iterable[Any],
    candidates: Sequence[str] = CANDIDATES,
    *,
    progress: Progress | None = None,
) -> Recommendation:
    """Say which method to use for a model and the images that arrive at it, without labels.

    Several methods predict every batch, and their predictions are compared; see ``docs/recommend.md`` for what
    they say, and how often that was right.

    Args:
        model: The source model; it is copied, and never changed.
        batches: Batches of inputs as the model gets them and in the order in which they arrive, or what a data
            loader gives: of ``(inputs, ...)`` only the inputs are used.
        candidates: Methods that may be recommended, with options as in ``"find:alpha=0.9"``, besides the unadapted
            model. Those of ``JUDGES`` predict in any case, since the others are compared with them.
        progress: Called after each batch.

    Returns:
        The recommendation, which prints with its evidence.

    Raises:
        InputError: If there are too few images (at least 100), or a single batch.
        OptionError: If a candidate learns from its batches.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(48, 5)).eval()
        >>> found = recommend(net, torch.randn(4, 32, 3, 4, 4), ["tbn", "find"])
        >>> found.traffic.images
        128
    """
    return judge(collect(model, batches, candidates, progress=progress), candidates)


@dataclass(frozen=True, eq=False)
class Collected:
    """What several methods predict for the same images, and the drift of the images.

    Attributes:
        methods: Method and options of the candidates and of those they are compared with, by name.
        predictions: Probabilities, ``(images, classes)``.
        drift: KL divergence from the training data by layer, ``(images, layers)``, of layers that know it.
        drifted: Which images ``find-soft`` would adapt to; None if that is unknown.
        sizes: The number of images of each batch.
    """

    methods: Mapping[str, tuple[str, Mapping[str, Any]]]
    predictions: Mapping[str, Probabilities]
    drift: NDArray[np.float64]
    drifted: NDArray[np.bool_] | None
    sizes: tuple[int, ...]


def collect(
    model: nn.Module,
    batches: Iterable[Any],
    candidates: Sequence[str] = CANDIDATES,
    *,
    progress: Progress | None = None,
) -> Collected:
    """Let all candidates and judges predict all batches, see :func:`recommend`.

    Images that are not finite are left out.
    """
    methods = _parse((SOURCE, *JUDGES, *candidates))
    runs = {name: adapt(model, method, **options) for name, (method, options) in methods.items()}
    probe = _Probe(runs[SOURCE], runs[FIND_SOFT])
    device = next((tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())), None)
    predictions: dict[str, list[Probabilities]] = {name: [] for name in runs}
    sizes: list[int] = []
    for done, batch in enumerate(batches, 1):
        inputs = _inputs(batch).to(device)
        if not len(inputs):
            continue
        found = {name: _predict(adapted, inputs) for name, adapted in runs.items()}
        usable = np.logical_and.reduce([np.isfinite(each).all(1) for each in found.values()])
        if usable.any():
            for name, each in found.items():
                predictions[name].append(each[usable])
            probe.measure(len(inputs), usable)
            sizes.append(int(usable.sum()))
        if progress is not None:
            progress(done)
    if sum(sizes) < FEWEST_IMAGES or len(sizes) < 2:
        raise InputError(
            f"batches must hold at least {FEWEST_IMAGES} images in at least 2 batches, got {sum(sizes)} in "
            f"{len(sizes)}: give more of the images that arrive, in their batches."
        )
    joined = {name: np.concatenate(parts) for name, parts in predictions.items()}
    return Collected(methods, joined, *probe.gather(), tuple(sizes))


def _parse(candidates: Sequence[str]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return method and options of each candidate, by its name."""
    named: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for text in candidates:
        name, given = METHOD.split(text)
        method = load_method(name)
        if method.needs_grad or method.keeps_learning():
            raise OptionError(
                f"candidates must keep nothing from batch to batch, or settle after a warm-up, got {name!r}, "
                "which learns from each batch."
            )
        named[text] = (name, parse_assignments("candidates", given))
    return named


def _inputs(batch: Any) -> Tensor:
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        came = f"{inputs.dtype} tensors" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"batches must be float tensors as the model gets them, got {came}.")
    return inputs


def _predict(adapted: Adapted, inputs: Tensor) -> Probabilities:
    logits = require_logits(adapted(inputs), adapted.name)
    found: Probabilities = torch.softmax(logits.double(), 1).cpu().numpy()
    return found


class _Probe:
    """Measures the drift of images: by layer under the source model, and whether ``find-soft`` would adapt."""

    def __init__(self, source: Adapted, soft: Adapted) -> None:
        self._recorder, self._soft = Recorder(source), soft
        self._drift: list[NDArray[np.float64]] = []
        self._drifted: list[NDArray[np.bool_]] = []

    def measure(self, samples: int, usable: NDArray[np.bool_]) -> None:
        """Measure a batch that both models have just seen."""
        self._drift.append(self._recorder.drift(samples).numpy()[usable])
        logs = [layer.last_batch["drift"] for _, layer in self._soft.layers() if "drift" in layer.last_batch]
        # Several windows of one image follow one another.
        per_image = [log.double().view(samples, -1).mean(1) for log in logs if len(log) % samples == 0]
        if per_image:
            limit = math.log(drift_threshold(len(per_image), FINDSoftOptions().threshold))
            self._drifted.append((torch.stack(per_image).mean(0) > limit).cpu().numpy()[usable])

    def gather(self) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        """Return the drift of all images by layer, and which of them have drifted."""
        drift = np.concatenate(self._drift)
        return drift[:, np.isfinite(drift).all(0)], np.concatenate(self._drifted) if self._drifted else None


def judge(collected: Collected, candidates: Sequence[str] = CANDIDATES) -> Recommendation:
    """Weigh the evidence, and recommend one of the candidates or the unadapted model."""
    sizes, predictions = collected.sizes, collected.predictions
    evidence, drift_between = weigh(collected)
    accuracies = estimates.estimate_accuracies(evidence, JUDGES, drift_between)
    scores = {name: found.score(drift_between) for name, found in evidence.items()}
    ranked = sorted(
        (
            Candidate(
                name=name,
                method=method,
                options=options,
                evidence=evidence[name],
                estimate=100 * accuracies[name],
                gain=100 * (scores[name] - scores[SOURCE]),
            )
            for name, (method, options) in collected.methods.items()
            if name in (SOURCE, *candidates)
        ),
        key=lambda candidate: -candidate.gain,
    )
    best, margin = ranked[0], MARGIN / math.sqrt(sum(sizes))
    for usual in (candidate for name in USUAL for candidate in ranked if candidate.name == name):
        if best.gain - usual.gain < margin:
            best = usual
    predicted = predictions[best.name].argmax(1)
    traffic = Traffic(
        images=sum(sizes),
        batches=len(sizes),
        batch_size=sum(sizes) / len(sizes),
        drift=float(collected.drift.mean()) if collected.drift.size else None,
        drifted=None if collected.drifted is None else float(collected.drifted.mean()),
        mixed=1 - drift_between,
        classes=estimates.classes_per_batch(predicted, sizes),
        classes_by_chance=estimates.classes_by_chance(predicted, sizes),
    )
    return Recommendation(best, tuple(ranked), traffic)


def weigh(collected: Collected) -> tuple[dict[str, Evidence], float]:
    """Return the evidence about each method, and how much of the variety of drift lies between batches."""
    predictions, sizes = collected.predictions, collected.sizes
    evidence = {}
    for name, (method, _) in collected.methods.items():
        # Other settings of the same method agree with it, right or wrong.
        others = [predictions[judge] for judge in JUDGES if collected.methods[judge][0] != method]
        evidence[name] = estimates.collect_evidence(predictions[name], others, sizes)
    return evidence, estimates.drift_between(collected.drift, sizes)
