"""Inspecting a model before it is adapted: which layers it has, and what looks wrong."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from findtta.errors import UnsupportedModelError
from findtta.functional import batch_moments, gaussian_kl, instance_moments
from findtta.layers.frozen import is_frozen_batch_norm
from findtta.layers.surgery import NormSite, explain_missing_norms, find_norms, keeps_statistics, other_norms
from findtta.tables import render

# Images normalised once have a standard deviation near 1 per channel; normalising them again divides
# by another factor of 0.2 to 0.27.
TWICE_NORMALISED_STD = 2.5
DRIFTED_KL = 1.0


@dataclass(frozen=True)
class LayerFinding:
    """One normalisation layer, and a note about it; ``channels`` is None if it is not BatchNorm."""

    name: str
    kind: str
    channels: int | None  # of a BatchNorm layer
    adaptable: bool
    note: str


@dataclass(frozen=True)
class Inspection:
    """The result of :func:`inspect`; prints as a table with the warnings below it."""

    model: str
    layers: list[LayerFinding]
    warnings: list[str] = field(default_factory=list)

    @property
    def adaptable(self) -> bool:
        """Whether :func:`findtta.adapt` would accept the model."""
        batch_norms = [layer for layer in self.layers if layer.channels is not None]
        return bool(batch_norms) and all(layer.adaptable for layer in batch_norms)

    def __str__(self) -> str:
        rows = [(f.name, f.kind, f.channels, f.adaptable, f.note) for f in self.layers]
        table = render(("layer", "kind", "channels", "adaptable", "note"), rows)
        count = sum(layer.adaptable for layer in self.layers)
        verdict = f"{self.model}: {count} of {len(self.layers)} normalisation layers can be adapted"
        verdict += "." if self.adaptable else "; findtta.adapt would refuse it."
        return "\n".join([table, "", verdict, *(f"warning: {warning}" for warning in self.warnings)])


def inspect(model: nn.Module, batch: Tensor | None = None) -> Inspection:
    """Inspect a model: its normalisation layers, and what looks wrong with them or with its inputs.

    Args:
        model: The model; it is not changed.
        batch: A batch of inputs as the model gets them. With it, the range of the inputs and the
            drift of the first BatchNorm layer are inspected too.

    Returns:
        The layers, whether each can be adapted, and warnings.

    Example:
        >>> import torch
        >>> inspect(torch.nn.Sequential(torch.nn.BatchNorm2d(3))).adaptable
        True
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    sites = find_norms(model)
    layers = [
        LayerFinding(s.name or "(the model itself)", s.kind, s.channels, s.problem is None, _note(s))
        for s in sites
    ]
    for name, module in other_norms(model):
        statistics = (
            "running statistics, but is not BatchNorm" if keeps_statistics(module) else "no source statistics"
        )
        note = f"keeps {statistics}; left as it is"
        layers.append(LayerFinding(name or "(the model itself)", type(module).__name__, None, False, note))
    warnings = [] if sites else [explain_missing_norms(model)]
    warnings += _statistics_warnings(sites)
    if batch is not None:
        warnings += _input_warnings(model, sites, batch)
    return Inspection(type(model).__name__, layers, warnings)


def _note(site: NormSite) -> str:
    if site.problem:
        return site.problem
    norm = site.module
    notes = []
    if is_frozen_batch_norm(norm):
        notes.append("frozen: constant statistics and affine")
    elif norm.running_mean is None:
        notes.append("no running statistics: the batch's stand in for the source's")
    if isinstance(norm, _BatchNorm):
        if norm.weight is None:
            notes.append("no affine")
        elif not norm.weight.requires_grad:
            notes.append("affine frozen")
        if isinstance(norm, nn.SyncBatchNorm):
            notes.append("local batch only")
        elif type(norm).forward is not _BatchNorm.forward:
            notes.append("does more than normalise; kept")
    return "; ".join(notes)


def _statistics_warnings(sites: list[NormSite]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for site in sites:
        complaint = None if site.problem else _statistics_complaint(site.module)
        if complaint:
            found.setdefault(complaint, []).append(site.name or "(the model itself)")
    for complaint, names in found.items():
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        yield f"{len(names)} of {len(sites)} BatchNorm layers ({some}): {complaint}"


def _statistics_complaint(norm: nn.Module) -> str | None:
    mean, variance = norm.running_mean, norm.running_var
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return "no running statistics, so there are no source statistics to blend with."
    if not (mean.isfinite().all() and variance.isfinite().all()):
        return "running statistics contain NaN or Inf: the checkpoint is damaged."
    if (variance < 0).any():
        return "running variance is negative somewhere: the checkpoint is damaged."
    if (mean == 0).all() and (variance == 1).all():
        return "running statistics have their initial values: was a trained checkpoint loaded?"
    return None


def _input_warnings(model: nn.Module, sites: list[NormSite], batch: Tensor) -> Iterator[str]:
    if not batch.isfinite().all():
        yield "inputs: the batch contains NaN or Inf; such samples are left out of the statistics of all others."
    if len(batch) == 1:
        yield "inputs: a batch of one has no neighbours; groups need several samples."
    _, variance = batch_moments(*instance_moments(batch))
    std = float(variance.sqrt().mean())
    low, high = float(batch.min()), float(batch.max())
    seen = f"range {low:.3g} to {high:.3g}, standard deviation {std:.3g}"
    normaliser = _normalising_submodule(model)
    if normaliser and low < 0:
        yield (
            f"inputs: probably normalised twice: the model normalises by itself ({normaliser}), and the batch "
            f"does not lie in [0, 1] ({seen})."
        )
    elif not normaliser and std > TWICE_NORMALISED_STD and high <= 30:
        yield f"inputs: probably normalised twice ({seen}; once gives a standard deviation near 1)."
    elif high > 30:
        yield f"inputs: probably 0..255 instead of 0..1 ({seen})."
    yield from _first_layer_warnings(model, sites, batch)


def _normalising_submodule(model: nn.Module) -> str | None:
    """Name of a submodule that has a mean and a standard deviation of up to four channels."""
    for name, module in model.named_modules():
        mean, std = getattr(module, "mean", None), getattr(module, "std", None)
        if isinstance(mean, Tensor) and isinstance(std, Tensor) and mean.numel() == std.numel() <= 4:
            return name or type(module).__name__
    return None


def _first_layer_warnings(model: nn.Module, sites: list[NormSite], batch: Tensor) -> Iterator[str]:
    first = next((s for s in sites if s.problem is None and isinstance(s.module.running_mean, Tensor)), None)
    if first is None:
        return
    seen: list[Tensor] = []
    try:
        probe = copy.deepcopy(model).eval()
        probe.get_submodule(first.name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        with torch.no_grad():
            probe(batch)
    except Exception as error:  # whatever the model raises is what the user needs to read
        yield f"the model could not run on the batch: {type(error).__name__}: {error}"
    if seen:
        source = first.module.running_mean, first.module.running_var
        test = batch_moments(*instance_moments(seen[0]))
        divergence = float(gaussian_kl(*test, *source).median())  # type: ignore[arg-type]
        if divergence > DRIFTED_KL:
            yield (
                f"{first.name}: its inputs are far from the source (median divergence {divergence:.3g}): strong "
                "drift, or a normalisation other than the one the model was trained with."
            )
