"""What teacher-student methods have in common: two copies of the model, and augmented views of the inputs.

The teacher predicts, so it is ``model``; the student is trained. Parameters that are never trained exist
once and belong to both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from findtta.algorithms.augment import augment, draw_augmentation
from findtta.algorithms.learning import GradientAdapted, GradientOptions
from findtta.errors import InputError, OptionError
from findtta.options import Options, Seed, option, require_choice


@dataclass(frozen=True)
class TeacherStudentOptions(GradientOptions):
    """Options of every teacher-student method."""

    view: str | Callable[[Tensor], Tensor] = option(
        "strong", "augmentation of the inputs: 'strong', 'flip', or a function from inputs to inputs"
    )
    mean: tuple[float, ...] | None = option(
        None, "channel means that the inputs were normalised with; None if inputs are images in [0, 1]"
    )
    std: tuple[float, ...] | None = option(
        None, "channel standard deviations that the inputs were normalised with; None likewise"
    )
    legacy_clip: bool = option(
        False, "augment normalised inputs without undoing the normalisation, clipped to [0, 1], as TTAB does"
    )
    seed: Seed = option(0, "seed of the random augmentations")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.view):
            require_choice("view", self.view, "strong", "flip")
        if (self.mean is None) != (self.std is None):
            raise OptionError(f"mean and std must be given together, got {self.mean!r} and {self.std!r}.")
        mean, std = self.mean or (), self.std or ()
        if len(mean) != len(std) or not all(deviation > 0 for deviation in std):
            raise OptionError(
                f"mean and std must have one number per channel, those of std above 0, got {mean!r} and {std!r}."
            )


class TeacherStudent(GradientAdapted):
    """A model that predicts as a teacher and learns as its student."""

    options_type: ClassVar[type[Options]] = TeacherStudentOptions

    def make_learner(self) -> nn.Module:
        trained = {id(self.model.get_parameter(name)) for name in self.trained_names}
        shared = {id(p): p for p in self.model.parameters() if id(p) not in trained}
        self.student = copy.deepcopy(self.model, shared)
        return self.student

    @torch.inference_mode(False)
    def reset(self) -> None:
        super().reset()
        self.source.copy_to(self.changing(self.student))  # it starts equal to the teacher

    @torch.no_grad()
    def follow(self, names: list[str], rate: float) -> None:
        """Move parameters of the teacher towards the student's by a fraction."""
        teacher: list[Tensor] = [self.model.get_parameter(name) for name in names]
        student: list[Tensor] = [self.student.get_parameter(name) for name in names]
        torch._foreach_lerp_(teacher, student, rate)

    @torch.no_grad()
    def augmented(self, inputs: Tensor) -> Tensor:
        """Return a view of the inputs, as the options say; one random draw for the whole batch."""
        view = self.options.view
        if callable(view):
            result: Tensor = view(inputs)
            return result
        if view == "flip":
            return inputs.flip(-1)
        if self.options.mean is None or self.options.legacy_clip:
            return augment(inputs, draw_augmentation(inputs, self.generator))
        if inputs.ndim != 4 or inputs.shape[1] != len(self.options.mean):
            raise InputError(
                f"inputs must have the shape (B, {len(self.options.mean)}, H, W) to go with the option 'mean', "
                f"got {tuple(inputs.shape)}. Pass one number per channel."
            )
        mean = inputs.new_tensor(self.options.mean).view(-1, 1, 1)
        std = inputs.new_tensor(self.options.std).view(-1, 1, 1)
        images = inputs * std + mean
        return (augment(images, draw_augmentation(images, self.generator)) - mean) / std


def teacher_cross_entropy(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Cross-entropy of each student prediction against its teacher's, ``(B,)``."""
    return -(teacher_logits.softmax(1) * student_logits.log_softmax(1)).sum(1)
