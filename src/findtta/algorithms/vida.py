"""ViDA: a teacher and a student with low- and high-rank branches, weighed by the teacher's uncertainty.

Liu et al., ViDA: Homeostatic Visual Domain Adapter for Continual Test Time Adaptation, ICLR 2024. The
authors publish it for vision transformers only; this is a port to networks with BatchNorm: branches
stand beside convolutions (see :func:`findtta.layers.rank_adapters.find_hosts`), and teacher and
student normalise with the statistics of the batch. Other differences: the branches start at zero
and are not warmed up on source data; uncertainty comes from augmented passes, as in their code (their
paper speaks of dropout); their code leaves the high-rank scale at 1 by mistake, which
``high_rank_scale="fixed"`` repeats.

Where the loss is one-sided (10 and 100 classes), student and teacher agree at the start, so the
gradient is nothing but rounding: SGD then stays at TBN, as the FIND paper's numbers for ViDA do, and
Adam turns the rounding into steps of full size.

Inputs are taken to be images in [0, 1] that the model normalises itself; for inputs that are
normalised already, give ``mean`` and ``std``, so that they are augmented as images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Cost
from findtta.algorithms.teacher import TeacherStudent, TeacherStudentOptions, teacher_cross_entropy
from findtta.errors import OptionError, UnsupportedModelError
from findtta.layers.rank_adapters import BranchScales, RankAdapted, add_branches, remove_branches
from findtta.options import Options, option

UNCERTAINTY_PER_VARIANCE = 0.1


@dataclass(frozen=True)
class ViDAOptions(TeacherStudentOptions):
    """Options of ViDA."""

    lr_branches: float | None = option(None, "learning rate of the branches; 'lr' is that of all else")
    low_rank: int = option(1, "width of the low-rank branches")
    high_rank: int = option(128, "width of the high-rank branches, at most the layer's own")
    views: int = option(10, "augmented passes that measure the uncertainty, at least 2")
    threshold: float | None = option(None, "uncertainty from which the high-rank branches count more")
    ema: float | None = option(None, "how much the teacher keeps of itself in a step")
    ema_branches: float | None = option(None, "how much the teacher's branches keep of themselves")
    restore_probability: float | None = option(None, "chance of each trained number to go back to the source")
    symmetric: bool | None = option(None, "learn from both directions of the cross-entropy")
    high_rank_scale: str = option("uncertainty", "'uncertainty', or 'fixed' at 1 as in the authors' code")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low_rank", "high_rank", "views"):
            self.require_positive_int(name)
        if self.views < 2:
            raise OptionError(f"views must be at least 2, to have a variance, got {self.views!r}.")
        for name in ("lr_branches", "threshold"):
            self.unless_none(name, self.require_at_least_zero)
        for name in ("ema", "ema_branches", "restore_probability"):
            self.unless_none(name, self.require_fraction)
        self.require_choice("high_rank_scale", "uncertainty", "fixed")

    @property
    def depends_on_classes(self) -> bool:
        return True

    def preset_values(self) -> dict[str, Any]:
        values = super().preset_values() | {"lr_branches": 1e-4, "ema": 0.999}
        small = {"threshold": 0.05, "ema_branches": 0.999, "restore_probability": 0.1, "symmetric": False}
        large = {"threshold": 0.2, "ema_branches": 0.8, "restore_probability": 0.0, "symmetric": True}
        values |= self.by_class_count(small, small, large)
        if self.preset == "official":
            values |= self.by_class_count(
                {"optimizer": "adam", "lr": 1e-4, "lr_branches": 1e-5},
                {"optimizer": "adam", "lr": 3e-4, "lr_branches": 1e-6},
                {"lr": 5e-7, "lr_branches": 2e-7, "nesterov": True},
            )
        return values


class ViDA(TeacherStudent):
    """Visual domain adapters, ported to networks with BatchNorm."""

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

    def __init__(self, model: nn.Module, options: Options, *, reuse_buffers: bool = True) -> None:
        assert isinstance(options, ViDAOptions)
        generator = torch.Generator().manual_seed(options.seed)
        if not add_branches(model, options.low_rank, options.high_rank, generator):
            raise UnsupportedModelError(
                f"model ({type(model).__name__}) has no convolution or linear layer to put branches beside."
            )
        try:
            super().__init__(model, options, reuse_buffers=reuse_buffers)
        except Exception:
            remove_branches(model)  # the model may be the user's own
            raise

    def names_to_train(self) -> list[str]:
        names = [name for name, _ in self.model.named_parameters()]
        branches = self._branch_names()
        return [name for name in names if name not in branches] + [name for name in names if name in branches]

    def _branch_names(self) -> set[str]:
        return {
            f"{name}.{part}"
            for name, module in self.model.named_modules()
            if isinstance(module, RankAdapted)
            for part, _ in module.named_parameters()
            if not part.startswith("host.")
        }

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer(parameters)
        group = optimizer.param_groups[0]
        count = len(parameters) - len(self._branch_names())
        branches = group | {"params": group["params"][count:], "lr": self.options.lr_branches}
        group["params"] = group["params"][:count]
        optimizer.add_param_group(branches)
        return optimizer

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return dict(zip(self.trained_names, parameters, strict=True))

    def learn(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            views = torch.stack([self.run(self.augmented(inputs)) for _ in range(self.options.views)])
            self._set_scales(UNCERTAINTY_PER_VARIANCE * views.var(0).mean())
        teacher_logits = self.predict(inputs)
        forget_cached_biases(self.student)
        student_logits = self.student(inputs)
        loss = teacher_cross_entropy(student_logits, teacher_logits).mean()
        if self.options.symmetric:
            loss = (loss + teacher_cross_entropy(teacher_logits, student_logits).mean()) / 2
        if self.descend(loss):
            branches = self._branch_names()
            self.follow([name for name in self.trained_names if name not in branches], 1 - self.options.ema)
            self.follow([name for name in self.trained_names if name in branches], 1 - self.options.ema_branches)
            if self.options.restore_probability:
                self.restore_some(self.draw_restored())
        forget_cached_biases(self.student)
        return teacher_logits

    def run(self, *args: Any, **kwargs: Any) -> Any:
        forget_cached_biases(self.model)
        return super().run(*args, **kwargs)

    def _set_scales(self, uncertainty: Tensor) -> None:
        """Let the branches for what is uncertain count more, and the others less."""
        change = torch.where(uncertainty >= self.options.threshold, uncertainty, -uncertainty)
        change = change.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        for scales in self._scales():
            scales.low.copy_(1 - change)
            if self.options.high_rank_scale == "uncertainty":
                scales.high.copy_(1 + change)

    def _scales(self) -> list[BranchScales]:
        return [m for model in (self.model, self.student) for m in model.modules() if isinstance(m, BranchScales)]

    def draw_restored(self) -> list[Tensor]:
        """Draw which of the student's trained numbers go back to the source, as one mask per parameter."""
        parameters = list(self.trained.values())
        draws = torch.rand(sum(parameter.numel() for parameter in parameters), generator=self.generator)
        masks = (draws < self.options.restore_probability).to(parameters[0].device)
        parts = masks.split([parameter.numel() for parameter in parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]

    @torch.no_grad()
    def restore_some(self, masks: list[Tensor]) -> None:
        """Bring the student's numbers that are marked back to the source."""
        source = list(self.source.buffers())[: len(masks)]
        for parameter, mask, original in zip(self.trained.values(), masks, source, strict=True):
            parameter.copy_(torch.where(mask, original, parameter))

    def changing(self) -> list[Tensor]:
        scales = [m for m in self.model.modules() if isinstance(m, BranchScales)]
        return super().changing() + [tensor for scale in scales for tensor in scale.buffers()]

    @property
    def cost(self) -> Cost:
        extra = 1 if self.options.predict == "after" else 0
        return Cost(self.options.views + 2 + extra, 1)

    def restore(self) -> nn.Module:
        return remove_branches(super().restore())


def forget_cached_biases(model: nn.Module) -> None:
    """Drop attention biases that EfficientViT and its kin cache in evaluation mode: they are trained here."""
    for module in model.modules():
        cache = getattr(module, "attention_bias_cache", None)
        if isinstance(cache, dict):
            cache.clear()
