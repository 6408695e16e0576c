"""Lists on the command line, with spaces or commas between their items."""

from __future__ import annotations

from collections.abc import Sequence


def names(values: Sequence[str] | None) -> list[str] | None:
    """Return the names in ``["fog,snow", "contrast"]`` one by one; None stays None."""
    if values is None:
        return None
    return [name for value in values for name in value.split(",") if name]
