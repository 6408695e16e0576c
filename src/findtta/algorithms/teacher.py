"""What teacher-student methods have in common: two copies of the model, of which one is trained.

The teacher predicts, so it is ``model``; the student is trained. Parameters that are never trained exist
once and belong to both.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.views import Augmenting


class TeacherStudent(Augmenting):
    """A model that predicts as a teacher and learns as its student."""

    def make_learner(self) -> nn.Module:
        trained = {id(self.model.get_parameter(name)) for name in self.trained_names}
        shared = {id(p): p for p in self.model.parameters() if id(p) not in trained}
        self.student = copy.deepcopy(self.model, shared)
        return self.student

    def run(self, *args: Any, **kwargs: Any) -> Any:
        forget_cached_biases(self.model)
        return super().run(*args, **kwargs)

    @torch.inference_mode(False)
    def reset(self) -> None:
        super().reset()
        self.source.copy_to(self.changing(self.student))  # it starts equal to the teacher

    def imitate(self, inputs: Tensor, teacher_logits: Tensor) -> bool:
        """Train the student to predict what the teacher does; return whether a step was taken.

        The option ``symmetric`` decides on the loss.
        """
        forget_cached_biases(self.student)
        divergence = symmetric_cross_entropy if self.options.symmetric else teacher_cross_entropy
        taken = self.descend(divergence(self.student(inputs), teacher_logits).mean())
        forget_cached_biases(self.student)
        return taken

    @torch.no_grad()
    def follow(self, names: list[str], rate: float) -> None:
        """Move parameters of the teacher towards the student's by a fraction."""
        teacher: list[Tensor] = [self.model.get_parameter(name) for name in names]
        student: list[Tensor] = [self.student.get_parameter(name) for name in names]
        torch._foreach_lerp_(teacher, student, rate)

    @torch.no_grad()
    def restore_some(self, probability: float) -> None:
        """Reset trained numbers of the student, drawn at random, to the source."""
        if not probability:
            return
        sizes = [parameter.numel() for parameter in self.trained.values()]
        masks = self.draw_restored(sum(sizes), probability).to(self.source.get_buffer("0").device).split(sizes)
        # The trained numbers come first in the source.
        for parameter, mask, original in zip(self.trained.values(), masks, self.source.buffers(), strict=False):
            parameter.copy_(torch.where(mask.view_as(parameter), original, parameter))

    def draw_restored(self, count: int, probability: float) -> Tensor:
        """Draw which of the trained numbers are restored, ``(count,)``."""
        return torch.rand(count, generator=self.generator) < probability


def teacher_cross_entropy(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Cross-entropy of each student prediction against its teacher's, ``(B,)``."""
    return -(teacher_logits.softmax(1) * student_logits.log_softmax(1)).sum(1)


def symmetric_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """Mean of the cross-entropies of two predictions against each other, from logits, ``(B,)``."""
    return (teacher_cross_entropy(one, other) + teacher_cross_entropy(other, one)) / 2


def forget_cached_biases(model: nn.Module) -> None:
    """Drop attention biases that EfficientViT and others cache in evaluation mode: they are trained here."""
    for module in model.modules():
        cache = getattr(module, "attention_bias_cache", None)
        if isinstance(cache, dict):
            cache.clear()
