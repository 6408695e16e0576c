"""What an adapted model did with each sample of a batch: its group and its drift, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from findtta.algorithms.base import Adapted
from findtta.functional import gaussian_kl, instance_moments
from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import find_norms


class Watch:
    """Notes groups and drift while an adapted model runs.

    The drift of a sample in a layer is the KL divergence of its own statistics from the source's, averaged
    over the channels: 0 where it looks like the training data. Layers that keep no source statistics have none.

    Args:
        adapted: The model to watch; watching does not change what it computes. Close the watch to end it.

    Attributes:
        layers: The names of the layers, in module order.
    """

    def __init__(self, adapted: Adapted) -> None:
        self._adaptive = dict(adapted.layers())
        self._removers: list[Callable[[], None]] = []
        self._drift: dict[str, Tensor] = {}
        watched: list[tuple[str, nn.Module]] = (
            list(self._adaptive.items())
            if self._adaptive
            else [(site.name, site.module) for site in find_norms(adapted.model)]
        )
        self.layers = tuple(name for name, _ in watched)
        for name, layer in watched:
            self._attach(name, layer)

    def _attach(self, name: str, layer: nn.Module) -> None:
        norm: Any = layer.norm if isinstance(layer, AdaptiveNorm) else layer
        if norm.running_mean is None:
            return

        def note(mean: Tensor, variance: Tensor) -> None:
            divergence = gaussian_kl(mean, variance, norm.running_mean, norm.running_var, eps=norm.eps)
            self._drift[name] = divergence.mean(1)

        if isinstance(layer, AdaptiveNorm):
            layer.observers.append(note)
            self._removers.append(lambda: layer.observers.remove(note))
        else:
            handle = layer.register_forward_pre_hook(lambda _, inputs: note(*instance_moments(inputs[0])))
            self._removers.append(handle.remove)

    def clear(self) -> None:
        """Forget the last batch; call it before the next."""
        self._drift.clear()
        for layer in self._adaptive.values():
            if isinstance(last := getattr(layer, "last_batch", None), dict):
                last.clear()

    def drift(self, samples: int) -> Tensor:
        """Return the drift of each sample in each layer, ``(samples, layers)``; NaN where there is none."""
        return self._gather(samples, self._drift, torch.nan)

    def groups(self, samples: int) -> Tensor:
        """Return the group label of each sample in each layer, ``(samples, layers)``; -1 where there is none.

        Samples of one group share a label, which is the index of one of them.
        """
        labels = {
            name: layer.last_batch["labels"].double()
            for name, layer in self._adaptive.items()
            if "labels" in getattr(layer, "last_batch", {})
        }
        # A layer that sees several windows per image groups windows: no label of an image follows.
        per_image = {name: values for name, values in labels.items() if len(values) == samples}
        return self._gather(samples, per_image, -1).long()

    def _gather(self, samples: int, by_layer: dict[str, Tensor], missing: float) -> Tensor:
        columns = []
        for name in self.layers:
            values = by_layer.get(name)
            if values is None or len(values) % samples:
                columns.append(torch.full((samples,), missing, dtype=torch.float64))
            else:
                # Several windows of one image follow one another.
                columns.append(values.double().view(samples, -1).mean(1).cpu())
        return torch.stack(columns, 1) if columns else torch.empty(samples, 0, dtype=torch.float64)

    def close(self) -> None:
        """Stop watching."""
        for remove in self._removers:
            remove()
        self._removers.clear()
