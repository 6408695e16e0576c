"""Which dtype statistics are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32, or as it is if it is float64 already.

    Half and bfloat16 hold too few digits for a variance, so statistics are never computed in them.
    """
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def as_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert only if needed: in a layer with twenty small operations, a call that does nothing counts."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)
