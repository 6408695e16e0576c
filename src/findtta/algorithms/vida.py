"""ViDA: a teacher and a student with low- and high-rank branches, weighed by the teacher's uncertainty.

The authors publish it for vision transformers only; this is a port to models with BatchNorm: branches are
added beside convolutions (see :func:`findtta.layers.rank_adapters.find_hosts`), and teacher and student
normalise with the statistics of the batch. Other differences: the branches start at zero and are not warmed up
on source data; uncertainty comes from augmented passes, as in their code (their paper speaks of dropout); their
code leaves the high-rank scale at 1 by mistake, which ``high_rank_scale="fixed"`` repeats.

Where the loss is one-sided (10 and 100 classes), student and teacher agree at the start, so the
gradient consists of rounding errors only: SGD then stays at TBN, as the FIND paper's numbers for ViDA do,
and Adam turns the rounding errors into steps of full size.

The preset "paper" has the optimizer of the FIND paper, and the threshold (0.2) and the learning rate of the
branches (1e-5) that its authors set in the code of an earlier method (DYW77/DATTA).

Inputs are taken to be images in [0, 1] that the model normalises itself; for inputs that are
normalised already, give ``mean`` and ``std``, so that they are augmented as images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Cost
from findtta.algorithms.teacher import TeacherStudent
from findtta.algorithms.views import ViewOptions
from findtta.errors import UnsupportedModelError
from findtta.layers.rank_adapters import BranchScales, add_branches, remove_branches
from findtta.layers.surgery import NormSite
from findtta.options import AtLeastTwo, AtLeastZero, Count, Fraction, option

UNCERTAINTY_PER_VARIANCE = 0.1


@dataclass(frozen=True)
class ViDAOptions(ViewOptions):
    """Options of ViDA."""

    lr_branches: AtLeastZero | None = option(
        None, "learning rate of the branches; lr is that of all other parameters"
    )
    low_rank: Count = option(1, "width of the low-rank branches")
    high_rank: Count = option(128, "width of the high-rank branches, limited to the width of the layer")
    views: AtLeastTwo = option(10, "augmented forward passes that measure the uncertainty, at least 2")
    threshold: AtLeastZero | None = option(
        None, "uncertainty from which the high-rank branches get the larger weight, below it the low-rank ones"
    )
    ema: Fraction | None = option(None, "fraction of the teacher's parameters that is kept in a step")
    ema_branches: Fraction | None = option(None, "the same for the teacher's branches")
    restore_probability: Fraction | None = option(
        None, "probability that a trained number is reset to its source value after a step"
    )
    symmetric: bool | None = option(
        None, "use the cross-entropy in both directions: student to teacher and teacher to student"
    )
    high_rank_scale: Literal["uncertainty", "fixed"] = option(
        "uncertainty",
        "weight of the high-rank branches: by 'uncertainty', or 'fixed' at 1 as in the authors' code",
    )

    def preset_values(self) -> dict[str, Any]:
        values = super().preset_values() | {"ema": 0.999}
        small = {"threshold": 0.05, "ema_branches": 0.999, "restore_probability": 0.1, "symmetric": False}
        large = {"threshold": 0.2, "ema_branches": 0.8, "restore_probability": 0.0, "symmetric": True}
        values |= self.by_class_count(small, small, large)
        if self.preset == "paper":
            values |= {"threshold": 0.2, "lr_branches": 1e-5}
        else:
            values |= self.by_class_count(
                {"optimizer": "adam", "lr": 1e-4, "lr_branches": 1e-5},
                {"optimizer": "adam", "lr": 3e-4, "lr_branches": 1e-6},
                {"lr": 5e-7, "lr_branches": 2e-7, "nesterov": True},
            )
        return values


class ViDA(TeacherStudent):
    """Visual domain adapters, ported to models with BatchNorm."""

    name = "vida"
    summary = "teacher and student with low- and high-rank branches, weighed by the teacher's uncertainty"
    citation = "Liu et al., ViDA: Homeostatic Visual Domain Adapter for Continual Test Time Adaptation, ICLR 2024"
    weakness = (
        "Twelve forward passes per batch. Published for transformers with branches warmed up on source "
        "data; without that warm-up, and at the small learning rates of the comparison, it stays close to "
        "TBN."
    )
    options_type = ViDAOptions
    passes = Cost(forward=12, backward=1)

    def prepare(self, model: nn.Module, sites: Sequence[NormSite]) -> None:
        super().prepare(model, sites)
        source = set(model.parameters())
        generator = torch.Generator().manual_seed(self.options.seed)
        if not add_branches(model, self.options.low_rank, self.options.high_rank, generator):
            raise UnsupportedModelError(
                f"model ({type(model).__name__}) has no convolution or linear layer to put branches beside."
            )
        parameters = dict(model.named_parameters())
        # The branches come last, because they have a learning rate of their own.
        self.trained_names = sorted(parameters, key=lambda name: parameters[name] not in source)
        self.branch_count = len(parameters) - len(source)

    def parameters_to_train(self, model: nn.Module, sites: Sequence[NormSite]) -> list[str]:
        return [name for name, _ in model.named_parameters()]

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer(parameters[: -self.branch_count])
        optimizer.add_param_group({"params": parameters[-self.branch_count :], "lr": self.options.lr_branches})
        return optimizer

    def learn(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            views = torch.stack([self.run(self.augmented(inputs)) for _ in range(self.options.views)])
            self._set_scales(UNCERTAINTY_PER_VARIANCE * views.var(0).mean())
        teacher_logits = self.predict(inputs)
        if self.imitate(inputs, teacher_logits):
            self.follow(self.trained_names[: -self.branch_count], 1 - self.options.ema)
            self.follow(self.trained_names[-self.branch_count :], 1 - self.options.ema_branches)
            self.restore_some(self.options.restore_probability)
        return teacher_logits

    def _set_scales(self, uncertainty: Tensor) -> None:
        """Weigh the branches by the uncertainty: the high-rank ones more above the threshold, less below it."""
        change = torch.where(uncertainty >= self.options.threshold, uncertainty, -uncertainty)
        change = change.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        for scales in scales_of(self.model, self.student):
            scales.low.copy_(1 - change)
            if self.options.high_rank_scale == "uncertainty":
                scales.high.copy_(1 + change)

    def changing(self, replica: nn.Module) -> list[Tensor]:
        return super().changing(replica) + [tensor for scales in scales_of(replica) for tensor in scales.buffers()]

    @property
    def cost(self) -> Cost:
        extra = 1 if self.options.predict == "after" else 0
        return Cost(self.options.views + 2 + extra, 1)

    def restore(self) -> nn.Module:
        return remove_branches(super().restore())


def scales_of(*models: nn.Module) -> list[BranchScales]:
    """List the weights of the branches of models."""
    return [module for model in models for module in model.modules() if isinstance(module, BranchScales)]
