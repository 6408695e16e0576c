"""Good images without end: a pool of encoded ones, each sending stamped with a number of its own.

Drawing and encoding costs more than sending, and the generator shares its machine with the server. So a few
hundred images are encoded beforehand, and what makes each request's bytes unlike all others is a comment in the
file, which changes no pixel. Only arrays have no room for a comment; there the number takes the place of the last
pixels.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from findtta.data.shapes import draw
from findtta.errors import InputError, OptionError
from findtta.images import SUFFIXES

MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "npy": "application/x-npy"}
_POOL = 256


@dataclass(frozen=True)
class Picture:
    """One encoded image.

    Attributes:
        format: ``"png"``, ``"jpeg"``, ``"webp"`` or ``"npy"``.
        data: The bytes of the file.
    """

    format: str
    data: bytes

    @property
    def media_type(self) -> str:
        """What to declare the bytes as."""
        return MEDIA_TYPES[self.format]

    def stamped(self, number: int) -> Picture:
        """Return the image with a number in it, and with that bytes that no other number has."""
        return Picture(self.format, _STAMPS[self.format](self.data, number.to_bytes(8, "big")))


@dataclass(frozen=True)
class Pictures:
    """As many different images as anybody asks for.

    Attributes:
        pool: The encoded images behind them.
    """

    pool: tuple[Picture, ...]

    @classmethod
    def open(cls, source: str, seed: int = 0) -> Pictures:
        """Open what ``--images`` names.

        Args:
            source: ``"shapes"``, or a folder of images; folders in it are searched, too.
            seed: Of the shapes.

        Returns:
            The images.

        Raises:
            OptionError: If there is no such folder.
            InputError: If the folder has no images, or one that cannot be read.
        """
        return cls(_drawn(seed) if source == "shapes" else _found(Path(source)))

    def numbered(self, number: int) -> Picture:
        """Return image ``number``."""
        return self.pool[number % len(self.pool)].stamped(number)


def encode(pixels: Image.Image | np.ndarray, format: str, **how: object) -> bytes:
    """Return an image as the bytes of a file.

    Args:
        pixels: The image, or an array that becomes one, and for ``"npy"`` an array.
        format: One of Pillow's, or ``"npy"``.
        how: What Pillow's ``save`` takes.

    Returns:
        The bytes.
    """
    file = io.BytesIO()
    if format == "npy":
        np.save(file, np.asarray(pixels), allow_pickle=False)
    else:
        image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
        image.save(file, format, **how)
    return file.getvalue()


def _drawn(seed: int) -> tuple[Picture, ...]:
    images = draw(np.arange(_POOL), seed=seed)
    formats = list(MEDIA_TYPES)
    return tuple(
        Picture(format, encode(image, format))
        for image, format in zip(images, formats * (_POOL // len(formats)), strict=True)
    )


def _found(folder: Path) -> tuple[Picture, ...]:
    if not folder.is_dir():
        raise OptionError(f"images must be 'shapes' or a folder of images, got {str(folder)!r}.")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise InputError(f"{folder} must hold images ({', '.join(sorted(SUFFIXES))}), got none.")
    return tuple(_read(file) for file in files[:_POOL])


def _read(file: Path) -> Picture:
    try:
        data = file.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            format = (image.format or "").lower()
            if format in _STAMPS:
                return Picture(format, data)
            return Picture("png", encode(image.convert("RGB"), "png"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} must be an image that can be read, but it is not: {error}.") from error


def _stamp_png(data: bytes, number: bytes) -> bytes:
    after_header = 8 + 25  # the signature, and the chunk that is always first
    return data[:after_header] + png_chunk(b"tEXt", b"Comment\0" + number.hex().encode()) + data[after_header:]


def png_chunk(name: bytes, content: bytes) -> bytes:
    """Return one chunk of a PNG file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _stamp_jpeg(data: bytes, number: bytes) -> bytes:
    # Behind the first segment: some readers know the format by that one being the first.
    after_first = 4 + int.from_bytes(data[4:6], "big")
    return data[:after_first] + b"\xff\xfe\x00\x0a" + number + data[after_first:]


def _stamp_webp(data: bytes, number: bytes) -> bytes:
    body = data[8:] + b"note" + struct.pack("<I", len(number)) + number
    return data[:4] + struct.pack("<I", len(body)) + body


def _stamp_npy(data: bytes, number: bytes) -> bytes:
    return data[: -len(number)] + number


_STAMPS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "png": _stamp_png,
    "jpeg": _stamp_jpeg,
    "webp": _stamp_webp,
    "npy": _stamp_npy,
}
