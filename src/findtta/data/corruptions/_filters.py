"""Filters and resampling for arrays of images, whose first axis counts the images.

All of them give every image the same bits whatever other images come with it. They are sums of shifted
arrays in a fixed order, not matrix products, because a BLAS may sum in another order for another batch;
the one matrix product here is of numbers chosen such that every partial sum is exact.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Indices = NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)


def to_unit(images: NDArray[np.uint8], dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
    """Return images on the scale from 0 to 1."""
    return images.astype(dtype) / dtype(255)


def to_bytes(unit: NDArray[Any]) -> NDArray[np.uint8]:
    """Clip to [0, 1] and cut off to 8 bits; not rounded, as in the published data."""
    return (np.clip(unit, 0, 1) * 255).astype(np.uint8)


def into_range(positions: NDArray[np.integer[Any]], size: int, border: str) -> Indices:
    """Map positions outside [0, size) to the pixel that stands there with border "reflect" or "symmetric"."""
    if border == "reflect":
        period = max(2 * size - 2, 1)
        folded = np.abs(positions) % period
        return np.minimum(folded, period - folded).astype(np.intp)
    folded = positions % (2 * size)
    return np.minimum(folded, 2 * size - 1 - folded).astype(np.intp)


def padded(images: NDArray[Scalar], margin_y: int, margin_x: int, border: str) -> NDArray[Scalar]:
    """Continue images, (n, height, width, ...), beyond all four borders, in a mode of ``np.pad``."""
    margins = ((0, 0), (margin_y, margin_y), (margin_x, margin_x), *((0, 0),) * (images.ndim - 3))
    return np.pad(images, margins, border)  # type: ignore[call-overload]


def crops(
    images: NDArray[Scalar], which: Indices, top: Indices, left: Indices, size: tuple[int, int]
) -> NDArray[Scalar]:
    """Cut one window of a size, (height, width), out of each of some images, (m, rows, columns, ...)."""
    view = np.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
    windows = np.moveaxis(view, (-2, -1), (3, 4))
    return windows[which, top, left]


def gaussian_weights(sigma: float, truncate: float) -> NDArray[np.float64]:
    """Return the weights of a Gaussian cut off at ``truncate`` sigmas, with sum 1."""
    radius = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 / sigma**2 * np.arange(-radius, radius + 1) ** 2)
    return weights / weights.sum()


def gaussian_filter(images: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Smooth images, (n, height, width, ...), by a Gaussian; the mirrored taps are added before weighting."""
    weights = gaussian_weights(sigma, truncate=4)
    radius = len(weights) // 2
    for axis in (1, 2):
        lines = np.moveaxis(images, axis, 0)
        size = len(lines)
        source = lines[np.arange(-radius, size + radius).clip(0, size - 1)]
        total = source[radius : radius + size] * weights[radius]
        for offset in range(radius, 0, -1):
            pair = source[radius - offset :][:size] + source[radius + offset :][:size]
            total += pair * weights[radius + offset]
        images = np.moveaxis(total, 0, axis)
    return images


