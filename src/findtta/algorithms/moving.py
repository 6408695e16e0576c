"""Source statistics that move with the stream, and only when a step was really taken.

A layer in learning mode proposes new statistics; they are taken over once the update they belong to
has succeeded, and dropped otherwise, so a batch that cannot be learned from leaves no trace.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingStatistics(nn.Module):
    """Mean and variance of one layer, which start at those of ``norm`` and move by ``momentum``, 0 to 1."""

    mean: Tensor
    variance: Tensor

    def __init__(self, norm: nn.Module, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        #: Whether the layer learns, or applies what it learned.
        self.learning = False
        #: Whether there are statistics at all; a layer that never kept any uses those of the batch.
        self.known = norm.running_mean is not None
        self.proposed: tuple[Tensor, Tensor] | None = None
        for name, kept in (("mean", norm.running_mean), ("variance", norm.running_var)):
            self.register_buffer(name, kept.detach().clone() if isinstance(kept, Tensor) else torch.zeros(1))

    def start_from(self, norm: nn.Module) -> None:
        """Take over the running statistics of a layer."""
        if isinstance(norm.running_mean, Tensor) and isinstance(norm.running_var, Tensor):
            self.mean.copy_(norm.running_mean)
            self.variance.copy_(norm.running_var)

    def propose(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Move towards new statistics, ``(C,)`` each, and return where that leads (with gradient)."""
        if not self.known:
            return mean, variance
        # A layer that is called twice in a pass moves twice.
        old_mean, old_variance = self.proposed or (self.mean, self.variance)
        moved_mean = torch.lerp(old_mean.to(mean.dtype), mean, self.momentum)
        moved_variance = torch.lerp(old_variance.to(variance.dtype), variance, self.momentum)
        self.proposed = moved_mean.detach(), moved_variance.detach()
        return moved_mean, moved_variance


def moving_statistics(*models: nn.Module) -> list[MovingStatistics]:
    """List the moving statistics of models, in module order."""
    return [module for model in models for module in model.modules() if isinstance(module, MovingStatistics)]


@contextmanager
def learning_statistics(*models: nn.Module) -> Iterator[Callable[[], None]]:
    """Let the layers of models learn statistics within the block; call what it yields to accept them."""
    statistics = moving_statistics(*models)

    def accept() -> None:
        for moving in statistics:
            if moving.proposed is not None:
                moving.mean.copy_(moving.proposed[0])
                moving.variance.copy_(moving.proposed[1])

    for moving in statistics:
        moving.learning = True
    try:
        yield accept
    finally:
        for moving in statistics:
            moving.learning = False
            moving.proposed = None
