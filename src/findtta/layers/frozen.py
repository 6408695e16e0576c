"""BatchNorm with constant statistics, as detection models use it.

Every library has a class of its own for it, under other names, with or without an activation behind it. So it is
recognised by the tensors it holds, and believed only after it was seen to normalise with them.
"""

import copy

import torch
from torch import Tensor, nn

PARTS = ("weight", "bias", "running_mean", "running_var")
PROBE_SHAPES = ((3, 3), (3,), (), (3, 3, 3))  # positions behind batch and channels
USUAL_EPS = (1e-5, 1e-3, 1e-6, 1e-4, 1e-8, 0.0)  # tried where the layer has no attribute for it
TOLERANCE = 1e-5


def is_frozen_batch_norm(module: nn.Module) -> bool:
    """Tell whether a module holds what a BatchNorm layer holds, without being one of torch's."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return False
    tensors = [module._buffers.get(part, module._parameters.get(part)) for part in PARTS]
    return all(isinstance(tensor, Tensor) and tensor.ndim == 1 for tensor in tensors) and (
        len({len(tensor) for tensor in tensors if tensor is not None}) == 1
    )


def eps_of(norm: nn.Module) -> float:
    """Return what a BatchNorm layer, frozen or not, adds to its variance."""
    eps = frozen_eps(norm) if is_frozen_batch_norm(norm) else norm.eps
    return float(eps or 0.0)  # type: ignore[arg-type]


@torch.no_grad()
def frozen_eps(norm: nn.Module) -> float | None:
    """Find what a frozen BatchNorm layer adds to its variance.

    Returns:
        The value, or None if the layer does not normalise its input with its statistics before all else.
    """
    layer = copy.deepcopy(norm).to("cpu", torch.float64).eval()
    generator = torch.Generator().manual_seed(0)
    for part in PARTS:  # its own values may hide what it does: weights of zero, initial statistics
        getattr(layer, part).uniform_(0.25, 1.0, generator=generator)
    standard = copy.deepcopy(layer)
    standard.running_mean.zero_()  # type: ignore[operator]
    standard.running_var.fill_(1.0)  # type: ignore[operator]
    candidates = (float(layer.eps),) if hasattr(layer, "eps") else USUAL_EPS  # type: ignore[arg-type]
    for shape in PROBE_SHAPES:
        channels = len(layer.running_mean)  # type: ignore[arg-type]
        inputs = torch.randn(4, channels, *shape, generator=generator, dtype=torch.float64)
        try:
            outputs = layer(inputs)
            errors = {eps: _error(standard, layer, inputs, outputs, eps) for eps in candidates}
        except Exception:  # not made for inputs of this shape
            continue
        best = min(errors, key=errors.__getitem__)
        return best if errors[best] < TOLERANCE else None
    return None


def _error(standard: nn.Module, layer: nn.Module, inputs: Tensor, outputs: Tensor, eps: float) -> float:
    """Difference between the layer and the one with standard statistics on inputs that differ as these do."""
    per_channel = (-1,) + (1,) * (inputs.ndim - 2)
    mean, variance = (getattr(layer, part).view(per_channel) for part in ("running_mean", "running_var"))
    equivalent = (inputs - mean) * ((1 + eps) / (variance + eps)).sqrt()
    difference = (standard(equivalent) - outputs).abs().max() / outputs.abs().max().clamp_min(1e-12)
    return float(difference.nan_to_num(nan=torch.inf))
