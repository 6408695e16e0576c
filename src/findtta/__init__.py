"""Test-time adaptation of any PyTorch model with BatchNorm: FIND, and the methods it is measured against."""

from findtta import functional
from findtta.algorithms.base import Adapted, Cost, LayerReport, Options, Report, option
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
from findtta.registry import MethodInfo, methods

__version__ = "0.1.0"

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
