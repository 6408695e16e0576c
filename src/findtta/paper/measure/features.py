"""Features at BatchNorm layers: one vector per image, the mean over positions of what a layer is given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import findtta
from findtta.bench.plan import Plan
from findtta.errors import InputError, MissingExtraError
from findtta.images import to_input

_PERPLEXITY = 30.0


@contextlib.contextmanager
def watched(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Take note of the features that layers are given, while the block lasts.

    Args:
        layers: The layers by name.

    Yields:
        For each layer the features of the last batch, ``(B, C)``.
    """
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name] = instance_means(inputs[0].detach())

        return hook

    handles = [layer.register_forward_pre_hook(note(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def instance_means(features: Tensor) -> Tensor:
    """Return the mean over all positions of each sample and channel, ``(B, C)``."""
    return features.float().flatten(2).mean(2) if features.ndim > 2 else features.float()


def distances(means: Tensor) -> tuple[float, float]:
    """Return how far the means of single images are from that of the batch: Euclidean, and one minus the cosine.

    Args:
        means: One mean vector per image, ``(B, C)``.

    Returns:
        Both, averaged over the images.

    >>> euclidean, cosine = distances(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> round(euclidean, 4), round(cosine, 4)
    (2.5, 0.3)
    """
    batch = means.mean(0, keepdim=True)
    euclidean = float(torch.linalg.vector_norm(means - batch, dim=1).mean())
    cosine = float((1 - nn.functional.cosine_similarity(means, batch, dim=1)).mean())
    return euclidean, cosine


def measure_distances(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Measure in every domain how far instance statistics are from batch statistics, and how accurate TBN is.

    Args:
        plan: Model and stream, of batches of one domain each.
        settings: ``part``: which part of the layers counts, such as 1/3 for the last third.

    Returns:
        ``layers``: their names; ``domains``: for each its ``samples``, ``accuracy`` in per cent, and the means
        over layers and batches ``l2`` and ``cosine``.
    """
    device = torch.device(plan.spec.device)
    adapted = findtta.adapt(plan.model, "tbn")
    adapted.to(device=device)
    everything = list(adapted.layers())
    chosen = dict(everything[-max(1, round(len(everything) * float(settings["part"]))) :])
    found: dict[str, list[tuple[int, int, float, float]]] = {}
    with watched(chosen) as seen:
        for batch in plan.stream:
            images, labels = plan.dataset.batch(batch.domain_ids, batch.rows)
            if len(images) < 2 or (batch.domain_ids != batch.domain_ids[0]).any():
                continue  # no distance within a batch of one; none of one domain in a mixed batch
            logits = adapted(to_input(images, device))
            right = int((logits.argmax(1).cpu() == torch.from_numpy(labels)).sum())
            pairs = [distances(means) for means in seen.values()]
            l2, cosine = (sum(pair[index] for pair in pairs) / len(pairs) for index in range(2))
            domain = plan.dataset.domains[int(batch.domain_ids[0])]
            found.setdefault(domain, []).append((len(images), right, l2, cosine))
    return {"layers": list(chosen), "domains": {domain: _summary(rows) for domain, rows in found.items()}}


def measure_map(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Map the features of some images at a layer of the source model to two dimensions by t-SNE.

    Args:
        plan: Model and stream.
        settings: ``samples``: how many images; ``depth``: where the layer is, 0 (first) to 1 (last).

    Returns:
        ``layer``, ``index`` and number of ``layers``; for each image ``x``, ``y``, ``domain`` and ``class``; and
        ``agreement``: for domain and class each, how many per cent of images have their nearest neighbour among
        the features (not on the map) in the same one, and how many would by ``chance``. Copies of the same image
        in other domains do not count.
    """
    device = torch.device(plan.spec.device)
    # A copy on the device: the plan's model must not change.
    model = findtta.adapt(plan.model, "source")
    model.to(device=device)
    norms = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    if not norms:
        raise InputError("model: it has no BatchNorm layer, so there are no features to map.")
    index = round(float(settings["depth"]) * (len(norms) - 1))
    name, layer = norms[index]
    features: list[Tensor] = []
    domains: list[int] = []
    classes: list[int] = []
    rows: list[int] = []
    with watched({name: layer}) as seen:
        for batch in plan.stream:
            images, labels = plan.dataset.batch(batch.domain_ids, batch.rows)
            model(to_input(images, device))
            features.append(seen[name].cpu())
            domains += batch.domain_ids.tolist()
            classes += labels.tolist()
            rows += batch.rows.tolist()
            if len(domains) >= int(settings["samples"]):
                break
    count = min(len(domains), int(settings["samples"]))
    vectors = torch.cat(features)[:count]
    truths = {
        "domain": [plan.dataset.domains[number] for number in domains[:count]],
        "class": [plan.dataset.classes[number] for number in classes[:count]],
    }
    x, y = _tsne(vectors.numpy(), plan.spec.seed)
    return {
        "layer": name.removeprefix("model."),
        "index": index,
        "layers": len(norms),
        "x": x,
        "y": y,
        **truths,
        "agreement": {kind: _agreement(vectors, truth, rows[:count]) for kind, truth in truths.items()},
    }


def _summary(rows: Sequence[tuple[int, int, float, float]]) -> dict[str, float]:
    samples = sum(size for size, _, _, _ in rows)
    return {
        "samples": samples,
        "accuracy": 100.0 * sum(right for _, right, _, _ in rows) / samples,
        "l2": sum(size * l2 for size, _, l2, _ in rows) / samples,
        "cosine": sum(size * cosine for size, _, _, cosine in rows) / samples,
    }


def _tsne(vectors: Any, seed: int) -> tuple[list[float], list[float]]:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingExtraError("t-SNE needs the 'cluster' extra: pip install \"findtta[cluster]\"") from error
    if len(vectors) < 4:
        raise InputError(f"images: the stream has {len(vectors)}, too few for a map; take more.")
    # Channels count alike, whatever their scale.
    scaled = (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), 1e-6)
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(scaled)
    return [round(float(value), 3) for value in places[:, 0]], [round(float(value), 3) for value in places[:, 1]]


def _agreement(vectors: Tensor, truth: Sequence[str], rows: Sequence[int]) -> dict[str, float]:
    """Compare each sample with its nearest neighbour that is not the same image, corrupted or not."""
    scaled = (vectors - vectors.mean(0)) / vectors.std(0).clamp(min=1e-6)
    images, kinds = torch.tensor(rows), torch.tensor([sorted(set(truth)).index(kind) for kind in truth])
    counts = images[:, None] != images
    alike = kinds[:, None] == kinds
    nearest = torch.cdist(scaled, scaled).masked_fill(~counts, torch.inf).argmin(1)
    same = alike.gather(1, nearest[:, None])
    return {"same": 100 * float(same.float().mean()), "chance": 100 * float(alike[counts].float().mean())}
