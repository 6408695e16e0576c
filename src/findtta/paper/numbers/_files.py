"""The data files of this package."""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Iterable
from typing import Any

from findtta.errors import UnknownNameError, close_matches


def read(name: str) -> dict[str, Any]:
    """Return the content of the data file ``name``, given without its ending."""
    text = importlib.resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is not among those known."""
    known = list(known)
    return UnknownNameError(f"{kind} must be one of {', '.join(known)}, got {name!r}.{close_matches(name, known)}")
