"""Weather: snow, frost and fog."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from findtta.data.corruptions import _filters as filters
from findtta.data.corruptions._draws import Draws, to_bytes, to_unit
from findtta.data.corruptions.ice import TEXTURES, ice_textures
from findtta.data.dataset import Images

GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue in perceived brightness
ROUGHNESS = 100.0


def snow(
    images: Images,
    draws: Draws,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    weight: float,
) -> Images:
    """Whiten the image and let flakes fall in streaks, near and far."""
    _, height, width, _ = images.shape
    flakes = mean + deviation * draws.normal("flakes", height, width).astype(np.float64)
    flakes = filters.clipped_zoom(flakes.transpose(1, 2, 0), zoom).transpose(2, 0, 1)
    flakes[flakes < threshold] = 0
    degrees = 90 * draws.uniform("angle") - 135
    streaks = filters.motion_blur(to_bytes(flakes).astype(np.float32), radius, sigma, degrees)
    layer = streaks / np.float32(255)
    unit = to_unit(images, np.float32)
    grey = sum(np.float32(part) * unit[..., channel] for channel, part in enumerate(GREY))
    white = np.maximum(unit, (1.5 * np.asarray(grey) + 0.5)[..., None])
    whitened = np.float32(weight) * unit + np.float32(1 - weight) * white
    # Turned by 180 degrees the same flakes serve again.
    return to_bytes(whitened + (layer + layer[:, ::-1, ::-1])[..., None])


def frost(images: Images, draws: Draws, weight: float, frost_weight: float, spacing: float) -> Images:
    """Lay a random part of one of five ice textures over the image."""
    _, height, width, _ = images.shape
    textures = ice_textures(height, width, int(spacing))
    which = draws.integers("texture", 0, TEXTURES)
    top = draws.integers("top", 0, textures.shape[1] - height)
    left = draws.integers("left", 0, textures.shape[2] - width)
    ice = filters.crops(textures, which, top, left, (height, width))
    mixed = weight * images.astype(np.float64) + frost_weight * ice
    return np.clip(mixed, 0, 255).astype(np.uint8)


def fog(images: Images, draws: Draws, strength: float, decay: float) -> Images:
    """Add clouds and scale the brightest pixel back to what it was."""
    _, height, width, _ = images.shape
    unit = to_unit(images, np.float32)
    brightest = unit.max(axis=(1, 2, 3))[:, None, None, None]
    unit += np.float32(strength) * clouds(draws, height, width, decay)[..., None]
    unit *= brightest / (brightest + np.float32(strength))
    return to_bytes(unit)


def clouds(draws: Draws, height: int, width: int, decay: float) -> NDArray[np.float32]:
    """Return fractal maps in [0, 1], (n, height, width), by the diamond-square method.

    The whole map is a torus whose side is a power of two; its smallest and largest values are 0 and 1.
    """
    side = 1 << (max(height, width) - 1).bit_length()
    grid = np.zeros((len(draws.index), side, side), np.float32)
    noise = 2 * draws.uniform("clouds", side * side - 1) - 1
    used, step, rough = 0, side, ROUGHNESS
    while step > 1:
        half, cells = step // 2, side // step

        def wobbly(total: NDArray[np.float32], cells: int = cells, rough: float = rough) -> NDArray[np.float32]:
            nonlocal used
            drawn = noise[:, used : used + cells * cells].reshape(-1, cells, cells)
            used += cells * cells
            return total / np.float32(4) + np.float32(rough * rough) * drawn

        corners = grid[:, ::step, ::step]
        beside, below = np.roll(corners, -1, axis=2), np.roll(corners, -1, axis=1)
        middles = wobbly(corners + beside + below + np.roll(below, -1, axis=2))
        grid[:, half::step, half::step] = middles
        grid[:, ::step, half::step] = wobbly(corners + beside + middles + np.roll(middles, 1, axis=1))
        grid[:, half::step, ::step] = wobbly(corners + below + middles + np.roll(middles, 1, axis=2))
        step, rough = half, rough / decay
    grid -= grid.min(axis=(1, 2), keepdims=True)
    grid /= grid.max(axis=(1, 2), keepdims=True)
    return grid[:, :height, :width]
