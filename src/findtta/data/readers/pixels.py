"""From image files to arrays of one size."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from findtta.data.dataset import Images
from findtta.errors import InputError, OptionError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})


@dataclass(frozen=True)
class Fit:
    """How images of any size become images of one size: scale the shorter side, then cut the centre.

    Attributes:
        size: Height and width of the result.
        resize: Length the shorter side is scaled to (bilinear) before the cut; None scales to what just
            covers the result. ImageNet's usual preparation is a size of 224 with 256 here.
    """

    size: tuple[int, int]
    resize: int | None = None

    @classmethod
    def from_options(cls, image_size: int | tuple[int, int] | None, resize: int | None) -> Fit | None:
        """Return the fit that the options of a reader ask for, or None for images used as they are."""
        if image_size is None:
            if resize is not None:
                raise OptionError(f"resize is used together with image_size, but only resize={resize} is given.")
            return None
        size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        if len(size) != 2 or min(size) < 1:
            raise OptionError(f"image_size must be a side or (height, width) in pixels, got {image_size!r}.")
        if resize is not None and resize < max(size):
            raise OptionError(f"resize must be at least image_size, which is {size}, got {resize}.")
        return cls((int(size[0]), int(size[1])), resize)

    def apply(self, image: Image.Image) -> Image.Image:
        """Return the image at the size asked for."""
        height, width = self.size
        scale = (
            self.resize / min(image.size)
            if self.resize is not None
            else max(height / image.height, width / image.width)
        )
        scaled = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        if scaled != image.size:
            image = image.resize(scaled, Image.Resampling.BILINEAR)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height))


def read_image(source: Path | bytes, where: str, fit: Fit | None = None) -> Images:
    """Read an image as RGB.

    Args:
        source: A file, or the bytes of one.
        where: How messages call it.
        fit: How to bring it to a size; None leaves it as it is.

    Returns:
        An image of shape (height, width, 3).
    """
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
            # A palette with transparency goes through RGBA, as Pillow advises.
            see_through = file.mode == "P" and "transparency" in file.info
            image = file.convert("RGBA").convert("RGB") if see_through else file.convert("RGB")
            return np.asarray(fit.apply(image) if fit else image, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(
            f"{where} must be a readable image, but it is not: {error}. Replace or remove it."
        ) from error


def size_of(source: Path | bytes, where: str) -> tuple[int, int]:
    """Return the height and width of an image without decoding all of it."""
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            return image.height, image.width
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(
            f"{where} must be a readable image, but it is not: {error}. Replace or remove it."
        ) from error
