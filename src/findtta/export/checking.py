"""Checking that an exported file computes what the model computes: both run on the same batches.

Two runtimes add the same numbers in a different order. Where two samples are almost equally similar to a third,
that can decide which of them is its first neighbour, and everything after it differs. So a difference is traced:
with the file's choice of neighbours the model must give the file's logits, and every choice must be as similar as
the most similar sample up to rounding.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.algorithms.find import FABN
from findtta.errors import InputError
from findtta.export.runtimes import Array, Runtime, load
from findtta.export.tracing import require_exportable, state_of
from findtta.functional import components, first_neighbours, partition
from findtta.tables import render

BATCH_SIZES = (1, 2, 7, 64, 200)
TOLERANCE = 1e-4
#: Two cosines that differ by less are equal as far as float32 can tell.
NEAR_TIE = 1e-6


@dataclass(frozen=True)
class BatchCheck:
    """One batch, run by the file and by the model."""

    #: ``"random"`` or ``"given"``.
    images: str
    batch_size: int
    #: The largest difference of two logits, as a share of the largest logit (of at least 1).
    difference: float
    #: How many samples got another label, other than by a tie of two logits.
    labels_changed: int
    #: If the logits differ: how many samples, over all layers, have another first neighbour or group.
    near_ties: int = 0
    #: How much less similar than the most similar those neighbours are at most (cosine, float64).
    margin: float | None = None
    #: The difference that is left, of logits and state, when the model uses the file's first neighbours.
    same_neighbours: float | None = None
    #: The largest difference of what file and model have learned, in each tensor as a share of its largest value
    #: (of at least 1); None for a method that keeps nothing.
    state: float | None = None

    @property
    def equal(self) -> bool:
        """Whether logits and state are equal within the tolerance."""
        return max(self.difference, self.state or 0.0) <= TOLERANCE and not self.labels_changed

    @property
    def traced_to_ties(self) -> bool:
        """Whether near-ties of first neighbours explain all of a larger difference."""
        if not self.near_ties or self.margin is None or self.same_neighbours is None:
            return False
        return self.margin <= NEAR_TIE and self.same_neighbours <= TOLERANCE

    @property
    def verdict(self) -> str:
        """``"equal"``, ``"equal but for near-ties"`` or ``"DIFFERENT"``."""
        return "equal" if self.equal else "equal but for near-ties" if self.traced_to_ties else "DIFFERENT"


@dataclass(frozen=True)
class Check:
    """The outcome of checking a file; prints as a table."""

    batches: tuple[BatchCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether the file computes what the model computes, but for near-ties of first neighbours."""
        return all(batch.verdict != "DIFFERENT" for batch in self.batches)

    def __str__(self) -> str:
        header = (
            "images",
            "batch",
            "difference",
            "labels changed",
            "state",
            "near-ties",
            "same neighbours",
            "verdict",
        )
        rows = [
            (
                batch.images,
                batch.batch_size,
                f"{batch.difference:.1e}",
                batch.labels_changed,
                None if batch.state is None else f"{batch.state:.1e}",
                batch.near_ties,
                None if batch.same_neighbours is None else f"{batch.same_neighbours:.1e}",
                batch.verdict,
            )
            for batch in self.batches
        ]
        return render(header, rows)


def check(
    exported: str | Path | Runtime,
    adapted: nn.Module,
    images: Tensor | None = None,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seed: int = 0,
) -> Check:
    """Compare an exported file with the model it was made from.

    A method that learns from every batch learns in both, from one batch to the next. The file begins with the
    state that the model was exported with, so the model must have that state as well.

    Args:
        exported: The file, or what :func:`load` made of it; what that has learned is not changed.
        adapted: The model; it is not changed.
        images: Images as the model gets them, to compare on besides random ones; sizes that they do not fill
            are left out.
        batch_sizes: The sizes to compare at; sizes above the file's largest are left out.
        seed: Of the random images.

    Returns:
        The outcome; ``.passed`` says whether file and model agree.
    """
    runtime = exported if isinstance(exported, Runtime) else load(exported)
    model = copy.deepcopy(require_exportable(adapted)).cpu()
    model.compiled = None  # a file is held against the model as it is
    sizes = [size for size in batch_sizes if 1 <= size <= runtime.description.max_batch]
    if not sizes:
        raise InputError(
            f"batch_sizes must name a size from 1 to {runtime.description.max_batch}, got {batch_sizes!r}."
        )
    batches = [("random", random_images(size, runtime.description.input_shape, seed + size)) for size in sizes]
    if images is not None:
        batches += [("given", images[:size]) for size in sizes if size <= len(images)]
    learned = runtime.state
    runtime.reset()
    try:
        return Check(tuple(compare(runtime, model, kind, batch) for kind, batch in batches))
    finally:
        runtime.state = learned


