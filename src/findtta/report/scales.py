"""Where numbers lie along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1, 2, 5, 10)
_DECADES_FOR_LOG = 0.9  # a range that is about eight times its beginning


@dataclass(frozen=True)
class Scale:
    """A range of numbers along a range of pixels.

    Attributes:
        low: The least number.
        high: The greatest number.
        start: Where the least one lies.
        end: Where the greatest one lies.
        ticks: The numbers to write along the axis.
        is_log: Whether equal ratios, rather than equal differences, are equally far apart.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return where a number lies."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def linear(values: Iterable[float], start: float, end: float, *, count: int = 5, zero: bool = False) -> Scale:
    """Return a scale whose ends are round numbers that enclose the values.

    Args:
        values: What will be drawn; only the finite ones count.
        start: The pixel of the lower end.
        end: The pixel of the upper end.
        count: About how many ticks there should be.
        zero: Whether the axis begins at zero if no value is below it.

    Returns:
        The scale.
    """
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if zero and low > 0:
        low = 0.0
    if high - low < 1e-9 * max(abs(high), abs(low), 1.0):
        low, high = low - 1, high + 1
    step = _round_step((high - low) / max(count - 1, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(index * step, 10) for index in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], start, end, ticks)


def spread(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale for positive numbers that may differ by orders of magnitude: logarithmic if they do."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    if not known or math.log10(max(known) / min(known)) < _DECADES_FOR_LOG:
        return linear(known, start, end, zero=True)
    room = (max(known) / min(known)) ** 0.06
    low, high = min(known) / room, max(known) * room
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in _STEPS[:3]]
    if math.log10(high / low) > 3:
        ticks = [10.0**decade for decade in decades]
    return Scale(low, high, start, end, tuple(tick for tick in ticks if low <= tick <= high), is_log=True)


def number(value: float) -> str:
    """Write a tick."""
    return f"{value:g}"


def _round_step(about: float) -> float:
    power = 10.0 ** math.floor(math.log10(about))
    return next(digit * power for digit in _STEPS if digit * power >= about * (1 - 1e-9))
