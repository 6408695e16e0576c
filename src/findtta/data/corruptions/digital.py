"""Digital: brightness, contrast, saturation, elastic deformation, pixels and JPEG."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from findtta.data.corruptions import _filters as filters
from findtta.data.corruptions._filters import to_bytes, to_unit
from findtta.data.dataset import Images
from findtta.data.randomness import Keys, uniform


def brightness(images: Images, _: Keys, summand: float) -> Images:
    """Raise the value (of hue, saturation and value)."""
    value, saturation, lack = hue_parts(to_unit(images))
    return to_bytes(np.clip(value + summand, 0, 1) * (1 - saturation * lack))


def saturate(images: Images, _: Keys, factor: float, summand: float) -> Images:
    """Change the saturation (of hue, saturation and value)."""
    value, saturation, lack = hue_parts(to_unit(images))
    return to_bytes(value * (1 - np.clip(saturation * factor + summand, 0, 1) * lack))


def hue_parts(unit: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Take colours, (..., 3), apart such that ``value * (1 - saturation * lack)`` is the colour again.

    Value and saturation are (..., 1); the hue is the lack of each channel, (..., 3): 0 for the strongest, 1 for
    the weakest. Grey has saturation 0 and, by convention, the hue of red.
    """
    red, green, blue = unit[..., 0], unit[..., 1], unit[..., 2]
    value = np.maximum(np.maximum(red, green), blue)[..., None]
    spread = value - np.minimum(np.minimum(red, green), blue)[..., None]
    saturation = np.divide(spread, value, out=np.zeros_like(value), where=value > 0)
    lack = np.empty_like(unit)
    lack[:] = (0, 1, 1)
    np.divide(value - unit, spread, out=lack, where=spread > 0)
    return value, saturation, lack


def contrast(images: Images, _: Keys, factor: float) -> Images:
    """Pull all pixels towards the mean of their channel."""
    pixels = images.shape[1] * images.shape[2]
    # The sum of integers is exact, in whatever order.
    mean = images.sum(axis=(1, 2), dtype=np.int64)[:, None, None] / (255.0 * pixels)
    return to_bytes((to_unit(images) - mean) * factor + mean)


def elastic_transform(
    images: Images, keys: Keys, side: float, strength: float, sigma: float, shift: float
) -> Images:
    """Move three anchors of the image, then every point by a smooth random field."""
    _, height, width, _ = images.shape
    y, x = np.mgrid[:height, :width].astype(np.float64)
    unit = to_unit(images, np.float32)
    moves = side * shift * (2 * uniform(keys("anchors"), 3, 2).astype(np.float64) - 1)
    warped = filters.sample_bilinear(unit, *affine_sources(moves, y, x), "reflect").astype(np.float32)
    if strength:
        fields = 2 * uniform(keys("field"), 2 * height, width) - 1
        dx = side * strength * filters.smooth_field(fields[:, :height], side * sigma, truncate=3)
        dy = side * strength * filters.smooth_field(fields[:, height:], side * sigma, truncate=3)
        warped = filters.sample_bilinear(warped, y + dy, x + dx, "symmetric")
    return to_bytes(warped)


def affine_sources(
    moves: NDArray[np.float64], y: NDArray[np.float64], x: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the pixels at rows y and columns x come from when three anchors are moved by (n, 3 anchors, x and y).

    Returns rows and columns in the image as it was, (n, height, width) each.
    """
    height, width = y.shape
    middle = np.array([width // 2, height // 2], np.float64)
    reach = min(height, width) // 3
    anchors = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = anchors + moves
    # A point is third anchor + a * (second - third) + b * (first - second), before the move and after it:
    # a and b are found from the moved anchors, the point from those that were.
    along, across = moved[:, 1] - moved[:, 2], moved[:, 0] - moved[:, 1]
    determinant = along[:, 0] * across[:, 1] - along[:, 1] * across[:, 0]

    def each(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[:, None, None]

    to_x, to_y = x - each(moved[:, 2, 0]), y - each(moved[:, 2, 1])
    a = (to_x * each(across[:, 1]) - to_y * each(across[:, 0])) / each(determinant)
    b = (to_y * each(along[:, 0]) - to_x * each(along[:, 1])) / each(determinant)
    return anchors[2, 1] + 2.0 * reach * b, anchors[2, 0] + 2.0 * reach * a


def pixelate(images: Images, _: Keys, scale: float) -> Images:
    """Shrink and enlarge by box averages."""
    height, width = images.shape[1:3]
    result = np.empty_like(images)
    for image, out in zip(images, result, strict=True):
        small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
        out[:] = small.resize((width, height), Image.Resampling.BOX)
    return result


def jpeg_compression(images: Images, _: Keys, quality: float) -> Images:
    """Save as JPEG and read again."""
    result = np.empty_like(images)
    for image, out in zip(images, result, strict=True):
        with io.BytesIO() as file:
            Image.fromarray(image).save(file, "JPEG", quality=int(quality))
            with Image.open(file) as reloaded:
                out[:] = reloaded
    return result
