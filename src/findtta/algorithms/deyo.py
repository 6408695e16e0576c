"""DeYO: entropy minimisation on samples whose prediction rests on the shape of the object.

Shuffling the patches of an image destroys shapes and keeps colours and textures. A sample is learned
from only if its entropy is low and the probability of its predicted class drops under the shuffle; the
more it drops, the larger the sample's weight.

Differences from the authors: the margins scale with the number of classes, as the authors' formulas do
(``margins="imagenet"`` keeps their ImageNet values for every dataset); BatchNorm layers of every
dimension are adapted; an image that is not square stays as it is.

The preset "paper" has what the authors of FIND set in the code of an earlier method (DYW77/DATTA): a PLPD
threshold of 0.3, and the whole batch is shuffled and predicted again. DeYO's authors do so with the reliable
samples alone, which changes the batch statistics.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from findtta.algorithms.base import Cost
from findtta.algorithms.learning import GradientAdapted
from findtta.algorithms.presets import GradientOptions
from findtta.errors import InputError
from findtta.functional import softmax_entropy
from findtta.options import Count, Number, Seed, Text, option


@dataclass(frozen=True)
class DeYOOptions(GradientOptions):
    """Options of DeYO."""

    skip_layers: tuple[Text, ...] = option(("layer4",), "layers whose name contains one of these are not trained")
    margins: Literal["dataset", "imagenet"] = option(
        "dataset", "entropy margins by the number of classes ('dataset') or 'imagenet' (1000)"
    )
    entropy_threshold: Number | None = option(
        None, "only samples with an entropy below this are learned from (tau_E)"
    )
    entropy_margin: Number | None = option(
        None, "entropy at which the entropy term of a sample's weight is 1 (Ent0)"
    )
    plpd_threshold: Number | None = option(
        None,
        "only samples whose class loses at least this probability under shuffled patches are learned from (tau_P)",
    )
    shuffled: Literal["reliable", "batch"] | None = option(
        None, "what is shuffled and predicted again: samples with low entropy ('reliable') or the whole 'batch'"
    )
    patches_per_side: Count = option(4, "number of patches along each side of an image")
    seed: Seed = option(0, "seed of the patch permutations")

    def preset_values(self) -> dict[str, Any]:
        values = {"plpd_threshold": 0.3, "shuffled": "batch"}
        if self.preset == "official":
            values = {"plpd_threshold": self.by_class_count(0.2, 0.2, 0.3), "shuffled": "reliable"}
        largest = math.log(1000) if self.margins == "imagenet" else self.log_classes(1)
        margins = {"entropy_margin": 0.4 * largest, "entropy_threshold": 0.5 * largest}
        return super().preset_values() | values | margins


class DeYO(GradientAdapted):
    """Destroy your object: selection by what shuffled patches do to a prediction."""

    name = "deyo"
    summary = "entropy minimisation on confident samples whose prediction shuffled patches destroy"
    citation = (
        "Lee et al., Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled "
        "Factors, ICLR 2024"
    )
    weakness = (
        "It needs images, since it shuffles their patches, and a task in which the shape matters. Its "
        "sample weights are large, so a learning rate that suits TENT can be too high for it."
    )
    options_type = DeYOOptions
    passes = Cost(forward=2, backward=1)

    #: How much probability the shuffle took from the reliable samples of the last batch, in order.
    plpd: Tensor | None = None

    def learn(self, inputs: Tensor) -> Tensor:
        self._refuse_unless_images(inputs)
        logits = self.logits(inputs)
        entropy = softmax_entropy(logits)
        self.reliable = self.selected = entropy.detach() < self.options.entropy_threshold
        self.plpd = None
        if not self.reliable.any():
            return logits
        if self.options.shuffled == "batch":
            self.plpd = self._lost_probability(inputs, logits.detach())[self.reliable]
        else:
            self.plpd = self._lost_probability(inputs[self.reliable], logits[self.reliable].detach())
        destroyed = self.plpd > self.options.plpd_threshold
        self.selected = self.reliable.masked_scatter(self.reliable, destroyed)
        if destroyed.any():
            chosen = entropy[self.selected]
            weight = torch.exp(self.options.entropy_margin - chosen.detach()) + torch.exp(self.plpd[destroyed])
            self.descend((weight * chosen).mean())
        return logits

    def _lost_probability(self, images: Tensor, logits: Tensor) -> Tensor:
        permutations = self.draw_permutations(len(images)).to(images.device)
        shuffled = shuffle_patches(images, permutations, self.options.patches_per_side)
        predicted = logits.argmax(1, keepdim=True)
        lost = logits.softmax(1) - self.predict(shuffled).softmax(1)
        return lost.gather(1, predicted).squeeze(1)

    def draw_permutations(self, count: int) -> Tensor:
        """Draw an order of the patches for each of ``count`` images, ``(count, patches)``."""
        return torch.rand(count, self.options.patches_per_side**2, generator=self.generator).argsort(1)

    def _refuse_unless_images(self, inputs: Tensor) -> None:
        side = self.options.patches_per_side
        if inputs.ndim != 4 or min(inputs.shape[2:]) < side:
            raise InputError(
                f"method {self.name!r} shuffles patches, so inputs must be (batch, channels, height, width) "
                f"images of at least {side} pixels a side, got {tuple(inputs.shape)}. Use another method."
            )


def shuffle_patches(images: Tensor, permutations: Tensor, per_side: int) -> Tensor:
    """Cut each image, ``(B, C, H, W)``, into ``per_side ** 2`` patches and put them together in another order.

    ``permutations``, int64 ``(B, per_side ** 2)``, says which patch comes to each place, row by row. Images are
    resized to a multiple of ``per_side`` and back where needed.
    """
    size = images.shape[2:]
    height, width = (length // per_side for length in size)
    images = F.interpolate(images, (height * per_side, width * per_side), mode="bilinear", antialias=True)
    batch, channels = images.shape[:2]
    patches = (
        images.view(batch, channels, per_side, height, per_side, width).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    )
    patches = patches[torch.arange(batch, device=images.device)[:, None], permutations]
    patches = patches.unflatten(1, (per_side, per_side)).permute(0, 3, 1, 4, 2, 5)
    return F.interpolate(patches.reshape(images.shape), size, mode="bilinear", antialias=True)
