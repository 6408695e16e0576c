"""FIND with soft neighbourhoods, which adapts a sample more the further it has drifted.

This is not in the paper. Four things differ from FIND:

- A sample's statistics are averaged over the whole batch, weighted by the similarity of the samples' drift: no
  hard groups, which are often small and noisy.
- Samples are compared by how their statistics differ from the source's, standard deviations as well as means.
- The weight of the source falls from 1 to ``alpha`` as evidence of drift grows: the divergence of a sample's
  neighbourhood from the source, averaged (as a logarithm) over the layers it has passed, against a threshold that
  falls with depth as divergence does. A sample that looks like the training data is left nearly alone.
- Samples of one class are similar in the last layers without any drift. So those adapt less, and where the samples
  of a batch are more similar there than the layers before explain, the weight of the source rises to 1 again.

Like FIND it keeps nothing between batches, needs no gradients, and can be exported. Its outputs depend on the
inputs continuously, so that runtimes agree on them. See docs/beyond-find.md for how it was developed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.errors import InputError
from findtta.functional import (
    class_guard,
    common_share,
    drift_gate,
    in_source_units,
    log_drift,
    native,
    soft,
    soft_neighbours,
    weighted_moments,
)
from findtta.functional.moments import as_dtype, average_windows, repeat_for_windows
from findtta.functional.soft import LATE, LATE_TRUST, MIDDLE, drift_threshold
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite
from findtta.options import AtLeastZero, Fraction, Options, Positive, option


@dataclass(frozen=True)
class FINDSoftOptions(Options):
    """Options of FIND with soft neighbourhoods."""

    alpha: Fraction = option(
        0.7, "weight of the source statistics for samples with strong drift; samples without drift get up to 1"
    )
    temperature: Positive = option(
        0.2, "softmax temperature of the neighbourhood weights: small for the nearest samples only, large for all"
    )
    threshold: Positive = option(
        0.15,
        "KL divergence from the source at which the source weight is halfway between 1 and alpha, in the first "
        "layer; lower in deeper layers",
    )
    sharpness: AtLeastZero = option(
        6.0, "steepness of the source weight as a function of log drift around the threshold; 0: always halfway"
    )
    guard: Fraction = option(
        1.0, "part of the adaptation that late layers give up, most of it where a batch seems to hold few classes"
    )


class Evidence:
    """What the layers that a batch has passed so far found out about it: drift per sample, and common share."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.share_sum: Tensor | None = None  # of the layers in the middle of the model
        self.shares = 0  # how many those are
        self.layers = 0

    def add(self, drift: Tensor) -> tuple[Tensor, int]:
        """Add the drift in one layer, ``(rows,)``; return the mean over the layers so far, and their number."""
        if self.total is None:
            self.total, self.layers = drift, 1
            return drift, 1
        rows, samples = drift.shape[0], self.total.shape[0]
        if rows % samples:
            return drift, 1  # rows that are neither images nor parts of images have no history
        self.layers += 1
        self.total = self.total + average_windows(drift, samples)
        return repeat_for_windows(self.total / self.layers, rows), self.layers

    def stage(self, depth: float) -> int:
        """Return 0 for a layer in the first part of the model, 1 in its middle, 2 late (if shares are known)."""
        if depth <= MIDDLE or (depth > LATE and not self.shares):
            return 0
        return 1 if depth <= LATE else 2

    def guard(self, shift: Tensor, layers: int) -> Tensor | float:
        """Return how far to adapt, 0 to 1, in the layer whose drift was added last, one of ``layers``."""
        assert self.total is not None
        samples, stage = self.total.shape[0], self.stage(self.layers / layers)
        if shift.shape[0] % samples or not stage:
            return 1.0
        # Windows of one image are of one class: they count as one.
        share, concentration = common_share(average_windows(shift, samples), self.total / self.layers)
        if stage == 1:
            self.share_sum = share if self.share_sum is None else self.share_sum + share
            self.shares += 1
            return 1.0
        assert self.share_sum is not None
        return LATE_TRUST * class_guard(share, self.share_sum / self.shares, concentration)


