"""Lists on the command line, with spaces or commas between their items."""

from __future__ import annotations

from collections.abc import Sequence

from findtta.options import split_list


def names(values: Sequence[str] | None) -> list[str] | None:
    """Return the names in ``["fog,snow", "contrast"]`` one by one; None stays None."""
    return None if values is None else split_list(",".join(values))
