"""Measurements that no run gives: time, memory, groups, gradients, features, and what drawings are made of.

Each is a function of a planned run and its settings that returns plain values; ``MEASUREMENTS`` has them by name.
"""

import base64
import contextlib
import functools
import io
import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import findtta
from findtta._extras import require
from findtta.algorithms.base import Adapted
from findtta.algorithms.find import FABN
from findtta.algorithms.learning import GradientAdapted
from findtta.bench import Plan
from findtta.bench.evaluate import interleaved_seconds
from findtta.bench.executors import Processes, Task
from findtta.data.contact_sheet import contact_sheet
from findtta.errors import FindTTAError, InputError, OptionError, SkippedUpdateWarning
from findtta.functional import count_groups, nmi, partition, purity
from findtta.streams.plot import views

Settings = Mapping[str, Any]
Values = dict[str, Any]

#: Where groups are counted: in the features, in the features with every channel shuffled over the batch on its own
#: (no two samples are similar any more), and in independent normal numbers (no structure at all).
FEATURES = ("real", "shuffled", "noise")
TRUTHS = ("domain", "class")
_PERPLEXITY = 30.0


def measure_times(plan: Plan, settings: Settings) -> Values:
    """Measure how long ``candidates`` take for a batch of the plan's stream; ``batches`` of them are timed.

    For each name the candidates have a ``method`` with ``options``; one of them is called ``"source"``. Each gives
    its ``ratio`` (to the source's time, the median over batches), ``seconds`` (the median) and its ``forward`` and
    ``backward`` passes, or an ``error``.
    """
    inputs = [inputs for inputs, _, _ in plan.batches(settings["batches"])]
    batches = [one for one in inputs if len(one) == plan.spec.batch_size]
    if len(batches) < 2:
        raise InputError(
            f"images must be enough for 2 full batches to be timed, got {len(batches)}: take more images."
        )
    models: dict[str, Adapted] = {}
    found: dict[str, Values] = {}
    for name, candidate in settings["candidates"].items():
        try:
            models[name] = model = _adapted(plan, candidate["method"], **candidate["options"])
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for number in range(getattr(model.options, "cold_start", 0)):  # as it is for most of a stream
                model(batches[number % len(batches)])
        except FindTTAError as error:
            models.pop(name, None)
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    seconds = interleaved_seconds(models, batches)
    for name, model in models.items():
        ratios = [own / source for own, source in zip(seconds[name], seconds["source"], strict=True)]
        found[name] = {
            "ratio": statistics.median(ratios),
            "seconds": statistics.median(seconds[name]),
            "forward": model.cost.forward,
            "backward": model.cost.backward,
        }
    return {"batches": len(batches), "batch_size": plan.spec.batch_size, "candidates": found}


def measure_memory(plan: Plan, settings: Settings) -> Values:
    """Run the plan in a process of its own, and return its peak memory as ``megabytes``.

    On a GPU it is what torch allocated there; on a CPU the resident memory of the whole process, Python and torch
    included. A few batches are enough.
    """
    (result,) = Processes(workers=1, threads=1).execute([Task.of(plan)])
    if result.status == "failed":
        raise RuntimeError(result.error_text)
    return {"megabytes": result.cost["peak_memory_mb"]}


