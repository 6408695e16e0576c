"""Weather: snow, frost, fog, and spatter: drops of water, or of mud, on the lens."""

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from findtta.data.corruptions import _filters as filters
from findtta.data.corruptions._filters import to_bytes, to_unit
from findtta.data.corruptions.ice import TEXTURES, ice_textures
from findtta.data.dataset import Images
from findtta.data.randomness import Keys, integers, normal, uniform

GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue in perceived brightness
ROUGHNESS = 100.0
WATER = np.array([175, 238, 238], np.float64) / 255
MUD = np.array([63, 42, 20], np.float64) / 255
MUD_COVERS_FROM = 0.8
WEAK_EDGE, STRONG_EDGE = 50, 150
FAR = 20  # distances to a rim beyond this are all alike
# Chamfer lengths of a step aside, along a diagonal, and of a knight's move.
STEP_LENGTHS = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}
EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float64)
BOX = np.full((3, 3), 1.0)
TAN_22_5 = 0.41421356237309503


def snow(
    images: Images,
    keys: Keys,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    weight: float,
) -> Images:
    """Whiten the image and let flakes fall in streaks, near and far."""
    _, height, width, _ = images.shape
    flakes = mean + std * normal(keys("flakes"), height, width).astype(np.float64)
    flakes = filters.clipped_zoom(flakes.transpose(1, 2, 0), zoom).transpose(2, 0, 1)
    flakes[flakes < threshold] = 0
    degrees = 90 * uniform(keys("angle")) - 135
    streaks = filters.motion_blur(to_bytes(flakes).astype(np.float32), radius, sigma, degrees)
    layer = streaks / np.float32(255)
    unit = to_unit(images, np.float32)
    grey = sum(np.float32(part) * unit[..., channel] for channel, part in enumerate(GREY))
    white = np.maximum(unit, (1.5 * np.asarray(grey) + 0.5)[..., None])
    whitened = np.float32(weight) * unit + np.float32(1 - weight) * white
    # Turned by 180 degrees the same flakes serve again.
    return to_bytes(whitened + (layer + layer[:, ::-1, ::-1])[..., None])


def frost(images: Images, keys: Keys, weight: float, frost_weight: float, spacing: float) -> Images:
    """Lay a random part of one of five ice textures over the image."""
    _, height, width, _ = images.shape
    textures = ice_textures(height, width, int(spacing))
    which = integers(keys("texture"), 0, TEXTURES)
    top = integers(keys("top"), 0, textures.shape[1] - height)
    left = integers(keys("left"), 0, textures.shape[2] - width)
    ice = filters.crops(textures, which, top, left, (height, width))
    mixed = weight * images.astype(np.float64) + frost_weight * ice
    return np.clip(mixed, 0, 255).astype(np.uint8)


def fog(images: Images, keys: Keys, strength: float, decay: float) -> Images:
    """Add clouds and scale the brightest pixel back to what it was."""
    _, height, width, _ = images.shape
    unit = to_unit(images, np.float32)
    brightest = unit.max(axis=(1, 2, 3))[:, None, None, None]
    unit += np.float32(strength) * clouds(keys, height, width, decay)[..., None]
    unit *= brightest / (brightest + np.float32(strength))
    return to_bytes(unit)


def clouds(keys: Keys, height: int, width: int, decay: float) -> NDArray[np.float32]:
    """Return fractal maps in [0, 1], (n, height, width), by the diamond-square method.

    The whole map is a torus whose side is a power of two; its smallest and largest values are 0 and 1.
    """
    side = 1 << (max(height, width) - 1).bit_length()
    noise = 2 * uniform(keys("clouds"), side * side - 1) - 1
    grid = np.zeros((len(noise), side, side), np.float32)
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


