"""NOTE: instance-aware normalisation, and entropy minimisation on a class-balanced memory of the stream.

Predictions come from instance-aware layers with slowly moving statistics, so they do not depend on
how the stream is cut into batches: a batch in whose middle an update falls due is predicted in two
parts, as if its samples had come one by one, which is what the authors do. ``schedule="batch"``
updates once per batch of any size instead, as TTAB does. Differences from the authors: the layers
are swapped into a model trained with BatchNorm, and a last batch that is short is used as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Cost
from findtta.algorithms.iabn import IABN, InstanceAwareNorm, StandardErrors
from findtta.algorithms.learning import GradientAdapted
from findtta.algorithms.memory_bank import BalancedReservoir, ReservoirDraws
from findtta.algorithms.moving import MovingStatistics, learning_statistics
from findtta.algorithms.presets import GradientOptions
from findtta.functional import batch_moments
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite
from findtta.options import Count, Fraction, Seed, option

LOG_FLOOR = 1e-6


@dataclass(frozen=True)
class NOTEOptions(GradientOptions):
    """Options of NOTE."""

    use_iabn: bool = option(True, "correct the statistics per instance (IABN); False: BatchNorm, TTAB's default")
    k: StandardErrors = option(4.0, "number of standard errors beyond which an instance corrects the statistics")
    bn_momentum: Fraction = option(0.01, "weight of the memory's statistics in the moving statistics, per update")
    memory_size: Count = option(64, "number of images that the memory holds")
    schedule: Literal["samples", "batch"] | None = option(
        None, "when to update: every update_every 'samples', or once per 'batch' as TTAB does"
    )
    update_every: Count = option(64, "number of samples between two updates, for schedule='samples'")
    seed: Seed = option(0, "seed of the draws that decide which images the memory keeps")

    def preset_values(self) -> dict[str, Any]:
        values = super().preset_values() | {"schedule": "batch"}
        if self.preset == "official":
            values |= {"optimizer": "adam", "lr": 1e-4, "schedule": "samples"}
            # Their script asks for none, but their main file takes a zero for "not given" on CIFAR.
            values["weight_decay"] = self.by_class_count(5e-4, 5e-4, 0.0)
        return values


class SlowInstanceAwareNorm(InstanceAwareNorm):
    """Instance-aware layer whose base statistics move slowly towards those it learns from."""

    def __init__(self, norm: nn.Module, k: float, momentum: float, *, instance_aware: bool) -> None:
        super().__init__(norm, k if instance_aware else float("inf"))
        self.instance_aware = instance_aware
        self.moving = MovingStatistics(norm, momentum)

    def base_statistics(self, mean: Tensor, variance: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        if not self.moving.learning and self.moving.known:
            return self.moving.mean, self.moving.variance
        unbiased = batch_moments(mean, variance, "unbiased", positions)
        self.moving.propose(*unbiased)
        # What plain BatchNorm normalises with in training differs from what it accumulates.
        return unbiased if self.instance_aware else batch_moments(mean, variance)


class NOTE(GradientAdapted):
    """Non-i.i.d. test-time adaptation."""

    name = "note"
    summary = "instance-aware statistics, and entropy minimisation on a class-balanced memory of the stream"
    citation = IABN.citation
    weakness = (
        "It adapts slowly: one small step per 64 samples. The normalisation is IABN's, with the weakness "
        "of IABN in models that were not trained with it."
    )
    options_type = NOTEOptions
    # Only through an update in the middle of a batch, which the samples after it are predicted with.
    batch_dependent = False
    passes = Cost(forward=2, backward=1)

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        super().prepare(model, sites)
        self.bank = BalancedReservoir(self.options.memory_size, ReservoirDraws(self.generator))

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        options = self.options
        return SlowInstanceAwareNorm(norm, options.k, options.bn_momentum, instance_aware=options.use_iabn)

    def learn(self, inputs: Tensor) -> Tensor:
        outputs = []
        while len(inputs):
            until_update = self.options.update_every - self.bank.offers % self.options.update_every
            count = len(inputs) if self.options.schedule == "batch" else until_update
            chunk, inputs = inputs[:count], inputs[count:]
            outputs.append(self.predict(chunk))
            if self._remember(chunk, outputs[-1]) and len(chunk) == count:
                self._update()
        return torch.cat(outputs)

    def _remember(self, samples: Tensor, logits: Tensor) -> bool:
        # The one transfer to the host: predicted classes, with a mark on samples without a prediction.
        classes = torch.where(logits.isfinite().all(1), logits.argmax(1), -1).tolist()
        if -1 in classes:
            self.warn_skipped("its logits contain NaN or Inf")
            return False
        self.bank.insert(samples, classes, [0.0] * len(classes), logits.shape[1])
        return True

    def _update(self) -> None:
        images = self.bank.contents()
        shuffled = torch.tensor(self.bank.draws.permutation(len(images)), device=images.device)
        with learning_statistics(self.model) as accept_statistics:
            probabilities = self.logits(images[shuffled]).softmax(1)
            # The mean is over samples and classes, so the entropy is divided by the number of classes.
            loss = -(probabilities * torch.log(probabilities + LOG_FLOOR)).mean()
            if self.descend(loss):
                accept_statistics()
