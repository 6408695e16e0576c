"""Test-time adaptation of any PyTorch model with BatchNorm: FIND, and the methods it is measured against."""

import importlib.util
import pkgutil
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

# Imported when first used, so that a command line that only prints its help does not import torch.
_HOME = {
    "Adapted": "findtta.algorithms.base",
    "AdaptiveNorm": "findtta.layers.adaptive",
    "Cost": "findtta.algorithms.base",
    "FindTTAError": "findtta.errors",
    "GradientAdapted": "findtta.algorithms.learning",
    "GradientOptions": "findtta.algorithms.presets",
    "Options": "findtta.options",
    "adapt": "findtta.api",
    "inspect": "findtta.inspection",
    "methods": "findtta.registry",
    "option": "findtta.options",
    "recommend": "findtta.recommendation",
    "unwrap": "findtta.api",
}

if TYPE_CHECKING:
    from findtta import functional
    from findtta.algorithms.base import Adapted, Cost
    from findtta.algorithms.learning import GradientAdapted
    from findtta.algorithms.presets import GradientOptions
    from findtta.api import adapt, unwrap
    from findtta.errors import FindTTAError
    from findtta.inspection import inspect
    from findtta.layers.adaptive import AdaptiveNorm
    from findtta.options import Options, option
    from findtta.recommendation import recommend
    from findtta.registry import methods


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if importlib.util.find_spec(f"findtta.{name}"):
        return importlib.import_module(f"findtta.{name}")
    raise AttributeError(f"module 'findtta' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *(module.name for module in pkgutil.iter_modules(__path__))})


__all__ = [
    "Adapted",
    "AdaptiveNorm",
    "Cost",
    "FindTTAError",
    "GradientAdapted",
    "GradientOptions",
    "Options",
    "adapt",
    "functional",
    "inspect",
    "methods",
    "option",
    "recommend",
    "unwrap",
]
