"""The embedded default dataset: ten shapes drawn by code, so that everything runs without a download.

The class is told by the outline alone, a thin line around a more or less filled shape. Pose, size, proportions,
colours, texture, background, lighting and occlusion vary and say nothing about it. Outlines are signed distances
(negative inside), which gives smooth edges at any pose; every image is a pure function of (seed, split, index).
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from findtta.data.dataset import CLEAN, DomainDataset, Images, Labels, Rows
from findtta.data.randomness import integers, sample_keys, uniform
from findtta.options import require_choice, require_int

Split = Literal["train", "test"]
Field = NDArray[Any]

SIDE = 32
_DRAWN_AT_ONCE = 256  # keeps the intermediate maps in the cache


class Shapes(DomainDataset):
    """Ten shapes on 32x32 pixels, drawn by code when asked for, with the single domain ``"clean"``.

    Other seeds give other images of the same kind; the split ``"train"`` has images that no test set has.
    """

    def __init__(self, count: int = 10_000, *, seed: int = 0, split: Split = "test") -> None:
        require_int("count", count)
        require_choice("split", split, "train", "test")
        self.name, self.domains, self.classes = "shapes", (CLEAN,), tuple(_OUTLINES)
        self.image_size, self.generated = (SIDE, SIDE), True
        self.seed, self.split = seed, split
        self._labels = draw_labels(np.arange(count), seed, split)

    def labels(self, domain: str = CLEAN) -> Labels:
        self.check_domain(domain)
        return self._labels

    def images(self, domain: str, rows: Rows) -> Images:
        return draw(rows, seed=self.seed, split=self.split)


def draw_labels(index: Rows, seed: int = 0, split: Split = "test") -> Labels:
    """Return the class of each image index."""
    return integers(sample_keys(seed, index, "shapes", split, "class"), 0, len(_OUTLINES))


def draw(index: Rows, *, seed: int = 0, split: Split = "test", clutter: float = 1.0) -> Images:
    """Draw the images with the given indices, (n,); less clutter (textures and occlusion) is easier to learn."""
    images = np.empty((len(index), SIDE, SIDE, 3), np.uint8)
    for start in range(0, len(index), _DRAWN_AT_ONCE):
        part = index[start : start + _DRAWN_AT_ONCE]
        keys = sample_keys(seed, part, "shapes", split, "look")
        images[start : start + _DRAWN_AT_ONCE] = _draw(_Numbers(keys), draw_labels(part, seed, split), clutter)
    return images


class _Numbers:
    """Hands out the random numbers of each image one after another."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._all = uniform(keys, 80)
        self._used = 0

    def between(self, low: float, high: float, *shape: int) -> Field:
        """Return numbers in [low, high), of shape (n, *shape), or (n, 1, 1) without a shape."""
        size = int(np.prod(shape)) if shape else 1
        numbers = self._all[:, self._used : self._used + size]
        self._used += size
        assert numbers.shape[1] == size, "the table of random numbers is too small"
        return (low + numbers * np.float32(high - low)).reshape(len(numbers), *(shape or (1, 1)))


def _draw(numbers: _Numbers, labels: Labels, clutter: float) -> Images:
    axis = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    y, x = axis[None, :, None], axis[None, None, :]

    radius = numbers.between(7, 11)
    stretch = np.exp(numbers.between(-0.2, 0.2))
    cos, sin = _direction(numbers)
    right, down = x - numbers.between(-4, 4), y - numbers.between(-4, 4)
    u = (cos * right + sin * down) / (radius * stretch)
    v = (cos * down - sin * right) / radius * stretch
    distance = np.empty((len(labels), SIDE, SIDE), np.float32)
    for label, outline in enumerate(_OUTLINES.values()):
        where = np.flatnonzero(labels == label)
        distance[where] = outline(u[where], v[where])
    pixels = distance * radius
    line = _coverage(np.abs(pixels) - numbers.between(0.5, 0.8))
    inside = _coverage(pixels) * numbers.between(0, 0.4)

    colour = numbers.between(0.3, 0.7, 1, 1, 3)
    contrast = numbers.between(-1, 1, 1, 1, 3)
    contrast *= numbers.between(0.35, 0.55, 1, 1, 1) / (np.abs(contrast).max(axis=-1, keepdims=True) + 1e-3)
    behind = colour + contrast
    # Where that leaves the range, the other way; clipping would take the contrast back.
    behind = np.where((behind < 0.1) | (behind > 0.9), colour - contrast, behind)

    image = behind + _texture(numbers, x, y, clutter)[..., None]
    image = _over(image, colour + _texture(numbers, x, y, clutter)[..., None], inside)
    image = _over(image, colour, line)
    for _ in range(2):
        image = _over(image, numbers.between(0, 1, 1, 1, 3), clutter * _bar(numbers, x, y))
    cos, sin = _direction(numbers)
    light = 1 + numbers.between(0, 0.02) * (cos * x + sin * y)
    return (np.clip(image * light[..., None], 0, 1) * 255).astype(np.uint8)