def correlate(images: NDArray[Any], kernel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlate images, (n, height, width, ...), with a kernel of odd sides; borders reflect (cb|abc|ba).

    Taps of the same weight are added up before they are weighted; for integer pixels those sums are exact.
    """
    _, height, width = images.shape[:3]
    margin_y, margin_x = kernel.shape[0] // 2, kernel.shape[1] // 2
    source = padded(images, margin_y, margin_x, "reflect")
    total = np.zeros(images.shape)
    for weight in np.unique(kernel[kernel != 0]):
        taps = [source[:, y : y + height, x : x + width] for y, x in np.argwhere(kernel == weight)]
        alike = taps[0].copy()
        for tap in taps[1:]:
            alike += tap
        total += np.multiply(alike, weight, dtype=np.float64)
    return total


def motion_blur(images: Floats, radius: float, sigma: float, degrees: Floats) -> Floats:
    """Blur images, (n, height, width, ...), along lines, as ImageMagick does: from the pixel to one side.

    A line has ``2 * radius + 1`` taps, whose weights fall off by ``sigma`` pixels; ``degrees``, (n,), is the
    direction for each image, and 90 looks down. Taps beyond the opposite border are left out, without making up
    for them.
    """
    count, height, width = images.shape[:3]
    taps = np.arange(2 * int(radius) + 1)
    weights = np.exp(-(taps**2) / (2.0 * sigma**2))
    weights /= weights.sum()
    angle = np.deg2rad(degrees.astype(np.float64))[:, None]
    # Sine and cosine are rounded, so that the last digit of a platform's cannot move a tap.
    dy = np.ceil(np.round(np.sin(angle), 9) * taps - 0.5).astype(np.intp)
    dx = np.ceil(np.round(np.cos(angle), 9) * taps - 0.5).astype(np.intp)
    inside = np.logical_and.accumulate((np.abs(dy) < height) & (np.abs(dx) < width), axis=1)
    margin_y, margin_x = min(len(taps), height), min(len(taps), width)
    source = padded(images, margin_y, margin_x, "edge")
    each = np.arange(count)
    total = np.zeros_like(images)
    for tap in taps:
        at_y, at_x = np.where(inside[:, tap], dy[:, tap], 0), np.where(inside[:, tap], dx[:, tap], 0)
        shifted = crops(source, each, margin_y + at_y, margin_x + at_x, (height, width))
        weight = (weights[tap] * inside[:, tap]).astype(images.dtype)
        shifted *= weight.reshape(-1, *[1] * (images.ndim - 1))
        total += shifted
    return total


def clipped_zoom(images: Floats, factor: float) -> Floats:
    """Magnify the middle of float images, (height, width, ...), to their own size, by linear interpolation.

    The middle ``ceil(size / factor)`` pixels of a side are stretched end to end over ``factor`` times as many, of
    which the middle ``size`` are kept.
    """
    for axis in (0, 1):
        size = images.shape[axis]
        crop = int(np.ceil(size / factor))
        stretched = round(crop * factor)
        position = ((stretched - size) // 2 + np.arange(size)) * ((crop - 1) / (stretched - 1))
        low = np.minimum(np.floor(position).astype(np.intp), crop - 1)
        part = (position - low).reshape(-1, *[1] * (images.ndim - 1 - axis))
        start = (size - crop) // 2
        further = images.take(start + np.minimum(low + 1, crop - 1), axis=axis)
        images = images.take(start + low, axis=axis)
        images += (further - images) * part
    return images


def sample_bilinear(images: Floats, y: Floats, x: Floats, border: str) -> Floats:
    """Read images, (n, height, width, channels), at float positions y and x, (n, height, width) each."""
    count, height, width, channels = images.shape
    floor_y, floor_x = np.floor(y), np.floor(x)
    part_y, part_x = (y - floor_y)[..., None], (x - floor_x)[..., None]
    top, left = floor_y.astype(np.intp), floor_x.astype(np.intp)
    first = np.arange(count).reshape(-1, 1, 1) * (height * width)
    rows = [first + into_range(top + step, height, border) * width for step in (0, 1)]
    columns = [into_range(left + step, width, border) for step in (0, 1)]
    pixels = images.reshape(-1, channels)
    return mixed(pixels, rows, columns, part_y, part_x)


def mixed(
    pixels: Floats, rows: Sequence[Indices], columns: Sequence[Indices], part_y: Floats, part_x: Floats
) -> Floats:
    """Interpolate between the pixels, counted in a flat array, of two rows each and two columns each."""
    upper = pixels.take(rows[0] + columns[0], axis=0)
    upper += (pixels.take(rows[0] + columns[1], axis=0) - upper) * part_x
    lower = pixels.take(rows[1] + columns[0], axis=0)
    lower += (pixels.take(rows[1] + columns[1], axis=0) - lower) * part_x
    lower -= upper
    lower *= part_y
    upper += lower
    return upper


@lru_cache(maxsize=16)
def smoothing_matrix(size: int, sigma: float, truncate: float) -> NDArray[np.float64]:
    """A Gaussian filter with symmetric borders as a matrix, (size, size), on a grid of 2**-28."""
    weights = gaussian_weights(sigma, truncate)
    radius = len(weights) // 2
    sources = np.pad(np.arange(size), radius, "symmetric")
    matrix = np.zeros((size, size))
    for offset, weight in enumerate(weights):
        matrix[np.arange(size), sources[offset : offset + size]] += weight
    matrix = np.rint(matrix * 2.0**28) / 2.0**28
    matrix.flags.writeable = False
    return matrix


def smooth_field(fields: NDArray[np.float32], sigma: float, truncate: float) -> NDArray[np.float64]:
    """Smooth fields of numbers in [-1, 1] on a grid of 2**-23, (n, height, width), however wide the Gaussian.

    Weights on a grid of 2**-28 make every product a multiple of 2**-51, which float64 adds up without
    rounding: the order of the sums, a matter of the BLAS, does not show.
    """
    _, height, width = fields.shape
    down = smoothing_matrix(height, sigma, truncate) @ fields.astype(np.float64)
    down = np.rint(down * 2.0**23) / 2.0**23
    return down @ smoothing_matrix(width, sigma, truncate).T
