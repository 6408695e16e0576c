"""How methods, partitioners and streams declare their options, and check what they are given."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from findtta.errors import OptionError


def option(default: Any, meaning: str) -> Any:
    """Declare an option: its default, and what it means."""
    return dataclasses.field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Options:
    """Options of what has none; whoever has some inherits from it."""

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """Return the values of each preset by its name; most methods have no presets."""
        return {}

    def require_fraction(self, name: str) -> None:
        """Raise unless option ``name`` is a number from 0 to 1."""
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise OptionError(f"option {name!r} must be a number from 0 to 1, got {value!r}.")

    def require_number(self, name: str) -> None:
        """Raise unless option ``name`` is a number."""
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise OptionError(f"option {name!r} must be a number, got {value!r}.")

    def require_positive_int(self, name: str) -> None:
        """Raise unless option ``name`` is a whole number of at least 1."""
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"option {name!r} must be a whole number of at least 1, got {value!r}.")

    def require_at_least_zero(self, name: str) -> None:
        """Raise unless option ``name`` is a number of at least 0, and finite."""
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise OptionError(f"option {name!r} must be a number of at least 0, got {value!r}.")

    def require_flag(self, name: str) -> None:
        """Raise unless option ``name`` is True or False."""
        value = getattr(self, name)
        if not isinstance(value, bool):
            raise OptionError(f"option {name!r} must be True or False, got {value!r}.")

    def require_seed(self, name: str) -> None:
        """Raise unless option ``name`` is a whole number that a random generator takes as its seed."""
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise OptionError(f"option {name!r} must be a whole number from 0 to 2**63 - 1, got {value!r}.")

    def require_choice(self, name: str, *choices: str) -> None:
        """Raise unless option ``name`` is one of ``choices``."""
        value = getattr(self, name)
        if value not in choices:
            expected = " or ".join(repr(choice) for choice in choices)
            raise OptionError(f"option {name!r} must be {expected}, got {value!r}.")
