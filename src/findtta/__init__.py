"""Test-time adaptation of any PyTorch model with BatchNorm: FIND, and the methods it is measured against."""

import importlib
from types import ModuleType

from findtta import functional
from findtta.algorithms.base import Adapted, Cost, LayerReport, Report
from findtta.api import adapt, unwrap
from findtta.collapse import Collapse
from findtta.doctor import Inspection, inspect
from findtta.errors import (
    FindTTAError,
    InputError,
    MissingExtraError,
    OptionError,
    SkippedUpdateWarning,
    UnknownNameError,
    UnsupportedModelError,
)
from findtta.layers import AdaptiveNorm
from findtta.options import Options, option
from findtta.registry import MethodInfo, methods

__version__ = "0.1.0"

_PACKAGES = (
    "bench",
    "data",
    "export",
    "inference",
    "loadtest",
    "models",
    "paper",
    "partitioners",
    "predict",
    "report",
    "serving",
    "streams",
    "training",
)


def __getattr__(name: str) -> ModuleType:
    # The packages around the core are imported when first used, so that serving a model stays light.
    if name in _PACKAGES:
        return importlib.import_module(f"findtta.{name}")
    raise AttributeError(f"module 'findtta' has no attribute {name!r}")


__all__ = [
    "Adapted",
    "AdaptiveNorm",
    "Collapse",
    "Cost",
    "FindTTAError",
    "InputError",
    "Inspection",
    "LayerReport",
    "MethodInfo",
    "MissingExtraError",
    "OptionError",
    "Options",
    "Report",
    "SkippedUpdateWarning",
    "UnknownNameError",
    "UnsupportedModelError",
    "adapt",
    "functional",
    "inspect",
    "methods",
    "option",
    "unwrap",
]