def _direction(numbers: _Numbers) -> tuple[Field, Field]:
    angle = numbers.between(0, 2 * np.pi)
    return np.cos(angle), np.sin(angle)


def _coverage(pixels: Field) -> Field:
    """Return the fraction of a pixel that lies inside an edge, given its distance to the edge in pixels."""
    return np.clip(0.5 - pixels, 0, 1)


def _over(below: Field, above: Field, share: Field) -> Field:
    share = share[..., None]
    return below + share * (above - below)


def _texture(numbers: _Numbers, x: Field, y: Field, clutter: float) -> Field:
    """Return waves, bent by other waves: stripes and ripples."""
    cos, sin = _direction(numbers)
    bent = np.sin(numbers.between(0.1, 0.5) * (cos * x - sin * y) + numbers.between(0, 6.3))
    wave = numbers.between(0.6, 1.6) * (sin * x + cos * y) + numbers.between(0, 2) * bent
    return clutter * numbers.between(0.05, 0.14) * np.sin(wave + numbers.between(0, 6.3))


def _bar(numbers: _Numbers, x: Field, y: Field) -> Field:
    """Return the coverage of a bar that hides a part of most images, and nothing of some."""
    cos, sin = _direction(numbers)
    across = cos * x + sin * y - numbers.between(3, 22)
    along = cos * y - sin * x - numbers.between(-14, 14)
    half_width = numbers.between(0.6, 2)
    return _coverage(np.maximum(np.abs(across) - half_width, np.abs(along) - numbers.between(3, 14)))


def _disc(u: Field, v: Field, radius: float = 0.85) -> Field:
    return np.hypot(u, v) - radius


def _box(u: Field, v: Field, half_width: float, half_height: float) -> Field:
    return np.maximum(np.abs(u) - half_width, np.abs(v) - half_height)


def _polygon(u: Field, v: Field, corners: int, inner_radius: float) -> Field:
    """Return the distance from the nearest edge of a regular polygon."""
    sector = 2 * np.pi / corners
    angle = np.arctan2(v, u)
    return np.hypot(u, v) * np.cos(angle - sector * np.round(angle / sector)) - inner_radius


def _star(u: Field, v: Field) -> Field:
    sector = 2 * np.pi / 5
    angle = np.arctan2(v, u)
    from_tip = np.abs(angle - sector * np.round(angle / sector))
    radius = np.hypot(u, v)
    # An edge runs from the tip at radius 1 to the notch at radius 0.45, half a sector on.
    right, up = 0.45 * np.cos(sector / 2) - 1, 0.45 * np.sin(sector / 2)
    outward = np.array([up, -right], np.float32) / np.float32(np.hypot(right, up))
    return outward[0] * (radius * np.cos(from_tip) - 1) + outward[1] * radius * np.sin(from_tip)


def _cross(u: Field, v: Field) -> Field:
    return np.minimum(_box(u, v, 0.9, 0.3), _box(u, v, 0.3, 0.9))


def _ring(u: Field, v: Field) -> Field:
    return np.abs(_disc(u, v, 0.68)) - np.float32(0.22)


def _crescent(u: Field, v: Field) -> Field:
    return np.maximum(_disc(u, v, 0.9), -_disc(u - np.float32(0.5), v, 0.72))


def _heart(u: Field, v: Field) -> Field:
    side = np.abs(u)
    lobe = np.hypot(side - np.float32(0.42), v - np.float32(0.3)) - np.float32(0.47)
    # The tangent of the lobe runs down to the tip; above the lobe's centre it bounds nothing.
    flank = np.maximum(np.float32(0.72) * side - np.float32(0.694) * v - np.float32(0.56), v - np.float32(0.3))
    return np.minimum(lobe, flank)


def _arrow(u: Field, v: Field) -> Field:
    shaft = _box(u + np.float32(0.35), v, 0.6, 0.2)
    head = np.maximum(np.float32(0.75) * np.abs(v) + np.float32(0.66) * (u - np.float32(0.95)), -u)
    return np.minimum(shaft, head)


_OUTLINES: dict[str, Callable[[Field, Field], Field]] = {
    "disc": _disc,
    "triangle": lambda u, v: _polygon(u, v, 3, 0.5),
    "square": lambda u, v: _polygon(u, v, 4, 0.68),
    "pentagon": lambda u, v: _polygon(u, v, 5, 0.74),
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "crescent": _crescent,
    "heart": _heart,
    "arrow": _arrow,
}
