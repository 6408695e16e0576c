"""The one error family: every message names the argument, what was expected, what came and the fix."""

import difflib
from collections.abc import Iterable, Sequence


class FindTTAError(Exception):
    """Base of every error raised on purpose by this package."""


class UnknownNameError(FindTTAError, ValueError):
    """A name (of a method, an option, ...) that does not exist."""


class OptionError(FindTTAError, ValueError):
    """An option has a value outside what it accepts."""


class UnsupportedModelError(FindTTAError, TypeError):
    """The model, or one of its layers, cannot be adapted."""


class InputError(FindTTAError, ValueError):
    """A batch is not what the method can work on."""


class MissingExtraError(FindTTAError, ImportError):
    """An optional dependency is not installed."""


class WorkerError(FindTTAError, RuntimeError):
    """A process that took part in the work has ended early, or could not continue."""


class SkippedUpdateWarning(UserWarning):
    """A batch was predicted but not learned from, because something in it is not finite."""


class UnusedLayerWarning(UserWarning):
    """The model did not run some of its BatchNorm layers, so they have no effect."""


def few(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without the pages that some libraries append; its type if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def close_matches(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for names close to ``name``, or an empty string."""
    close = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(match) for match in close)}?" if close else ""
