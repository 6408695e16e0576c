"""What LFD finds in every layer, and what it finds where there is nothing to find."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import findtta
from findtta.algorithms.find import FABN
from findtta.bench.plan import Plan
from findtta.functional import count_groups, nmi, partition, purity
from findtta.images import to_input

#: What groups are counted in: the features, the features with every channel shuffled over the batch on its own
#: (no sample is like another any more), and independent normal numbers (no structure at all).
FEATURES = ("real", "shuffled", "noise")
TRUTHS = ("domain", "class")


def measure_groups(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Count groups in every layer, and measure how far they agree with domains and classes.

    Args:
        plan: Model and stream; FIND with its usual alpha decides what features deeper layers see.
        settings: ``batches``: how many to look at.

    Returns:
        ``layers``: for each its ``name``, and mean and deviation over the batches of ``groups_real``,
        ``groups_shuffled``, ``groups_noise`` and, for domain and class each, ``purity_domain``, ``nmi_domain`` and
        the same of groups of equal sizes with random members, ``purity_domain_chance`` and so on. ``domains`` and
        ``classes``: mean numbers of them in a batch.
    """
    adapted = findtta.adapt(plan.model, "find")
    device = torch.device(plan.spec.device)
    adapted.to(device=device)
    observer = _Observer(plan.spec.seed)
    for name, layer in adapted.layers():
        assert isinstance(layer, FABN)
        layer.partition = functools.partial(observer.partition, name)
    present = defaultdict(list)
    for batch, _ in zip(plan.stream, range(int(settings["batches"])), strict=False):
        images, labels = plan.dataset.batch(batch.domain_ids, batch.rows)
        observer.truths = {
            "domain": torch.from_numpy(batch.domain_ids.copy()),
            "class": torch.from_numpy(labels),
        }
        for name, truth in observer.truths.items():
            present[name].append(float(len(truth.unique())))
        adapted(to_input(images, device))
    return {
        "batches": len(present["domain"]),
        "domains": _mean(present["domain"]),
        "classes": _mean(present["class"]),
        "layers": [
            {"name": name, **{measure: _summary(values) for measure, values in measures.items()}}
            for name, measures in observer.seen.items()
        ],
    }


class _Observer:
    """Stands in for LFD, and takes note of what it sees."""

    def __init__(self, seed: int) -> None:
        self.truths: dict[str, Tensor] = {}
        self.seen: dict[str, dict[str, list[float]]] = {}
        self._random = torch.Generator().manual_seed(seed)

    def partition(self, layer: str, features: Tensor) -> Tensor:
        labels = partition(features)
        seen = self.seen.setdefault(layer, defaultdict(list))
        for name, content in zip(
            FEATURES, (features, self._shuffled(features), self._noise(features)), strict=True
        ):
            found = labels if name == "real" else partition(content)
            seen[f"groups_{name}"].append(float(count_groups(found)))
        chance = labels.cpu()[torch.randperm(len(labels), generator=self._random)]
        for name, truth in self.truths.items():
            # Windows of one image, where a layer sees those as samples, are of its domain and class.
            truth = truth.repeat_interleave(len(labels) // len(truth))
            for measure in (purity, nmi):
                seen[f"{measure.__name__}_{name}"].append(float(measure(labels, truth)))
                seen[f"{measure.__name__}_{name}_chance"].append(float(measure(chance, truth)))
        return labels

    def _shuffled(self, features: Tensor) -> Tensor:
        order = torch.rand(features.shape, generator=self._random).argsort(0)
        return features.gather(0, order.to(features.device))

    def _noise(self, features: Tensor) -> Tensor:
        return torch.randn(features.shape, generator=self._random)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _summary(values: list[float]) -> dict[str, float]:
    mean = _mean(values)
    return {"mean": mean, "std": _mean([(value - mean) ** 2 for value in values]) ** 0.5}
