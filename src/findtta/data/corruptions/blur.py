"""Blur: gaussian, defocus, glass, motion and zoom."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from findtta.data.corruptions import _filters as filters
from findtta.data.corruptions._filters import to_bytes, to_unit
from findtta.data.dataset import Images
from findtta.data.randomness import Keys, integers, uniform

NEGLIGIBLE = 1e-12  # weights below this cannot change a byte


def gaussian_blur(images: Images, _: Keys, sigma: float) -> Images:
    """Blur by a Gaussian."""
    return to_bytes(filters.gaussian_filter(to_unit(images), sigma))


def defocus_blur(images: Images, _: Keys, radius: float, softness: float) -> Images:
    """Blur by a disk, as a lens out of focus does."""
    blurred = filters.correlate(images.astype(np.float32), disk(radius, softness))
    return to_bytes(blurred / 255)


@lru_cache(maxsize=16)
def disk(radius: float, softness: float) -> NDArray[np.float64]:
    """Return a disk whose rim is smoothed by a small Gaussian, without the zeros around it."""
    side = np.arange(-max(8, int(radius)), max(8, int(radius)) + 1)
    inside = side[:, None] ** 2 + side**2 <= radius**2
    reach = 1 if radius <= 8 else 2
    bell = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * softness**2))
    bell /= bell.sum()
    kernel = filters.correlate((inside / inside.sum())[None], np.outer(bell, bell))[0]
    # The precision of the kernels of the published data, in which the weights inside are all equal.
    kernel = kernel.astype(np.float32).astype(np.float64)
    kernel[kernel < NEGLIGIBLE] = 0
    used = np.flatnonzero(kernel.any(0))
    kernel = kernel[used[0] : used[-1] + 1, used[0] : used[-1] + 1]
    kernel.flags.writeable = False
    return kernel


def glass_blur(images: Images, keys: Keys, sigma: float, reach: float, iterations: float) -> Images:
    """Shuffle pixels locally, as frosted glass does, between two Gaussian blurs."""
    count, height, width, channels = images.shape
    blurred = to_bytes(filters.gaussian_filter(to_unit(images), sigma))
    sources = np.arange(height * width)
    for turn in range(int(iterations)):
        step = scattered(keys, turn, int(reach), height, width)
        # What a pixel holds after this turn stood, before it, where the turns before had put it.
        sources = np.take_along_axis(sources, step, axis=1) if turn else step
    first = np.arange(count)[:, None] * (height * width)
    shuffled = blurred.reshape(-1, channels).take(first + sources, axis=0).reshape(images.shape)
    return to_bytes(filters.gaussian_filter(to_unit(shuffled), sigma))


def scattered(keys: Keys, turn: int, reach: int, height: int, width: int) -> NDArray[np.intp]:
    """Where every pixel comes from after one pass of copying from neighbours, (n, height * width).

    The pass goes from the bottom right to the top left; each pixel takes the present value of a random
    neighbour. (Meant as a swap, it is a copy in the code that made the published data.) A neighbour that
    was passed before already holds a copy, so the origin is at the end of a chain; doubling the length of
    all chains at once finds it in a few rounds.
    """
    pixels = height * width
    offset = integers(keys(f"offset {turn}"), 0, 4 * reach * reach, height, width)
    dy, dx = offset // (2 * reach) - reach, offset % (2 * reach) - reach
    y, x = np.mgrid[:height, :width]
    # Rows and columns that the pass visits: the bounds of the published generator.
    visited = (y > reach) & (y <= height - reach) & (x > reach) & (x <= width - reach)
    here = y * width + x
    neighbour = np.where(visited, here + dy * width + dx, here)
    # Values below ``pixels`` stand for "what that pixel holds after the pass", others for "before it".
    passed_before = neighbour > here
    link = np.where(passed_before, neighbour, neighbour + pixels).reshape(-1, pixels)
    # A neighbour passed over holds what it held before; so does its entry in the table of links.
    links = np.empty((len(link), 2 * pixels), np.intp)
    links[:, :pixels] = link
    links[:, pixels:] = np.arange(pixels, 2 * pixels)
    while (links[:, :pixels] < pixels).any():
        links[:, :pixels] = np.take_along_axis(links, links[:, :pixels], axis=1)
    return links[:, :pixels] - pixels


def motion_blur(images: Images, keys: Keys, radius: float, sigma: float) -> Images:
    """Blur along a line within 45 degrees of the horizontal."""
    degrees = 90 * uniform(keys("angle")) - 45
    blurred = filters.motion_blur(images.astype(np.float32), radius, sigma, degrees)
    return np.clip(blurred, 0, 255).astype(np.uint8)


def zoom_blur(images: Images, _: Keys, count: float, step: float) -> Images:
    """Average over the image and ``count`` views that come nearer."""
    # Images last: rows and columns are then both gathered in long runs. The published data were summed in
    # float32 but interpolated in float64.
    unit = np.ascontiguousarray(to_unit(images).astype(np.float32).transpose(1, 2, 3, 0))
    exact = unit.astype(np.float64)
    total = np.zeros_like(unit)
    for factor in zooms(int(count), step):
        total += filters.clipped_zoom(exact, factor).astype(np.float32)
    total += unit
    total /= np.float32(count + 1)
    return np.ascontiguousarray(to_bytes(total).transpose(3, 0, 1, 2))


def zooms(count: int, step: float) -> list[float]:
    """Return the zoom factors 1, 1 + step, ...: by count, since rounding decides where a range of floats ends."""
    exact_step = (1 + step) - 1  # as a range of floats that starts at 1 sees it
    return [1 + exact_step * position for position in range(count)]
