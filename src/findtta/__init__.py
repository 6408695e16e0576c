"""Test-time adaptation of any PyTorch model with BatchNorm: FIND, and the methods it is measured against."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

# Imported when first used, so that a command line that only prints its help does not import torch.
_HOME = {
    "Adapted": "findtta.algorithms.base",
    "AdaptiveNorm": "findtta.layers.adaptive",
    "FindTTAError": "findtta.errors",
    "Options": "findtta.options",
    "adapt": "findtta.api",
    "inspect": "findtta.inspection",
    "methods": "findtta.registry",
    "option": "findtta.options",
    "unwrap": "findtta.api",
}
_MODULES = frozenset(
    {
        "bench",
        "data",
        "demo",
        "errors",
        "export",
        "functional",
        "images",
        "models",
        "options",
        "paper",
        "partitioners",
        "predict",
        "predictor",
        "report",
        "serve",
        "streams",
        "train",
    }
)

if TYPE_CHECKING:
    from findtta import functional
    from findtta.algorithms.base import Adapted
    from findtta.api import adapt, unwrap
    from findtta.errors import FindTTAError
    from findtta.inspection import inspect
    from findtta.layers.adaptive import AdaptiveNorm
    from findtta.options import Options, option
    from findtta.registry import methods


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"findtta.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'findtta' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})


__all__ = [
    "Adapted",
    "AdaptiveNorm",
    "FindTTAError",
    "Options",
    "adapt",
    "functional",
    "inspect",
    "methods",
    "option",
    "unwrap",
]
