"""Images from outside: whatever comes is either made an RGB array of bounded size, or refused by name."""

from __future__ import annotations

import io
import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from findtta.errors import InputError, OptionError

Pixels = NDArray[np.uint8]

#: What is read. Pillow knows many more formats, and each is more code that an attacker may reach.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


class ImageError(InputError):
    """An image that cannot be classified; ``code`` is a short name for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, str(self))


@dataclass(frozen=True)
class ImageLimits:
    """How much of an image is accepted.

    Attributes:
        max_bytes: Of the file.
        max_pixels: Of the picture; checked from its header, before anything is unpacked.
    """

    max_bytes: int = 20 * 2**20
    max_pixels: int = 50_000_000

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, got {getattr(self, name)}.")


class _Silence:
    """``warnings.catch_warnings`` for threads: the first one in silences warnings, the last one out restores them.

    Filters belong to the whole process. Threads that each put back what they found would leave those of
    another behind, and silence for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._caught.__exit__(None, None, None)


_silence = _Silence()


def decode_image(data: bytes, limits: ImageLimits | None = None) -> Pixels:
    """Read an image file as RGB.

    Of an animation the first frame is taken; rotation notes of cameras are followed; what is transparent
    is laid on white; 16 bits per channel become 8; CMYK and grey become RGB.

    Args:
        data: The bytes of a JPEG, PNG, WebP, GIF, BMP or TIFF file.
        limits: How large it may be.

    Returns:
        The picture, uint8, ``(height, width, 3)``.

    Raises:
        ImageError: If it is not an image, broken, or too large.
    """
    limits = limits or ImageLimits()
    if not data:
        raise ImageError("empty", "image: there are no bytes; send the content of an image file.")
    if len(data) > limits.max_bytes:
        raise ImageError(
            "too_many_bytes", f"image: {len(data):,} bytes, and at most {limits.max_bytes:,} are accepted."
        )
    try:
        # Pillow warns about size, which is checked here, and about odd metadata, which is not used.
        with _silence, Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _require_size(image, limits)
            image.seek(0)
            return np.asarray(_to_rgb(image), dtype=np.uint8).copy()
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(
            "not_an_image", f"image: these {len(data):,} bytes are no {', '.join(FORMATS)} file."
        ) from None
    except Image.DecompressionBombError:
        raise ImageError(
            "too_many_pixels", f"image: it has more than the {limits.max_pixels:,} pixels that are accepted."
        ) from None
    except MemoryError:
        raise ImageError("too_many_pixels", "image: it does not fit into memory.") from None
    except Exception as error:  # a decoder may raise anything on bytes made to break it
        reason = str(error) or type(error).__name__
        raise ImageError("broken", f"image: the file is broken or incomplete ({reason[:200]}).") from None


def _require_size(image: Image.Image, limits: ImageLimits) -> None:
    width, height = image.size
    if width * height > limits.max_pixels:
        raise ImageError(
            "too_many_pixels",
            f"image: {width:,} x {height:,} pixels, and at most {limits.max_pixels:,} in all are accepted.",
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    image.load()
    image = _upright(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        on_white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(on_white, image.convert("RGBA"))
    return image.convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # the note about rotation is broken, but the picture is whole
        return image


def _to_eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ImageError("not_finite", "image: it has pixels that are NaN or infinite.")
    # Files with floats are on the scale of their values: 0..1, 0..255 or 0..65535.
    top = (
        65535 if image.mode.startswith("I") else 1 if values.max() <= 1 else 255 if values.max() <= 255 else 65535
    )
    return Image.fromarray(np.clip(np.rint(values * (255 / top)), 0, 255).astype(np.uint8))


def read_array(values: Any, limits: ImageLimits | None = None) -> Pixels:
    """Take numbers as an image.

    Args:
        values: An array, or nested lists, ``(height, width, 3)`` or ``(height, width)`` for grey: whole numbers
            from 0 to 255, or fractions from 0 to 1 (an array of floats, or lists with a fraction in them).
        limits: How large it may be.

    Returns:
        The picture, uint8, ``(height, width, 3)``.

    Raises:
        ImageError: If it is something else.
    """
    limits = limits or ImageLimits()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise ImageError("not_an_array", "image: the rows of an array must be of one length.") from None
    if array.dtype.kind not in "uif" or array.dtype.itemsize > 8:
        raise ImageError("not_an_array", f"image: an array must hold numbers, but holds {array.dtype}.")
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ImageError(
            "wrong_shape", f"image: an array must be (height, width, 3), got {tuple(np.shape(values))}."
        )
    if array.shape[0] * array.shape[1] > limits.max_pixels:
        raise ImageError(
            "too_many_pixels",
            f"image: {array.shape[1]:,} x {array.shape[0]:,} pixels, and at most {limits.max_pixels:,} in all "
            "are accepted.",
        )
    if not np.isfinite(array).all():
        raise ImageError("not_finite", "image: the array has values that are NaN or infinite.")
    top = 1 if array.dtype.kind == "f" else 255
    low, high = array.min(), array.max()
    if low < 0 or high > top:
        raise ImageError(
            "out_of_range",
            f"image: {'floats' if top == 1 else 'whole numbers'} must be from 0 to {top}, got from "
            f"{low:g} to {high:g}.",
        )
    return array.astype(np.uint8) if top == 255 else np.rint(array * 255).astype(np.uint8)


@dataclass(frozen=True)
class Preparation:
    """How a picture of any size becomes the input of a network.

    The shorter side is scaled to ``size / crop`` and the middle is cut out. A picture that has the right size
    already is left alone.

    Attributes:
        size: The side of the square the network gets.
        crop: The part of the shorter side that is kept; 0.875 is usual for ImageNet networks.
    """

    size: int
    crop: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise OptionError(f"size must be at least 1, got {self.size}.")
        if not 0 < self.crop <= 1:
            raise OptionError(f"crop must be above 0 and at most 1, got {self.crop}.")

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the picture as uint8 ``(size, size, 3)``."""
        height, width = pixels.shape[:2]
        if height == width == self.size:
            return pixels
        # Cutting first keeps the work, and the memory, bounded however long and thin the picture is.
        side = min(height, width) * self.crop
        left, top = (width - side) / 2, (height - side) / 2
        scaled = Image.fromarray(pixels).resize(
            (self.size, self.size),
            Image.Resampling.BILINEAR,
            box=(left, top, left + side, top + side),
        )
        return np.asarray(scaled, dtype=np.uint8)