def measure_groups(plan: Plan, settings: Settings) -> Values:
    """Count groups in every layer in ``batches`` batches, and measure how far they agree with domains and classes.

    FIND with its default alpha decides what features deeper layers see. For each of the ``layers`` there are mean
    and standard deviation over the batches of ``groups_real``, ``groups_shuffled``, ``groups_noise`` and, for
    domain and class each, ``purity_domain``, ``nmi_domain`` and the same of groups of equal sizes with random
    members, ``purity_domain_chance`` and so on. ``domains`` and ``classes`` are mean numbers of them in a batch.
    """
    adapted = _adapted(plan, "find")
    random = torch.Generator().manual_seed(plan.spec.seed)
    truths: dict[str, Tensor] = {}
    seen: dict[str, dict[str, list[float]]] = {}

    def observe(layer: str, features: Tensor) -> Tensor:
        """Partition as LFD does, and record what is seen."""
        labels = partition(features)
        numbers = seen.setdefault(layer, defaultdict(list))
        order = torch.rand(features.shape, generator=random).argsort(0)
        shuffled = features.gather(0, order.to(features.device))
        noise = torch.randn(features.shape, generator=random)
        for name, found in zip(FEATURES, (labels, partition(shuffled), partition(noise)), strict=True):
            numbers[f"groups_{name}"].append(float(count_groups(found)))
        chance = labels.cpu()[torch.randperm(len(labels), generator=random)]
        for name, truth in truths.items():
            # Windows of one image, where a layer sees those as samples, are of its domain and class.
            truth = truth.repeat_interleave(len(labels) // len(truth))
            for measure in (purity, nmi):
                numbers[f"{measure.__name__}_{name}"].append(float(measure(labels, truth)))
                numbers[f"{measure.__name__}_{name}_chance"].append(float(measure(chance, truth)))
        return labels

    for name, layer in adapted.layers():
        assert isinstance(layer, FABN)
        layer.partition = functools.partial(observe, name)
    present = defaultdict(list)
    for inputs, labels, batch in plan.batches(settings["batches"]):
        truths |= zip(TRUTHS, (torch.from_numpy(batch.domain_ids.copy()), torch.from_numpy(labels)), strict=True)
        for name, truth in truths.items():
            present[name].append(float(len(truth.unique())))
        adapted(inputs)
    layers = []
    for name, measures in seen.items():
        of_layer = {
            measure: {"mean": statistics.fmean(values), "std": statistics.pstdev(values)}
            for measure, values in measures.items()
        }
        layers.append({"name": name, **of_layer})
    return {
        "batches": len(present["domain"]),
        "domains": statistics.fmean(present["domain"]),
        "classes": statistics.fmean(present["class"]),
        "layers": layers,
    }


def measure_gradients(plan: Plan, settings: Settings) -> Values:
    """Measure the norm of the gradient of all trained parameters at every batch, at most ``batches`` of them.

    The plan has a method that learns; of one that takes two gradients per batch (SAR) it is the first.
    ``steps`` are the batches from which the method learned, counted from 1, ``norms`` the gradient at each.
    """
    adapted = _adapted(plan, plan.spec.method, **plan.options)
    if not isinstance(adapted, GradientAdapted):
        raise OptionError(f"method must be one that learns, such as sar, got {plan.spec.method!r}.")
    norms: list[float] = []
    differentiate = adapted.differentiate

    def watched(loss: Tensor) -> bool:
        usable = differentiate(loss)
        if usable:
            slopes = [parameter.grad for parameter in adapted.trained.values() if parameter.grad is not None]
            norms.append(float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))))
        return usable

    vars(adapted)["differentiate"] = watched  # in front of the method of the class
    found: dict[int, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedUpdateWarning)  # such batches have no step
        for inputs, _, batch in plan.batches(settings["batches"]):
            norms.clear()
            adapted(inputs)
            if norms:
                found[batch.index + 1] = norms[0]
    return {"steps": list(found), "norms": list(found.values())}


def measure_distances(plan: Plan, settings: Settings) -> Values:
    """Measure in every domain how far instance statistics are from batch statistics, and how accurate TBN is.

    Of the layers the last ``part`` counts, such as 1/3; batches of several domains are left out. ``domains`` has
    for each its ``samples``, ``accuracy`` in percent, and the means over layers and batches ``l2`` and ``cosine``.
    """
    adapted = _adapted(plan, "tbn")
    layers = list(adapted.layers())
    chosen = dict(layers[-max(1, round(len(layers) * float(settings["part"]))) :])
    found: dict[str, list[tuple[int, float, float, float]]] = {}
    with watched_features(chosen) as seen:
        for inputs, labels, batch in plan.batches():
            if len(labels) < 2 or (batch.domain_ids != batch.domain_ids[0]).any():
                continue  # a batch of one has no distances, a mixed batch none of one domain
            correct = (adapted(inputs).argmax(1).cpu() == torch.from_numpy(labels)).float().mean()
            l2, cosine = np.mean([distances(means) for means in seen.values()], axis=0)
            row = (len(labels), 100.0 * float(correct), float(l2), float(cosine))
            found.setdefault(plan.dataset.domains[int(batch.domain_ids[0])], []).append(row)
    domains = {}
    for domain, rows in found.items():
        sizes, *columns = zip(*rows, strict=True)
        means = [float(np.average(column, weights=sizes)) for column in columns]
        domains[domain] = {"samples": sum(sizes), **dict(zip(("accuracy", "l2", "cosine"), means, strict=True))}
    return {"layers": list(chosen), "domains": domains}


