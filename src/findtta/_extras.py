"""The gate to optional dependencies: each belongs to an extra of the package, and is imported when first used."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from findtta.errors import MissingExtraError


def installed(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is part of is not there
        return False


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional dependency.

    Args:
        module: The module to import.
        extra: The extra of findtta that installs it.
        purpose: What needs it, for the message, such as ``"writing Parquet files"``.

    Returns:
        The module.

    Raises:
        MissingExtraError: If it is not installed; the message says how to install it.
    """
    if not installed(module):
        raise MissingExtraError(f'{purpose} needs the {extra!r} extra: pip install "findtta[{extra}]"')
    return importlib.import_module(module)