def spatter(
    images: Images,
    keys: Keys,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Images:
    """Spatter water or mud over the image."""
    _, height, width, _ = images.shape
    liquid = mean + std * normal(keys("liquid"), height, width).astype(np.float64)
    liquid = filters.gaussian_filter(liquid, sigma)
    liquid[liquid < threshold] = 0
    unit = to_unit(images)
    if mud:
        cover = filters.gaussian_filter((liquid > threshold).astype(np.float64), strength)[..., None]
        cover[cover < MUD_COVERS_FROM] = 0
        return to_bytes(unit * (1 - cover) + cover * MUD)
    return to_bytes(unit + strength * shine(to_bytes(liquid))[..., None] * WATER)


def shine(liquid: NDArray[np.uint8]) -> NDArray[np.float64]:
    """How drops catch the light, in [0, 1]: bright on one side of their rims."""
    depth = np.minimum(distance_to(edges(liquid)), FAR)
    depth = equalized((filters.correlate(depth, BOX) / 9).astype(np.uint8))
    lit = np.clip(filters.correlate(depth.astype(np.float64), EMBOSS), 0, 255)
    light = liquid * np.rint(filters.correlate(lit, BOX) / 9)
    brightest = light.max(axis=(1, 2), keepdims=True)
    return np.divide(light, brightest, out=np.zeros_like(light), where=brightest > 0)


def edges(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Canny edges of grey images, (n, height, width)."""
    dx, dy = sobel(images)
    slope_x, slope_y = np.abs(dx), np.abs(dy)
    steepness = slope_x + slope_y
    around = np.pad(steepness, ((0, 0), (1, 1), (1, 1)))

    def beside(y: int, x: int) -> NDArray[Any]:
        return around[:, 1 + y : around.shape[1] - 1 + y, 1 + x : around.shape[2] - 1 + x]

    # An edge is a ridge of the steepness across its own direction.
    level, upright = slope_y < TAN_22_5 * slope_x, slope_y > (TAN_22_5 + 2) * slope_x
    same_sign = (dx < 0) == (dy < 0)
    ridge = np.select(
        [level, upright, same_sign],
        [
            (steepness > beside(0, -1)) & (steepness >= beside(0, 1)),
            (steepness > beside(-1, 0)) & (steepness >= beside(1, 0)),
            (steepness > beside(-1, -1)) & (steepness > beside(1, 1)),
        ],
        (steepness > beside(-1, 1)) & (steepness > beside(1, -1)),
    )
    weak = ridge & (steepness > WEAK_EDGE)
    return grown(weak & (steepness > STRONG_EDGE), weak)


def sobel(images: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Differences to the right and downwards, smoothed across, (n, height, width) each."""
    wide = filters.padded(images.astype(np.int32), 1, 1, "edge")
    down = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]
    along = wide[:, :, :-2] + 2 * wide[:, :, 1:-1] + wide[:, :, 2:]
    return down[:, :, 2:] - down[:, :, :-2], along[:, 2:] - along[:, :-2]


def grown(seeds: NDArray[np.bool_], within: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Everything of ``within`` that touches, through its like, one of the seeds."""
    while True:
        wide = np.pad(seeds, ((0, 0), (1, 1), (1, 1)))
        rows = wide[:, :-2] | wide[:, 1:-1] | wide[:, 2:]
        larger = (rows[:, :, :-2] | rows[:, :, 1:-1] | rows[:, :, 2:]) & within
        if np.array_equal(larger, seeds):
            return seeds
        seeds = larger


def distance_to(marked: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Chamfer distance to the nearest marked pixel, exact up to ``FAR`` and at least that beyond it."""
    _, height, width = marked.shape
    distance = np.where(marked, 0.0, FAR)
    moves = [
        (y, x, STEP_LENGTHS[lengths])
        for y, x in product(range(-2, 3), repeat=2)
        if (lengths := (min(abs(y), abs(x)), max(abs(y), abs(x)))) in STEP_LENGTHS
    ]
    while True:
        wide = np.pad(distance, ((0, 0), (2, 2), (2, 2)), constant_values=FAR)
        nearer = distance.copy()
        for y, x, length in moves:
            np.minimum(nearer, wide[:, 2 + y : 2 + y + height, 2 + x : 2 + x + width] + length, out=nearer)
        if np.array_equal(nearer, distance):
            return distance
        distance = nearer


def equalized(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Spread few grey levels, at most ``FAR``, over 0 to 255 by their frequency."""
    pixels = levels.shape[1] * levels.shape[2]
    counts = np.stack([(levels == level).sum(axis=(1, 2)) for level in range(FAR + 1)], axis=1)
    lowest = levels.min(axis=(1, 2)).astype(np.intp)
    each = np.arange(len(levels))
    fewest = counts[each, lowest][:, None]
    flat = fewest == pixels
    scale = 255 / np.where(flat, 1, pixels - fewest)
    table = np.clip(np.rint((counts.cumsum(axis=1) - fewest) * scale), 0, 255)
    table = np.where(flat, lowest[:, None], table).astype(np.uint8)
    return table[each[:, None, None], levels]
