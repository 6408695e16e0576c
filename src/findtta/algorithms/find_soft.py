"""FIND with soft neighbourhoods, which follows the drift: more where a sample has drifted, less where not.

Not of the paper. Three things differ from FIND:

- A sample's statistics are averaged over the whole batch, weighted by how much alike samples drift: no hard
  groups, which are often small and noisy.
- Samples are compared by where their statistics have gone from the source's, deviations as well as means.
- The weight of the source falls from 1 to ``alpha`` as evidence of drift grows: the divergence of a sample's
  neighbourhood from the source, averaged (as a logarithm) over the layers it has passed. A sample that looks like
  the training data is left nearly alone.

Like FIND it keeps nothing between batches, needs no gradients, and can be exported. Its outputs depend on the
inputs without jumps, so that runtimes agree on them. See docs/beyond-find.md for how it was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.errors import OptionError
from findtta.functional import drift_gate, gaussian_kl, log_drift, soft_neighbours, weighted_moments
from findtta.layers.adaptive import AdaptiveNorm
from findtta.options import Options, option


@dataclass(frozen=True)
class FINDSoftOptions(Options):
    """Options of FIND with soft neighbourhoods."""

    alpha: float = option(0.7, "weight of the source statistics for samples that have surely drifted, 0 to 1")
    temperature: float = option(0.25, "of the weights: small for nearest neighbours only, large for all")
    threshold: float = option(0.07, "divergence from the source at which half of the way to alpha is gone")
    sharpness: float = option(4.0, "how quickly it is gone around the threshold; 0 always goes half of it")

    def __post_init__(self) -> None:
        self.require_fraction("alpha")
        self.require_at_least_zero("sharpness")
        for name in ("temperature", "threshold"):
            self.require_at_least_zero(name)
            if getattr(self, name) == 0:
                raise OptionError(f"option {name!r} must be above 0, but got 0.")


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

    def add(self, drift: Tensor) -> Tensor:
        """Add what one layer says, ``(rows,)``, and return the mean over the layers so far, ``(rows,)``."""
        if not self.open:
            return drift
        rows = drift.shape[0]
        if self.total is None:
            self.total, self.layers = drift, 1
            return drift
        samples = self.total.shape[0]
        if rows == samples:
            self.total, self.layers = self.total + drift, self.layers + 1
            return self.total / self.layers
        if rows % samples:
            return drift  # rows that are no images, nor parts of images, have no history
        # A layer that sees several windows of each image: they share what is known about the image.
        windows = rows // samples
        self.total, self.layers = self.total + drift.view(samples, windows).mean(1), self.layers + 1
        return (self.total / self.layers).repeat_interleave(windows)


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
        source_mean, source_variance = source_mean.to(mean.dtype), source_variance.to(mean.dtype)
        weights = soft_neighbours(mean, variance, source_mean, source_variance, self.options.temperature, eps)
        about = mean.nan_to_num(nan=0.0).mean(0)
        near_mean, near_variance = weighted_moments(mean, variance, weights, about)
        drift = log_drift(gaussian_kl(near_mean, near_variance, source_mean, source_variance, eps))
        gate = drift_gate(self.evidence.add(drift), self.options.threshold, self.options.sharpness)
        if not torch.compiler.is_compiling():
            self.last_batch["drift"] = drift
        trust = ((1 - self.options.alpha) * gate)[:, None]
        return torch.lerp(source_mean, near_mean, trust), torch.lerp(source_variance, near_variance, trust)

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
        "holds one kind of drift, batch statistics may be better. On large photos FIND is as good or better."
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
