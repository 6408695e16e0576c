"""Names of classes, and labels that must agree with them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from findtta.data.dataset import Labels
from findtta.errors import InputError, OptionError

#: What the option ``classes`` of the readers accepts: the names, or a file that lists them.
Classes = Sequence[str] | str | Path

_WORDNET_ID = re.compile(r"n\d{8}")


def class_list(classes: Classes | None) -> tuple[str, ...] | None:
    """Return the names that the option ``classes`` gives, in the order of the labels.

    Args:
        classes: The names themselves; or a text file with one per line (of lines that begin with a
            WordNet id, the id); or a JSON file with a list of names, a list of (folder, name) pairs, or a
            table from label to such a pair.

    Returns:
        The names, or None if the option was not given.
    """
    if classes is None:
        return None
    names = _from_file(Path(classes)) if isinstance(classes, (str, Path)) else [str(name) for name in classes]
    repeated = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if repeated or not names:
        what = f"{min(repeated)!r} appears more than once" if repeated else "it names none"
        raise OptionError(f"classes must name every class once, but {what}.")
    return tuple(names)


def numbered(labels: Labels) -> tuple[str, ...]:
    """Return names for classes of which only the labels are known."""
    return tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))


def checked_labels(labels: Any, classes: Sequence[str] | None, where: str) -> Labels:
    """Return labels as int64, or say what is wrong with them.

    Args:
        labels: What was read.
        classes: The names they must point into, or None if those are not known.
        where: How the message calls the place they come from.

    Returns:
        Labels of shape (n,).
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{where} must be a list of whole numbers, got shape {array.shape} and type {array.dtype}."
        )
    if len(array) and (int(array.min()) < 0 or (classes is not None and int(array.max()) >= len(classes))):
        upper = f"{len(classes) - 1}, one per class" if classes is not None else "the number of classes"
        raise InputError(
            f"{where} must lie between 0 and {upper}, but go from {array.min()} to {array.max()}. "
            "If the list of classes is incomplete, give all of them with the option classes."
        )
    return array.astype(np.int64)


def _from_file(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() != ".json":
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return [found[0] if (found := _WORDNET_ID.match(line)) else line for line in lines]
        content = json.loads(text)
        if isinstance(content, dict):
            content = [content[str(label)] for label in range(len(content))]
        return [entry if isinstance(entry, str) else str(entry[0]) for entry in content]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OptionError(
            f"classes must be a list of names, a text file with one name per line or a JSON list, "
            f"but {str(path)!r} cannot be read as one: {error!r}."
        ) from error
