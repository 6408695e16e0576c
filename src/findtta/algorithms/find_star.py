"""FIND*: FIND that stops splitting the layers which drift little (selective FABN, S-FABN).

During the cold start every layer is split and scored by the divergence of its inputs from the
source. Then the scores are averaged, normalised over the layers, and the layers below the threshold
use the statistics of the whole batch in place of a group's. The selection is never revised, except
by :meth:`FINDStar.reset`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.find import FABN, FIND, FINDOptions, Partition
from findtta.functional import batch_moments, gaussian_kl, layer_score, normalize_scores, partition
from findtta.functional.moments import Estimator
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite
from findtta.options import Count, Number, option

# The buffers of a layer before the first batch.
UNSCORED = {"score_sum": 0.0, "calls": 0, "score": torch.nan, "split": True}


@dataclass(frozen=True)
class FINDStarOptions(FINDOptions):
    """Options of FIND*."""

    threshold: Number = option(
        0.1, "layers with a sensitivity score (0 to 1) below this are no longer split (gamma)"
    )
    cold_start: Count = option(10, "number of first batches that layers are scored on, with all layers split")


class SelectiveFABN(FABN):
    """FABN that scores itself during the cold start and may stop splitting afterwards."""

    score_sum: Tensor
    calls: Tensor
    score: Tensor
    split: Tensor

    def __init__(
        self, norm: nn.Module, alpha: float, partition: Partition = partition, variance: Estimator = "biased"
    ) -> None:
        super().__init__(norm, alpha, partition, variance)
        device = next((tensor.device for tensor in [*norm.parameters(), *norm.buffers()]), None)
        for name, value in UNSCORED.items():
            self.register_buffer(name, torch.tensor(value, device=device))
        # What the buffers say, on the host, so that a forward pass never waits for the device.
        self.scoring = self.splitting = True

    def statistics(  # type: ignore[override]
        self, mean: Tensor, variance: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.scoring:
            self._add_score(mean, variance)
        return super().statistics(mean, variance, features)

    def test_statistics(self, mean: Tensor, variance: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        if self.splitting:
            return super().test_statistics(mean, variance, positions)
        return batch_moments(mean, variance, self.variance, positions, self.eps)

    def is_plain(self) -> bool:
        return type(self) is SelectiveFABN and self.splitting and not self.scoring

    def _add_score(self, mean: Tensor, variance: Tensor) -> None:
        source = self.source_statistics(mean, variance)
        divergence = gaussian_kl(*batch_moments(mean, variance), *source, eps=self.eps)
        self.score_sum += layer_score(divergence)
        self.calls += 1

    def reset(self) -> None:
        super().reset()
        for name, value in UNSCORED.items():
            self.get_buffer(name).fill_(value)
        self.scoring = self.splitting = True

    def describe(self) -> dict[str, Any]:
        groups = super().describe()["groups"] if self.splitting else 1
        # Before the selection there is only the mean of the raw scores; NaN before the first batch.
        score = self.score_sum / self.calls if self.scoring else self.score
        return {"groups": groups, "score": score, "split": self.splitting}


class FINDStar(FIND):
    """FIND with splitting only where the features drift."""

    name = "find-star"
    summary = "FIND that stops splitting layers which drift little, chosen in the first batches"
    weakness = (
        "Where FIND fails, and where the first batches are not like the later ones: the choice of layers "
        "is made once, in the cold start."
    )
    options_type = FINDStarOptions
    stateful = True
    settles = True
    warm_up_option = "cold_start"

    batches: Tensor

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.batches_seen = 0  # the buffer's value on the host
        self.register_load_state_dict_post_hook(FINDStar._read_buffers)  # type: ignore[no-untyped-call]

    def make_layer(self, norm: nn.Module) -> AdaptiveNorm:
        return SelectiveFABN(norm, self.options.alpha, self.options.partition(), self.options.variance)

    @property
    def warm_up_left(self) -> int:
        return max(0, int(self.options.cold_start) - self.batches_seen)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().run(*args, **kwargs)
        if self.warm_up_left:
            self.batches_seen += 1
            self.batches += 1
            if not self.warm_up_left:
                self._select_layers()
        return outputs

    def _select_layers(self) -> None:
        layers = [layer for _, layer in self.layers() if isinstance(layer, SelectiveFABN)]
        # On the host: layers may live on several devices. A layer that was never called has NaN here.
        raw = torch.stack([(layer.score_sum / layer.calls).cpu() for layer in layers])
        scores = normalize_scores(raw)
        for layer, score in zip(layers, scores, strict=True):
            layer.score.copy_(score)
            layer.split.copy_(~(score < self.options.threshold))
        self._read_buffers()

    def _read_buffers(self, *_hook_arguments: object) -> None:
        self.batches_seen = int(self.batches)
        for _, layer in self.layers():
            if isinstance(layer, SelectiveFABN):
                layer.scoring = self.batches_seen < self.options.cold_start
                layer.splitting = bool(layer.split)

    def reset(self) -> None:
        super().reset()
        self.batches.zero_()
        self.batches_seen = 0