def measure_map(plan: Plan, settings: Settings) -> Values:
    """Map the features of ``samples`` images at a layer of the source model to two dimensions by t-SNE.

    ``depth`` says which layer, from 0 (the first) to 1 (the last). Each image has its ``x``, ``y``, ``domain`` and
    ``class``; ``agreement`` says for domain and class how often the nearest neighbour among the features (not on
    the map) has the ``same``, and how often it would by ``chance``, in percent.
    """
    manifold = require("sklearn.manifold", "cluster", "t-SNE")
    model = _adapted(plan, "source")
    norms = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    if not norms:
        raise InputError("model must have a BatchNorm layer for its features to be mapped, got none.")
    index = round(float(settings["depth"]) * (len(norms) - 1))
    name, layer = norms[index]
    limit = int(settings["samples"])
    features: list[Tensor] = []
    found: list[tuple[int, int, int]] = []
    with watched_features({name: layer}) as seen:
        for inputs, labels, batch in plan.batches():
            model(inputs)
            features.append(seen[name].cpu())
            found += zip(batch.domain_ids.tolist(), labels.tolist(), batch.rows.tolist(), strict=True)
            if len(found) >= limit:
                break
    if len(found) < 4:
        raise InputError(f"images must be at least 4 for a map, got a stream of {len(found)}.")
    domains, classes, rows = map(list, zip(*found[:limit], strict=True))
    truths = {
        "domain": [plan.dataset.domains[number] for number in domains],
        "class": [plan.dataset.classes[number] for number in classes],
    }
    vectors = torch.cat(features)[:limit].numpy()
    scaled = (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), 1e-6)  # channels count equally
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    places = manifold.TSNE(perplexity=perplexity, init="pca", random_state=plan.spec.seed).fit_transform(scaled)
    return {
        "layer": name.removeprefix("model."),
        "index": index,
        "layers": len(norms),
        **{axis: [round(float(value), 3) for value in places[:, place]] for place, axis in enumerate("xy")},
        **truths,
        "agreement": {
            kind: neighbour_agreement(torch.from_numpy(scaled), truth, rows) for kind, truth in truths.items()
        },
    }


def measure_sheet(plan: Plan, settings: Settings) -> Values:
    """Draw the same few images (``images`` says how many) in every domain of the plan's data, as PNG in base64."""
    domains = plan.dataset.domains
    buffer = io.BytesIO()
    sheet = contact_sheet(plan.dataset, domains, images=int(settings["images"]), seed=plan.spec.seed)
    sheet.save(buffer, format="PNG")
    return {"domains": list(domains), "png": base64.b64encode(buffer.getvalue()).decode("ascii")}


def measure_shares(plan: Plan, settings: Settings) -> Values:
    """Return which share of the batches of a stream each domain has, in ``columns`` places along the stream.

    The ``edges`` are the batches at which places begin, and the one after the last; ``shares`` has for each place
    that of every domain.
    """
    columns = int(settings["columns"])
    view = views(plan.stream, columns, columns // 2)[0]
    return {
        "title": view.title,
        "domains": list(plan.stream.domains),
        "edges": view.edges.tolist(),
        "shares": [[round(float(share), 4) for share in place] for place in view.shares],
    }


MEASUREMENTS: Mapping[str, Callable[[Plan, Settings], Values]] = {
    measure.__name__.removeprefix("measure_"): measure
    for measure in (
        measure_times, measure_memory, measure_groups, measure_gradients, measure_distances, measure_map,
        measure_sheet, measure_shares,
    )
}  # fmt: skip


@contextlib.contextmanager
def watched_features(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Record what layers are given while the block lasts: of the last batch the means over positions, (B, C)."""
    seen: dict[str, Tensor] = {}

    def record(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features = inputs[0].detach().float()
        seen[name] = features.flatten(2).mean(2) if features.ndim > 2 else features

    with contextlib.ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(functools.partial(record, name)))
        yield seen


def distances(means: Tensor) -> tuple[float, float]:
    """Return how far the means of single images, ``(B, C)``, are from that of the batch: Euclidean, and by cosine.

    >>> euclidean, cosine = distances(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> round(euclidean, 4), round(cosine, 4)
    (2.5, 0.3)
    """
    batch = means.mean(0, keepdim=True)
    euclidean = float(torch.linalg.vector_norm(means - batch, dim=1).mean())
    cosine = float((1 - nn.functional.cosine_similarity(means, batch, dim=1)).mean())
    return euclidean, cosine


def neighbour_agreement(vectors: Tensor, truth: Sequence[str], rows: Sequence[int]) -> dict[str, float]:
    """Compare each sample with its nearest neighbour that is not the same image, corrupted or not, in percent."""
    images, kinds = torch.tensor(rows), torch.tensor([sorted(set(truth)).index(kind) for kind in truth])
    counts = images[:, None] != images
    same_kind = kinds[:, None] == kinds
    nearest = torch.cdist(vectors, vectors).masked_fill(~counts, torch.inf).argmin(1)
    same = same_kind.gather(1, nearest[:, None])
    return {"same": 100 * float(same.float().mean()), "chance": 100 * float(same_kind[counts].float().mean())}


def _adapted(plan: Plan, method: str, **options: Any) -> Adapted:
    adapted = findtta.adapt(plan.model, method, **options)
    adapted.to(device=torch.device(plan.spec.device))
    return adapted