class SoftNorm(AdaptiveNorm):
    """Normalises each sample with a blend of the source's and its neighbourhood's statistics."""

    def __init__(self, norm: nn.Module, options: FINDSoftOptions, layers: int) -> None:
        super().__init__(norm)
        self.options, self.layers = options, layers
        # In the order of native.c.
        numbers = (options.temperature, options.alpha, options.sharpness, options.guard)
        self.numbers = (*numbers, *(float(getattr(soft, name)) for name in native.SOFT_CONSTANTS))

    def in_one_call(self, features: Tensor, overwrite: bool) -> Tensor | None:
        carried = self.call.carried
        if type(self) is not SoftNorm or self.options.alpha == 1 or carried is None:
            return None
        if (call := self.prepare_call(features, overwrite)) is None:
            return None
        evidence: Evidence = carried.get("evidence") or carried.setdefault("evidence", Evidence())
        layers, total, share_sum = evidence.layers + 1, evidence.total, evidence.share_sum
        if total is None:
            total = torch.zeros(len(features))
        elif layers == 2:
            total = total.clone()  # the first layer may have recorded it, and sums are added to in place
        if share_sum is None:
            share_sum = torch.zeros(())
        stage = evidence.stage(layers / self.layers) if self.options.guard else 0
        log_threshold = math.log(drift_threshold(layers, self.options.threshold))
        drift = native.find_soft(
            call, self.numbers, stage, layers, log_threshold, total, share_sum, evidence.shares
        )
        if drift is None:
            return None
        evidence.total, evidence.share_sum, evidence.layers = total, share_sum, layers
        evidence.shares += stage == 1
        return self.finish_call(call, drift=drift)

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        source_mean, source_variance = self.source_statistics(mean, variance)
        if self.options.alpha == 1:
            return source_mean, source_variance
        if self.call.carried is None:
            raise InputError(
                "a layer of a model under find-soft was called outside of the model: it weighs what earlier "
                "layers found out about the batch. Call the adapted model itself, or one of its methods (such as "
                "adapted.forward_features)."
            )
        eps = self.eps
        source_mean, source_variance = as_dtype(source_mean, mean.dtype), as_dtype(source_variance, mean.dtype)
        shift, stretch = in_source_units(mean, variance, source_mean, source_variance, eps)
        weights = soft_neighbours(shift, stretch, self.options.temperature)
        near_shift, near_spread = weighted_moments(shift, stretch * stretch, weights)
        unit = source_variance + eps
        near_spread = torch.maximum(near_spread, eps / unit)  # rounding must not take it below that of a constant
        drift = log_drift(near_shift, near_spread, weights.amax(1))  # its own weight is that of the nearest
        self.record(drift=drift)
        evidence: Evidence = self.call.carried.setdefault("evidence", Evidence())
        mean_drift, layers = evidence.add(drift)
        gate = drift_gate(mean_drift, layers, self.options.threshold, self.options.sharpness)
        if self.options.guard:
            gate = gate * (1 - self.options.guard * (1 - evidence.guard(shift, self.layers)))
        trust = ((1 - self.options.alpha) * gate)[:, None]
        return (
            torch.addcmul(source_mean, trust * near_shift, unit.sqrt()),
            torch.addcmul(source_variance, trust * (near_spread - 1), unit),
        )

    def describe(self) -> dict[str, Any]:
        drift = self.last_batch.get("drift")
        return {"score": None if drift is None else drift.exp().mean()}


class FINDSoft(Adapted):
    """FIND with soft neighbourhoods and a source weight that follows the drift."""

    name = "find-soft"
    summary = "soft neighbourhoods instead of groups, and nearly the source model where nothing has drifted"
    citation = "This project, after Jiang et al., NeurIPS 2025 (FIND)"
    weakness = (
        "Drift that does not change the statistics, or only those of late layers, is hardly adapted to. Where "
        "every batch holds one kind of drift, batch statistics may be better. On large photos FIND is about a "
        "point better. Models whose running statistics do not fit their own clean images lose some accuracy "
        "there. In batches of one or two classes it gives up part of the adaptation, and is below statistics of "
        "single images."
    )
    options_type = FINDSoftOptions

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        self.layer_count = len(sites)

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return SoftNorm(norm, self.options, self.layer_count)
