"""Noise: gaussian, shot, impulse and speckle."""

from functools import lru_cache
from math import lgamma

import numpy as np
from numpy.typing import NDArray

from findtta.data.corruptions._filters import to_bytes, to_unit
from findtta.data.dataset import Images
from findtta.data.randomness import Keys, normal, shorts, uniform

POISSON_BITS = 14


def gaussian_noise(images: Images, keys: Keys, sigma: float) -> Images:
    """Add the same amount of normal noise everywhere."""
    noisy = normal(keys("noise"), *images.shape[1:])
    noisy *= np.float32(sigma)
    noisy += to_unit(images, np.float32)
    return to_bytes(noisy)


def speckle_noise(images: Images, keys: Keys, sigma: float) -> Images:
    """Add normal noise in proportion to the brightness."""
    noisy = normal(keys("noise"), *images.shape[1:])
    noisy *= np.float32(sigma)
    noisy += np.float32(1)
    noisy *= to_unit(images, np.float32)
    return to_bytes(noisy)


def impulse_noise(images: Images, keys: Keys, amount: float) -> Images:
    """Set some elements (of single channels) to black or white, evenly."""
    chance = uniform(keys("hit"), *images.shape[1:])
    noisy = images.copy()
    noisy[chance < np.float32(amount)] = 255
    noisy[chance < np.float32(amount / 2)] = 0
    return noisy


def shot_noise(images: Images, keys: Keys, photons: float) -> Images:
    """Count photons: white gets ``photons`` of them on average, darker values fewer."""
    # There are but 256 brightnesses, so a table of quantiles replaces a Poisson generator.
    row = images.astype(np.int32)
    row <<= POISSON_BITS
    row |= shorts(keys("photons"), *images.shape[1:]) >> np.uint16(16 - POISSON_BITS)
    return photon_quantiles(photons).take(row)


@lru_cache(maxsize=4)
def photon_quantiles(photons: float) -> Images:
    """Noisy values for every brightness at 2**14 equally likely ranks, as one row of 256 * 2**14 bytes."""
    most = int(photons + 8 * photons**0.5 + 16)
    counts = np.arange(most + 1)
    log_factorials = np.array([lgamma(count + 1) for count in counts])
    value_of_count = to_bytes(counts / photons)
    ranks = (np.arange(2**POISSON_BITS) + 0.5) / 2**POISSON_BITS
    table: NDArray[np.uint8] = np.zeros((256, 2**POISSON_BITS), np.uint8)
    for brightness in range(1, 256):
        expected = photons * brightness / 255
        chances = np.exp(counts * np.log(expected) - expected - log_factorials)
        count = np.searchsorted(np.cumsum(chances), ranks)
        table[brightness] = value_of_count[np.minimum(count, most)]
    flat = table.reshape(-1)
    flat.flags.writeable = False
    return flat
