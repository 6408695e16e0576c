"""The gate to optional dependencies: each belongs to an extra of the package, and is imported when first used."""

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
    """Import an optional dependency, or raise an error that names its purpose and the extra that installs it."""
    if not installed(module):
        raise MissingExtraError(f'{purpose} needs the {extra!r} extra: pip install "findtta[{extra}]"')
    return importlib.import_module(module)
