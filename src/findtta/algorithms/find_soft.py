"""FIND with soft neighbourhoods, which follows the drift: more where a sample has drifted, less where not.

Not of the paper. Three things differ from FIND:

- A sample's statistics are averaged over the whole batch, weighted by how much alike samples drift: no hard
  groups, which are often small and noisy.
- Samples are compared by where their statistics have gone from the source's, deviations as well as means.
- The weight of the source falls from 1 to ``alpha`` as evidence of drift grows: the divergence of a sample's
  neighbourhood from the source, averaged (as a logarithm) over the layers it has passed, against a threshold that
  falls with depth as divergence does. A sample that looks like the training data is left nearly alone.

Like FIND it keeps nothing between batches, needs no gradients, and can be exported. Its outputs depend on the
inputs without jumps, so that runtimes agree on them. See docs/beyond-find.md for how it was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.functional import drift_gate, in_source_units, log_drift, soft_neighbours, weighted_moments
from findtta.functional._precision import as_dtype
from findtta.layers.adaptive import AdaptiveNorm
from findtta.options import Options, option


@dataclass(frozen=True)
class FINDSoftOptions(Options):
    """Options of FIND with soft neighbourhoods."""

    alpha: float = option(0.7, "weight of the source statistics for samples that have surely drifted, 0 to 1")
    temperature: float = option(0.2, "of the weights: small for nearest neighbours only, large for all")
    threshold: float = option(
        0.15, "divergence from the source at which half of the way to alpha is gone, in layer 1"
    )
    sharpness: float = option(6.0, "how quickly it is gone around the threshold; 0 always goes half of it")

    def __post_init__(self) -> None:
        self.require_fraction("alpha")
        self.require_at_least_zero("sharpness")
        self.require_positive("temperature", "threshold")


class Evidence:
    """What the layers that a batch has passed so far say about the drift of each sample.

    Collected only while the adapted model's forward runs. A layer that is called from elsewhere (by a user who
    runs parts of the model by hand) knows of no others: nobody says where one batch ends and the next begins.
    """

    def __init__(self) -> None:
        self.open = False
        self.clear()

    def begin(self) -> None:
        """Collect for a new batch."""
        self.clear()
        self.open = True

    def end(self) -> None:
        """Forget the batch, and collect no more."""
        self.clear()
        self.open = False

    def clear(self) -> None:
        """Forget what was collected."""
        self.total: Tensor | None = None
        self.layers = 0

    def add(self, drift: Tensor) -> tuple[Tensor, int]:
        """Add what one layer says, ``(rows,)``; return the mean over the layers so far, and how many they are."""
        if not self.open:
            return drift, 1
        rows = drift.shape[0]
        if self.total is None:
            self.total, self.layers = drift, 1
            return drift, 1
        samples = self.total.shape[0]
        if rows == samples:
            self.total, self.layers = self.total + drift, self.layers + 1
            return self.total / self.layers, self.layers
        if rows % samples:
            return drift, 1  # rows that are no images, nor parts of images, have no history
        # A layer that sees several windows of each image: they share what is known about the image.
        windows = rows // samples
        self.total, self.layers = self.total + drift.view(samples, windows).mean(1), self.layers + 1
        return (self.total / self.layers).repeat_interleave(windows), self.layers


class SoftNorm(AdaptiveNorm):
    """Normalises each sample with a blend of the source's and its neighbourhood's statistics."""

    def __init__(self, norm: nn.Module, options: FINDSoftOptions, evidence: Evidence) -> None:
        super().__init__(norm)
        self.options = options
        self.evidence = evidence
        self.last_batch: dict[str, Tensor] = {}  # only for reports

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        source_mean, source_variance = self.source_statistics(mean, variance)
        if self.options.alpha == 1:
            return source_mean, source_variance
        eps: float = self.norm.eps  # type: ignore[assignment]
        source_mean, source_variance = as_dtype(source_mean, mean.dtype), as_dtype(source_variance, mean.dtype)
        shift, stretch = in_source_units(mean, variance, source_mean, source_variance, eps)
        weights = soft_neighbours(shift, stretch, self.options.temperature)
        near_shift, near_spread = weighted_moments(shift, stretch * stretch, weights)
        unit = source_variance + eps
        near_spread = torch.maximum(near_spread, eps / unit)  # rounding must not take it below that of a constant
        drift = log_drift(near_shift, near_spread, weights.diagonal())
        evidence, layers = self.evidence.add(drift)
        if not torch.compiler.is_compiling():
            self.last_batch["drift"] = drift
        gate = drift_gate(evidence, layers, self.options.threshold, self.options.sharpness)
        trust = ((1 - self.options.alpha) * gate)[:, None]
        return (
            torch.addcmul(source_mean, trust * near_shift, unit.sqrt()),
            torch.addcmul(source_variance, trust * (near_spread - 1), unit),
        )

    def reset(self) -> None:
        self.last_batch.clear()

    def describe(self) -> dict[str, Any]:
        drift = self.last_batch.get("drift")
        return {"score": None if drift is None else float(drift.exp().mean())}


class FINDSoft(Adapted):
    """FIND with soft neighbourhoods and a source weight that follows the drift."""

    name = "find-soft"
    summary = "soft neighbourhoods instead of groups, and nearly the plain model where nothing has drifted"
    citation = "This project, after Jiang et al., NeurIPS 2025 (FIND)"
    weakness = (
        "Drift that shows in no statistics, or only late in the network, is hardly followed. Where every batch "
        "holds one kind of drift, batch statistics may be better. On large photos FIND is about a point better. "
        "Networks whose running statistics do not fit their own clean images lose some accuracy on those."
    )
    options_type = FINDSoftOptions

    def __init__(self, model: nn.Module, options: Options, *, reuse_buffers: bool = True) -> None:
        self.__dict__["evidence"] = Evidence()  # layers are made in the next line and need it
        super().__init__(model, options, reuse_buffers=reuse_buffers)

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return SoftNorm(norm, self.options, self.__dict__["evidence"])

    def run(self, *args: Any, **kwargs: Any) -> Any:
        evidence: Evidence = self.__dict__["evidence"]
        evidence.begin()
        try:
            return super().run(*args, **kwargs)
        finally:
            evidence.end()
