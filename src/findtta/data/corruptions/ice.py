"""Ice textures for frost, made by a program since the photographs of the benchmark may not be shipped.

Five textures stand for the five photographs. Feathers of ice grow from scattered germs, each with an axis and
barbs of its own; over them lie finer grain, patches and a slow change across the pane. The weights of these,
the distribution of brightness and the tint follow statistics of the frost in the benchmark's own output.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from findtta._io import read_toml
from findtta.data import randomness
from findtta.data.corruptions._filters import mixed
from findtta.data.dataset import Images

Field = NDArray[np.float32]

SIDE = 768  # of a texture that shows every pixel of ice
FAR_SIDE = 200  # the least side of one seen from afar
LATTICE = 256  # noise repeats after this many of its cells
QUANTILES = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.995, 0.999)


#: What each texture looks like; ``ice.toml`` says what its entries mean.
KINDS: list[dict[str, Any]] = read_toml(Path(__file__).with_suffix(".toml"))["kinds"]
TEXTURES = len(KINDS)


def ice_textures(height: int, width: int, spacing: int) -> Images:
    """Return the textures that crops of a height and width are taken from, (textures, side, side, 3).

    From one pixel of a texture to the next it is ``spacing`` pixels of ice; 5 gives a view from afar.
    """
    side = max(SIDE // spacing, FAR_SIDE)
    while side < max(height, width) + side // 8:
        side *= 2
    return _textures(side, spacing)


@lru_cache(maxsize=3)
def _textures(side: int, spacing: int) -> Images:
    textures = np.stack([texture(kind, side, spacing) for kind in range(TEXTURES)])
    textures.flags.writeable = False
    return textures


def texture(kind: int, side: int, spacing: int) -> Images:
    """Return one texture, (side, side, 3)."""
    ice = KINDS[kind]
    line = (spacing * np.arange(side) + spacing // 2).astype(np.float32)
    y, x = np.meshgrid(line, line, indexing="ij")

    def noise(what: str, cell: int) -> Field:
        return _noise(kind, what, y, x, (cell, cell))

    fine = _share(ice["feathers"], _feathers(kind, y, x)) + _share(ice["grain"], noise("grain", 3))
    fine *= 1 + np.float32(ice["unevenness"]) * _standard(noise("strength", 180))
    patches = _share(ice["patches"], noise("patches", 40) + np.float32(0.5) * noise("lumps", 15))
    mixture = fine + patches + _share(ice["slope"], noise("slope", 250))
    brightness = np.interp(mixture, np.quantile(mixture, QUANTILES), ice["levels"])[..., None]
    start, gain = np.array(ice["tint"]).T
    return np.clip(start + gain * brightness, 0, 255).astype(np.uint8)


def _feathers(kind: int, y: Field, x: Field) -> Field:
    """Ridges along the barbs of feathers, one feather around each germ."""
    along, across = _around_germs(kind, y, x)
    aside = np.abs(across)
    # Barbs leave the axis at 60 degrees on both sides, so lines of equal ``rib`` are chevrons.
    rib = (along - np.float32(0.577) * aside).astype(np.float32)
    barbs = 1 - np.abs(_noise(kind, "barbs", rib, aside, (7, 40)))
    needles = 1 - np.abs(_noise(kind, "needles", rib, across, (3, 15)))
    return barbs * barbs + needles * needles


def _around_germs(kind: int, y: Field, x: Field) -> tuple[Field, Field]:
    """Position relative to the nearest germ, along the axis of its feather and across it."""
    distance = np.float32(KINDS[kind]["germs"])
    row, column = np.floor(y / distance).astype(np.intp), np.floor(x / distance).astype(np.intp)
    shift_y, shift_x, turn = (_lattice(kind, what) for what in ("germ y", "germ x", "axis"))
    turned = np.stack([np.cos(np.pi * turn), np.sin(np.pi * turn)]).astype(np.float32)
    nearest = np.full(y.shape, np.inf, np.float32)
    best_y, best_x, best = np.zeros_like(y), np.zeros_like(x), np.zeros(y.shape, np.intp)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            at = (row + down) % LATTICE * LATTICE + (column + right) % LATTICE
            to_y = y - (row + down + np.float32(0.5) + shift_y.take(at) / 2) * distance
            to_x = x - (column + right + np.float32(0.5) + shift_x.take(at) / 2) * distance
            squared = to_y * to_y + to_x * to_x
            closer = squared < nearest
            for kept, new in ((nearest, squared), (best_y, to_y), (best_x, to_x), (best, at)):
                np.copyto(kept, new, where=closer)
    cosine, sine = turned[0].take(best), turned[1].take(best)
    return cosine * best_x + sine * best_y, cosine * best_y - sine * best_x


def _noise(kind: int, what: str, y: Field, x: Field, cell: tuple[int, int]) -> Field:
    """Smooth noise in [-1, 1] with one random value per cell of a height and width."""
    y, x = y / np.float32(cell[0]), x / np.float32(cell[1])
    floor_y, floor_x = np.floor(y), np.floor(x)
    rows = [(floor_y.astype(np.intp) + step) % LATTICE * LATTICE for step in (0, 1)]
    columns = [(floor_x.astype(np.intp) + step) % LATTICE for step in (0, 1)]
    return mixed(_lattice(kind, what), rows, columns, _eased(y - floor_y), _eased(x - floor_x))


def _eased(part: Field) -> Field:
    return part * part * (3 - 2 * part)


def _lattice(kind: int, what: str) -> Field:
    keys = randomness.sample_keys(0, np.array([kind]), "ice", what)
    return 2 * randomness.uniform(keys, LATTICE * LATTICE)[0] - 1


def _share(variance: float, field: Field) -> Field:
    return np.float32(variance**0.5) * _standard(field)


def _standard(field: Field) -> Field:
    # In float64 and over the whole field: textures are made one at a time, so nothing else can show.
    centred = field - np.float32(field.mean(dtype=np.float64))
    return centred / np.float32(centred.std(dtype=np.float64))
