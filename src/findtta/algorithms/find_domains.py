"""FIND with a memory of domains: what a batch tells about a kind of drift is kept for the next ones.

This is not in the paper. FIND and find-soft meet every kind of drift anew in each batch, with the few samples that
show it. This method remembers:

- Every image is described before the first layer by the energies of its frequencies, in a way that tells how it
  was taken rather than what it shows. Input without two spatial dimensions is described by its moments in the
  first layer.
- Domains are clusters of these descriptions that follow the stream. An image joins the nearest one. If it is far
  from all, it opens a domain, in a free place or in that of the domain used least. Their number need not be known.
  A domain whose newcomers are unlike what it remembers counts its memory as fewer samples.
- Which domain an image belongs to is decided once for all layers. Every layer keeps sums of moments per domain,
  with the current batch in them, and normalises an image with the statistics of its domain (and of those that
  cannot yet be told from it) blended with the source's.
- The weight of the source falls from 1 to ``alpha`` as evidence of drift grows: the divergence of those statistics
  from the source, averaged (as a logarithm) over the layers passed and with that of earlier images of the domain,
  against a threshold that falls with depth. A domain that looks like the training data is left nearly alone, and
  the statistics of few samples have less weight.

It needs no gradients. What it keeps has a fixed size: for each domain a description and two numbers per channel of
every layer; no image and no feature map. See docs/beyond-find.md for how it was developed.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from findtta.algorithms.base import Adapted, Domain
from findtta.algorithms.source import SourceNorm
from findtta.errors import InputError, OptionError
from findtta.functional import in_source_units, log_drift, native
from findtta.functional.domains import (
    DESCRIPTION,
    NOTHING,
    Domains,
    Joined,
    describe_images,
    describe_moments,
    join_domains,
    recall,
    remember,
)
from findtta.functional.moments import as_dtype, average_windows, repeat_for_windows, widen
from findtta.functional.soft import LEAST_DRIFT, drift_threshold
from findtta.layers.adaptive import AdaptiveNorm, channels_of
from findtta.layers.stand_in import CallState
from findtta.layers.surgery import NormSite
from findtta.options import AtLeastTwo, AtLeastZero, Count, Fraction, Options, Positive, option


@dataclass(frozen=True)
class FINDDomainsOptions(Options):
    """Options of FIND with a memory of domains."""

    alpha: Fraction = option(
        0.5,
        "weight of the source statistics for samples with strong drift of a well known domain; up to 1 for others",
    )
    domains: AtLeastTwo = option(
        32, "most domains remembered at a time; more than there are cost a little until they are known"
    )
    memory: Count = option(128, "number of samples whose statistics a domain remembers")
    forget: Count = option(
        4096, "number of samples after which the usage of a domain that none of them joined has fallen to 37%"
    )
    threshold: Positive = option(
        0.075,
        "KL divergence from the source at which the source weight is halfway between 1 and alpha, in the first "
        "layer; lower in deeper layers",
    )
    sharpness: AtLeastZero = option(
        6.0, "steepness of the source weight as a function of log drift around the threshold; 0: always halfway"
    )


class Passing:
    """One batch on its way through the model: where its samples belong, their drift, and what is to be kept."""

    def __init__(self, owner: "FINDDomains", images: Tensor | None) -> None:
        self.owner, self.images = owner, images
        self.joined: Joined | None = None
        self.domains: Domains
        self.sums: dict[DomainNorm, Tensor] = {}  # what layers remember, with this batch
        self.total: Tensor  # of the log drift of each sample over the layers so far
        self.layers = 0

    def begin(self, points: Tensor) -> Joined:
        """Let the samples of the batch join domains, by their descriptions."""
        self.domains, self.joined = self.owner.join(points)
        recalled, known = recall(self.joined.kept[:, None] * self.owner.drift, self.joined.weights)
        self.recalled, self.known = recalled[:, 0], known[:, 0] * self.owner.layer_count
        self.total = torch.zeros_like(self.known)
        #: What the compiled function is given of all layers; None if it cannot be used.
        self.tables = native.pointers(*self.joined[1:], self.recalled, self.known, self.total)
        return self.joined

    def join(self, shift: Tensor, stretch: Tensor) -> Joined | None:
        """Return where the rows of a layer with these moments belong; None if that cannot be known."""
        joined = self.joined
        if joined is None:
            points = describe_moments(shift, stretch) if self.images is None else describe_images(self.images)
            joined = self.begin(points.to(shift))
        rows = shift.shape[0]
        if rows % joined.weights.shape[0]:
            return None  # rows that are neither images nor parts of images
        return Joined(joined.kept, *(repeat_for_windows(part, rows) for part in joined[1:]))

    def remembered(self, layer: "DomainNorm", kept: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what a layer remembers of domains so far, and which share of it is kept."""
        if layer in self.sums:  # it is called more than once in a pass
            return self.sums[layer], torch.ones_like(kept)
        return as_dtype(layer.sums, dtype), kept

    def evidence(self, drift: Tensor) -> Tensor:
        """Add the log drift of the rows of a layer; return the evidence of drift so far, 0 at the threshold.

        What earlier samples of the domains came to at the end of the model counts as much as all its layers.
        """
        self.total += average_windows(drift, self.total.shape[0])  # in place: native.c knows where it is
        self.layers += 1
        own = self.total - self.layers * self.log_threshold
        evidence = (own + self.known * self.recalled) / (self.layers + self.known)
        return repeat_for_windows(evidence, drift.shape[0])

    @property
    def log_threshold(self) -> float:
        """Logarithm of the drift at which the source weight is halfway, after the layers so far."""
        return math.log(drift_threshold(self.layers, self.owner.options.threshold))

    def finish(self) -> None:
        """Keep what the batch has taught, once it has passed the whole model."""
        if self.joined is None or not self.layers:
            return
        self.owner.keep(self.domains)
        own = self.total / self.layers - self.log_threshold
        self.owner.drift.copy_(remember(own[:, None], as_dtype(self.owner.drift, own.dtype), self.joined))
        for layer, sums in self.sums.items():
            layer.sums.copy_(sums)


