"""When requests arrive, and how long they took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def poisson(count: int, rate: float, seed: int) -> NDArray[np.float64]:
    """Return the arrival times of independent clients.

    Args:
        count: How many requests arrive.
        rate: How many arrive per second on average.
        seed: Of the gaps between them.

    Returns:
        Seconds from the start, growing, of shape (count,).
    """
    return np.cumsum(np.random.default_rng([seed, 0]).exponential(1 / rate, count))


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least ``percent`` per cent of the values do not exceed.

    It is a latency that somebody had; interpolation would invent one between two.

    Args:
        ordered: Values in growing order, at least one.
        percent: From 0 to 100.

    Returns:
        One of the values.
    """
    # In whole numbers, where 7% of 100 is 7.
    rank = -(-percent * len(ordered) // 100)
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True)
class Spread:
    """Times of many requests in milliseconds.

    Attributes:
        count: How many.
        p50: Half took at most this long.
        p95: 95 of 100 took at most this long.
        p99: 99 of 100 took at most this long.
        max: The longest.
    """

    count: int
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread | None:
        """Summarise times given in seconds; None if there are none."""
        ordered = sorted(1000 * value for value in seconds)
        if not ordered:
            return None
        return cls(len(ordered), *(percentile(ordered, percent) for percent in (50, 95, 99, 100)))