def compare(runtime: Runtime, model: Adapted, kind: str, images: Tensor) -> BatchCheck:
    """Run one batch in both, and trace a difference to near-ties if there is one; both may learn from it."""
    batch = images.to("cpu", getattr(torch, runtime.description.dtype))
    before = copy.deepcopy(model), runtime.state
    got = torch.from_numpy(runtime(batch.numpy()))
    found = difference_of(model(batch), got)
    outcome = BatchCheck(kind, len(batch), *found, state=state_difference(model, runtime.state))
    if outcome.equal:
        return outcome
    learned, runtime.state = runtime.state, before[1]
    logits, neighbours = runtime.run_with_neighbours(batch.numpy())
    # After a near-tie both go on from one state.
    runtime.state = {name: kept.numpy() for name, kept in state_of(model).items()}
    repeated = Replay(before[0], batch, neighbours)
    if not repeated.complete or difference_of(got, torch.from_numpy(logits))[0] > TOLERANCE:
        return outcome
    left = max(difference_of(repeated.logits, got)[0], state_difference(repeated.model, learned) or 0.0)
    return replace(outcome, near_ties=repeated.choices, margin=repeated.margin, same_neighbours=left)


def difference_of(expected: Tensor, got: Tensor) -> tuple[float, int]:
    """Return the largest relative difference of two tables of logits, and how many labels differ beyond a tie."""
    expected, got = expected.double().flatten(1), got.double().flatten(1)
    if expected.shape != got.shape:
        return math.inf, len(expected)
    special = ~(expected.isfinite() & got.isfinite())
    unlike = special & (expected != got) & ~(expected.isnan() & got.isnan())
    if bool(unlike.any()):
        return math.inf, int(unlike.any(1).sum())
    expected, got = expected.masked_fill(special, 0), got.masked_fill(special, 0)
    scale = max(1.0, float(expected.abs().max()))
    gap = expected.amax(1) - expected.gather(1, got.argmax(1, keepdim=True))[:, 0]
    return float((expected - got).abs().max()) / scale, int((gap > 2 * TOLERANCE * scale).sum())


def state_difference(model: Adapted, got: Mapping[str, Array]) -> float | None:
    """Return the largest relative difference of what model and file have learned; None if they keep nothing."""
    pairs = [(kept, torch.from_numpy(got[name])) for name, kept in state_of(model).items()]
    return max((difference_of(*(kept.reshape(1, -1) for kept in pair))[0] for pair in pairs), default=None)


def random_images(count: int, shape: Sequence[int], seed: int) -> Tensor:
    """Draw images that differ in colour, contrast and pattern, so that their features differ."""
    generator = torch.Generator().manual_seed(seed)
    per_channel = (count, shape[0], *(1,) * (len(shape) - 1))
    level = torch.rand(per_channel, generator=generator)
    contrast = torch.rand((count, *(1,) * len(shape)), generator=generator)
    return (level + contrast * (torch.rand((count, *shape), generator=generator) - 0.5)).clamp(0, 1)


class Replay:
    """A copy of an adapted model, run with given first neighbours, in the order in which layers are called."""

    def __init__(self, adapted: Adapted, images: Tensor, neighbours: Sequence[Array]) -> None:
        self.neighbours = [torch.from_numpy(chosen) for chosen in neighbours]
        self.calls = 0
        #: How many samples, over all layers, have another first neighbour or group in the model itself.
        self.choices = 0
        #: How much more similar than the chosen neighbour the nearest is at most (cosine, float64).
        self.margin = 0.0
        self.model = copy.deepcopy(adapted)
        for _, layer in self.model.layers():
            if isinstance(layer, FABN) and layer.partition is partition:
                layer.partition = self
        self.logits: Tensor = self.model(images)
        #: Whether the layers of the model needed as many neighbours as were given.
        self.complete = self.calls == len(neighbours)

    def __call__(self, features: Tensor) -> Tensor:
        """Split a batch into groups, in place of ``partition``."""
        fits = self.calls < len(self.neighbours) and len(self.neighbours[self.calls]) == len(features)
        chosen = self.neighbours[self.calls] if fits else first_neighbours(features)
        self.calls += 1
        labels = components(chosen)
        # The C functions of the model do not say which neighbours they choose, which need not be those of torch.
        differ = (chosen != first_neighbours(features)) | (labels != partition(features))
        self.choices += int(differ.sum())
        self.margin = max(self.margin, lost_similarity(features, chosen))
        return labels


def lost_similarity(features: Tensor, chosen: Tensor) -> float:
    """How much more similar the nearest other sample is than the chosen one: the largest difference of cosines.

    ``features`` has one vector per sample, ``(B, C)``, and ``chosen`` one neighbour, ``(B,)``. The result is
    infinite if a sample chose a poisoned one, or itself where there was another.
    """
    wide = features.double()
    usable = wide.isfinite().all(1)
    unit = torch.nn.functional.normalize(wide.nan_to_num(0.0, 0.0, 0.0), dim=1)
    allowed = usable[:, None] & usable
    allowed.fill_diagonal_(False)
    similarity = (unit @ unit.T).masked_fill(~allowed, -torch.inf)
    best = similarity.amax(1)
    got = similarity.gather(1, chosen[:, None])[:, 0]
    index = torch.arange(len(chosen))
    # A sample without any other points at itself.
    lost = torch.where(best.isinf(), torch.where(chosen == index, 0.0, torch.inf), best - got)
    return float(lost.max())