class DomainCall(CallState):
    """What one call keeps, and the batch that is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.passing: Passing | None = None


class DomainNorm(AdaptiveNorm):
    """Normalises each sample with a blend of the source's statistics and those of the domains near to it."""

    call: DomainCall
    sums: Tensor

    def __init__(self, norm: nn.Module, options: FINDDomainsOptions) -> None:
        super().__init__(norm)
        self.options = options
        self.numbers = (options.alpha, options.sharpness, LEAST_DRIFT, NOTHING)  # in the order of native.c
        unit = widen(norm.running_mean)  # type: ignore[arg-type]
        # Of every domain the sum of shifts, that of second moments, and the number of samples in them.
        self.register_buffer("sums", unit.new_zeros(options.domains, 2 * channels_of(norm) + 1))

    def statistics(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        source_mean, source_variance = self.source_statistics(mean, variance)
        if self.options.alpha == 1:
            return source_mean, source_variance
        passing = self.call.passing
        if passing is None:
            raise InputError(
                "a layer of a model under find-domains was called outside of the model: which domains samples "
                "belong to is decided once for all layers. Call the adapted model itself, or one of its methods "
                "(such as adapted.forward_features)."
            )
        eps = self.eps
        source_mean, source_variance = as_dtype(source_mean, mean.dtype), as_dtype(source_variance, mean.dtype)
        shift, stretch = in_source_units(mean, variance, source_mean, source_variance, eps)
        joined = passing.join(shift, stretch)
        if joined is None:
            return source_mean, source_variance
        square = torch.addcmul(stretch * stretch, shift, shift)
        old, kept = passing.remembered(self, joined.kept, mean.dtype)
        sums = passing.sums[self] = remember(torch.cat([shift, square], 1), old, joined._replace(kept=kept))
        near_shift, near_square = recall(sums, joined.weights)[0].chunk(2, 1)
        unit = source_variance + eps
        near_spread = torch.addcmul(near_square, near_shift, near_shift, value=-1)
        near_spread = torch.maximum(near_spread, eps / unit)  # rounding must not take it below that of a constant
        drift = log_drift(near_shift, near_spread, joined.chance)
        self.record(drift=drift, members=joined.members)
        evidence = passing.evidence(drift)
        trust = (1 - self.options.alpha) * torch.sigmoid(self.options.sharpness * evidence)
        trust = (trust / (1 + joined.chance))[:, None]
        return (
            torch.addcmul(source_mean, trust * near_shift, unit.sqrt()),
            torch.addcmul(source_variance, trust * (near_spread - 1), unit),
        )

    def in_one_call(self, features: Tensor, overwrite: bool) -> Tensor | None:
        passing = self.call.passing
        if type(self) is not DomainNorm or self.options.alpha == 1 or passing is None:
            return None
        if passing.joined is None and passing.images is not None:
            passing.begin(describe_images(passing.images).to(features))
        joined = passing.joined
        if joined is None or passing.tables is None or joined.members.shape[0] != features.shape[0]:
            return None
        if (call := self.prepare_call(features, overwrite)) is None:
            return None
        sums, kept = passing.remembered(self, joined.kept, features.dtype)
        passing.layers += 1
        options = (passing.layers, passing.log_threshold, *self.numbers)
        if (found := native.find_domains(call, passing.tables, kept, sums, options)) is None:
            passing.layers -= 1
            return None
        passing.sums[self], drift = found
        return self.finish_call(call, drift=drift, members=joined.members)

    def reset(self) -> None:
        super().reset()
        self.sums.zero_()

    def describe(self) -> dict[str, Any]:
        batch = self.last_batch
        if "drift" not in batch:
            return {}
        return {"groups": (batch["members"].sum(0) > 0).sum(), "score": batch["drift"].exp().nanmean()}


class FINDDomains(Adapted):
    """FIND with a memory of domains."""

    name = "find-domains"
    summary = (
        "a memory of domains: statistics of all images with the same drift, those of earlier batches included"
    )
    citation = "This project, after Jiang et al., NeurIPS 2025 (FIND)"
    weakness = (
        "Its domains are clusters of the frequencies of images: kinds of drift that do not differ there are not "
        "told apart. It takes some tens of images to know a domain; where kinds of drift change faster than that "
        "and never come back, it has little to remember. If a domain shows one class for longer than its memory "
        "lasts, part of what tells that class is taken for drift."
    )
    options_type = FINDDomainsOptions
    stateful = True

    call: DomainCall
    centres: Tensor
    counts: Tensor
    usage: Tensor
    drift: Tensor

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        self.layer_count, places = len(sites), self.options.domains
        self.call = DomainCall()
        known = [site.module.running_mean for site in sites if isinstance(site.module.running_mean, Tensor)]
        unit = widen(known[0]) if known else torch.zeros(())
        self.register_buffer("centres", unit.new_zeros(places, DESCRIPTION))
        self.register_buffer("counts", unit.new_zeros(places))
        self.register_buffer("usage", unit.new_zeros(places))
        self.register_buffer("drift", unit.new_zeros(places, 2))

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return SourceNorm(norm) if norm.running_mean is None else DomainNorm(norm, self.options)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_domains(super().run, *args, **kwargs)

    def _in_one_call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        call = functools.partial(self._with_domains, super()._in_one_call(method))
        return functools.update_wrapper(call, method)

    def _with_domains(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        first = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        passing = self.call.passing = Passing(self, first if first is not None and first.ndim == 4 else None)
        try:
            outputs = call(*args, **kwargs)
        finally:
            self.call.passing = None
        passing.finish()
        return outputs

    def join(self, points: Tensor) -> tuple[Domains, Joined]:
        """Return the domains with the samples of a batch in them, ``(B, 98)``, and where each belongs."""
        return join_domains(points, self._domains(points), self.options.memory, self.options.forget)

    def keep(self, domains: Domains) -> None:
        """Take over domains as those met so far."""
        for name, values in domains._asdict().items():
            self.get_buffer(name).copy_(values)

    def _domains(self, like: Tensor) -> Domains:
        return Domains(self.centres.to(like), self.counts.to(like), self.usage.to(like))

    @torch.no_grad()
    def merge(self, other: "FINDDomains") -> None:
        """Add what another replica of the same model has learned; its domains join those that are here already."""
        mine, others = ({name: sums.shape for name, sums in model._sums().items()} for model in (self, other))
        if mine != others or self.options != other.options:
            raise OptionError(
                f"other must be a replica of this model, with {self.options} and the same {len(mine)} layers, got "
                f"one with {other.options} and {len(others)} layers."
            )
        with self.lock:
            points = other.centres.masked_fill((other.counts == 0)[:, None], math.nan).to(self.centres)
            counts = other.counts.to(points)
            domains, joined = join_domains(points, self._domains(points), math.inf, math.inf, counts)
            # No domain remembers more than its memory holds.
            scale = (self.options.memory / domains.counts.clamp_min(1)).clamp(max=1)
            self.keep(domains._replace(counts=domains.counts * scale))
            for name, ours in self._sums().items():
                theirs = other._sums()[name].to(ours)
                ours.copy_(scale[:, None] * torch.addmm(joined.kept[:, None] * ours, joined.members.T, theirs))

    def _sums(self) -> dict[str, Tensor]:
        """What is remembered of the samples of domains: their drift, and their moments in every layer."""
        return {"": self.drift} | {
            name: layer.sums for name, layer in self.layers() if isinstance(layer, DomainNorm)
        }

    def reset(self) -> None:
        super().reset()
        with self.lock:
            for buffer in (self.centres, self.counts, self.usage, self.drift):
                buffer.zero_()

    def domains(self) -> list[Domain]:
        """Return the domains met so far, those used most lately first; waits for the device."""
        counts, usage, (total, number) = self.counts.tolist(), self.usage.tolist(), self.drift.T.tolist()
        known = [place for place, count in enumerate(counts) if count]
        return [
            Domain(
                place, counts[place], usage[place] / sum(usage), math.exp(total[place] / max(number[place], 1e-9))
            )
            for place in sorted(known, key=lambda place: -usage[place])
        ]
