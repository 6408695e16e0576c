"""Running an adapted model with first neighbours that were chosen elsewhere.

Two runtimes add the same numbers in another order. Where two samples are almost equally near to a third, that
can decide which of them is its neighbour, and all that follows differs. Given the other runtime's choices the
model must give the other's logits, and every choice must be as near as the nearest but for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from findtta.algorithms.base import Adapted
from findtta.algorithms.find import FABN
from findtta.export.runtimes import Array
from findtta.functional import components, first_neighbours, partition


@dataclass(frozen=True)
class Replay:
    """An adapted model run with the first neighbours of another runtime.

    Attributes:
        logits: What the model gives then.
        choices: How many samples, over all layers, would have chosen another neighbour by themselves.
        margin: How much nearer than the chosen neighbour the nearest was at most, as a cosine in float64.
    """

    logits: Tensor
    choices: int
    margin: float


def replay(adapted: Adapted, images: Tensor, neighbours: Sequence[Array]) -> Replay | None:
    """Run a copy of the model with given first neighbours.

    Args:
        adapted: The model; it is not changed.
        images: The batch.
        neighbours: What each layer is to use, in the order in which layers are called.

    Returns:
        What came of it, or None if the model does not call for as many.
    """
    model = copy.deepcopy(adapted)
    forced = _Forced([torch.from_numpy(np.asarray(chosen)).to(images.device) for chosen in neighbours])
    for _, layer in model.layers():
        if isinstance(layer, FABN) and layer.partition is partition:
            layer.partition = forced
    logits = model(images)
    if forced.calls != len(neighbours):
        return None
    return Replay(logits, forced.choices, forced.margin)


class _Forced:
    """Stands in for the partition of every layer."""

    def __init__(self, neighbours: Sequence[Tensor]) -> None:
        self.neighbours = neighbours
        self.calls = self.choices = 0
        self.margin = 0.0

    def __call__(self, features: Tensor) -> Tensor:
        fits = self.calls < len(self.neighbours) and len(self.neighbours[self.calls]) == len(features)
        chosen = self.neighbours[self.calls] if fits else first_neighbours(features)
        self.calls += 1
        self.choices += int((chosen != first_neighbours(features)).sum())
        self.margin = max(self.margin, lost_similarity(features, chosen))
        return components(chosen)


def lost_similarity(features: Tensor, chosen: Tensor) -> float:
    """How much more similar the nearest other sample is than the chosen one: the largest over all samples.

    Args:
        features: One vector per sample, ``(B, C)``.
        chosen: One neighbour per sample, ``(B,)``.

    Returns:
        A difference of cosines, computed in float64; infinite if a sample chose a poisoned one, or itself
        where there was another.
    """
    wide = features.double()
    usable = wide.isfinite().all(1)
    unit = torch.nn.functional.normalize(wide.nan_to_num(0.0, 0.0, 0.0), dim=1)
    allowed = usable[:, None] & usable
    allowed.fill_diagonal_(False)
    similarity = (unit @ unit.T).masked_fill(~allowed, -torch.inf)
    best = similarity.amax(1)
    got = similarity.gather(1, chosen[:, None])[:, 0]
    index = torch.arange(len(chosen), device=chosen.device)
    # A sample without any other points at itself.
    lost = torch.where(best.isinf(), torch.where(chosen == index, 0.0, torch.inf), best - got)
    return float(lost.max())
