"""Detection of collapse in a model that learns; it does not act on it.

A model that learns from its own predictions can end up predicting a few classes for everything, or
being certain of everything. Running statistics of the predictions, of constant size and kept on the
model's device, show both; they are read only on request. A stream that really holds few classes for a
long time looks the same.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.functional import softmax_entropy

MEMORY = 0.98  # share of the statistics kept from one batch to the next: about the last 50 batches count
ENOUGH_SAMPLES = 32  # with fewer, there is no verdict
# Samples spread evenly over the classes have as many effective classes as there are classes (or samples).
FEW_CLASSES_SHARE = 0.25
FEW_CLASSES_LEAST = 1.05  # so that two classes of which one has vanished are noticed too
ZERO_ENTROPY_SHARE = 1e-3  # of the entropy of a uniform prediction


@dataclass(frozen=True)
class Collapse:
    """A collapse of the predictions."""

    batch: int  # at which it began, counted from 0
    reason: str  # a description for people


class CollapseGuard(nn.Module):
    """Running statistics of predictions, and when they began to look collapsed."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.batches = 0
        # How many classes there are is known with the first batch, so the state is not saved as
        # buffers, whose shapes would have to be known before, but as extra state.
        self.counts: Tensor | None = None
        self.entropy_sum = torch.zeros(())
        self.began = torch.full((), -1)

    @torch.no_grad()
    def observe(self, logits: Tensor) -> None:
        """Add the predictions for one batch, ``(B, K)``; nothing waits for the device."""
        device = logits.device
        usable = logits.isfinite().all(1)
        classes = torch.arange(logits.shape[1], device=device)
        predicted = (logits.argmax(1, keepdim=True) == classes) & usable[:, None]
        entropy = torch.where(usable, softmax_entropy(logits), 0).sum().float()
        counts = torch.zeros(len(classes)) if self.counts is None else self.counts
        self.counts = MEMORY * counts.to(device) + predicted.sum(0)
        self.entropy_sum = MEMORY * self.entropy_sum.to(device) + entropy
        few_classes, certain = self._symptoms(self.counts)
        began = self.began.to(device)
        self.began = torch.where(few_classes | certain, torch.where(began < 0, self.batches, began), -1)
        self.batches += 1

    def _symptoms(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        samples = counts.sum()
        uniform_entropy = math.log(max(2, len(counts)))
        few = (FEW_CLASSES_SHARE * samples.clamp_max(len(counts))).clamp_min(FEW_CLASSES_LEAST)
        few_classes = (effective_classes(counts) < few) & (len(counts) > 1)
        certain = self.entropy_sum < ZERO_ENTROPY_SHARE * uniform_entropy * samples
        enough = samples >= ENOUGH_SAMPLES
        return few_classes & enough, certain & enough

    def verdict(self) -> Collapse | None:
        """Return the collapse, or None if there is none; waits for the device."""
        if self.counts is None or int(self.began) < 0:
            return None
        few_classes, _ = self._symptoms(self.counts)
        if few_classes:
            spread = float(effective_classes(self.counts))
            reason = f"predictions fall on few classes: effectively {spread:.1f} of {len(self.counts)}"
        else:
            mean = float(self.entropy_sum / self.counts.sum())
            reason = f"the entropy of the predictions is near zero: {mean:.2g} on average"
        return Collapse(int(self.began), reason)

    def get_extra_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("batches", "counts", "entropy_sum", "began")}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def effective_classes(counts: Tensor) -> Tensor:
    """Number of evenly used classes that would be as diverse as these counts, ``(K,)``: a scalar."""
    shares = counts / counts.sum().clamp_min(1e-12)
    return torch.special.entr(shares).sum().exp()
