"""What cannot be exported, and why."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from findtta.algorithms.base import Adapted
from findtta.errors import FindTTAError, MissingExtraError


class ExportError(FindTTAError, RuntimeError):
    """A model cannot be exported, or the file does not do what the model does."""


def require_exportable(adapted: nn.Module) -> Adapted:
    """Return the adapted model, or raise an error that says why no fixed graph can stand in for it."""
    adapted = getattr(adapted, "_orig_mod", adapted)
    if not isinstance(adapted, Adapted):
        raise ExportError(
            f"adapted must be what findtta.adapt returned, got a {type(adapted).__name__}. To export the "
            "plain model, adapt it with method 'source'."
        )
    problem = adapted.export_problem()
    if problem is not None:
        raise ExportError(f"adapted cannot be exported: {problem}")
    if adapted.warm_up_left:
        total = adapted.warm_up_batches(adapted.options)
        raise ExportError(
            f"adapted cannot be exported yet: {adapted.name} warms up on its first {total} batches "
            f"({adapted.warm_up_option}={total}), and {adapted.warm_up_left} of them are left. Run it on batches "
            "like those it is meant for first (on the command line: --data NAME)."
        )
    return adapted


def import_extra(module: str) -> Any:
    """Import a module that the ``export`` extra brings."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise MissingExtraError(
            f'{name} is needed for ONNX files, but is not installed: pip install "findtta[export]"'
        ) from error


def first_line(error: BaseException) -> str:
    """Return what an error says, without the pages that torch appends."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
