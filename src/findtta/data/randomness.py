"""Random numbers that belong to a sample, not to a sequence of calls.

Every number is a hash of (seed, what it is for, sample index, position), so it does not matter in what
order, in what batches or by how many workers samples are made. The hash is SplitMix64 (Steele, Lea and
Flood, 2014), written out here so that no release of another library can change the data.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
#: Returns the keys of some samples for a purpose: ``sample_keys`` with all other arguments given.
Keys = Callable[[str], Words]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def sample_keys(seed: int, index: NDArray[Any], *purpose: str | int) -> Words:
    """Return one 64-bit key per sample index, different for every seed and purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    start = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], dtype="<u8").astype(np.uint64)
    return _mix(_mix(np.asarray(index).astype(np.uint64) * _STEP + start) ^ start)


def words(keys: Words, count: int) -> Words:
    """Return ``count`` random 64-bit words for every key, as an array of shape (keys, count)."""
    counters = np.arange(1, count + 1, dtype=np.uint64) * _STEP
    return _mix(keys[:, None] + counters)


def shorts(keys: Words, *shape: int) -> NDArray[np.uint16]:
    """Return integers in [0, 2**16) of shape (keys, *shape), four from every word."""
    count = int(np.prod(shape))
    quarters = words(keys, (count + 3) // 4).view(np.uint16)[:, :count]
    return quarters.reshape(len(keys), *shape)


def uniform(keys: Words, *shape: int) -> NDArray[np.float32]:
    """Return numbers in [0, 1) of shape (keys, *shape), on a grid of 2**-24."""
    count = int(np.prod(shape))
    halves = words(keys, (count + 1) // 2).view(np.uint32)[:, :count]
    return ((halves >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)).reshape(len(keys), *shape)


def normal(keys: Words, *shape: int) -> NDArray[np.float32]:
    """Return standard normal numbers of shape (keys, *shape): 2**16 equally likely values up to +-4.3.

    That is as fine as noise on 8-bit images can show; take another source for rare events.
    """
    return _normal_quantiles()[shorts(keys, *shape)]


def integers(keys: Words, low: int, high: int, *shape: int) -> NDArray[np.int64]:
    """Return integers in [low, high) of shape (keys, *shape)."""
    return low + np.floor(uniform(keys, *shape) * np.float32(high - low)).astype(np.int64)


@cache
def _normal_quantiles() -> NDArray[np.float32]:
    quantile = NormalDist().inv_cdf
    upper = np.array([quantile((2**15 + rank + 0.5) / 2**16) for rank in range(2**15)])
    # Scaled to variance 1, which the missing tails would leave a little short; then put on a grid, so
    # that the last digit of a platform's logarithm cannot show.
    upper = np.rint(upper / np.sqrt(np.mean(upper**2)) * 2**20) / 2**20
    table = np.concatenate([-upper[::-1], upper]).astype(np.float32)
    table.flags.writeable = False
    return table


def _mix(state: Words) -> Words:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))
