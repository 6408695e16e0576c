"""The gradient at every step of a method that learns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import findtta
from findtta.algorithms.gradient import GradientAdapted
from findtta.bench.plan import Plan
from findtta.errors import OptionError, SkippedUpdateWarning
from findtta.images import to_input


def measure_gradients(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the norm of the gradient of all trained parameters at every batch.

    Args:
        plan: Model, stream, and a method that learns. Of one that takes two gradients per batch (SAR) it is the
            first, where the parameters are.
        settings: ``batches``: how many at most.

    Returns:
        ``steps``: the batches from which the method learned, counted from 1; ``norms``: the gradient at each.
    """
    device = torch.device(plan.spec.device)
    adapted = findtta.adapt(plan.model, plan.spec.method, **plan.options)
    if not isinstance(adapted, GradientAdapted):
        raise OptionError(f"method must be one that learns, such as sar, got {plan.spec.method!r}.")
    adapted.to(device=device)
    found = _watch_gradients(adapted)
    steps: list[int] = []
    norms: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedUpdateWarning)  # such batches have no step
        for batch, number in zip(plan.stream, range(1, int(settings["batches"]) + 1), strict=False):
            images, _ = plan.dataset.batch(batch.domain_ids, batch.rows)
            found.clear()
            adapted(to_input(images, device))
            if found:
                steps.append(number)
                norms.append(found[0])
    return {"steps": steps, "norms": norms}


def _watch_gradients(adapted: GradientAdapted) -> list[float]:
    """Return a list to which every gradient that the method computes adds its norm."""
    norms: list[float] = []
    differentiate = adapted.differentiate

    def watched(loss: Tensor) -> bool:
        usable = differentiate(loss)
        if usable:
            slopes = [parameter.grad for parameter in adapted.trained.values() if parameter.grad is not None]
            norms.append(float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))))
        return usable

    vars(adapted)["differentiate"] = watched  # in front of the method of the class
    return norms
