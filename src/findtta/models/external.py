"""Model zoos of other packages."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from findtta.errors import MissingExtraError

_declared: list[torch.library.Library] = []  # a library's declarations last as long as it does


def import_timm() -> Any:
    """Import timm, also beside a CPU build of torch.

    The torchvision of the package index is built for CUDA. Beside a CPU torch its compiled operators
    cannot be loaded, and its import fails because two of their names are unknown; declaring the
    names lets the rest of it work. Where the operators load, nothing is done.
    """
    if importlib.util.find_spec("timm") is None:
        raise MissingExtraError("timm models need the 'timm' extra: pip install \"findtta[timm]\"")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    import timm

    return timm
