"""Inputs that break careless servers, each with the answer that a careful one gives."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

from findtta.data.shapes import draw
from findtta.loadtest.payloads import ANSWERED, REJECTED, Payload, digest
from findtta.loadtest.pictures import encode, png_chunk

_PNG = b"\x89PNG\r\n\x1a\n"
_FRAMES = 3
_DEPTH = 100_000
_BOMB_SIDE = 50_000


def poisons(seed: int = 0, oversize_mb: float = 40.0) -> tuple[Payload, ...]:
    """Return one payload of every kind.

    Args:
        seed: Of the images in them.
        oversize_mb: The size of the one that is too large; it must be more than the server takes.

    Returns:
        The payloads.
    """
    # The shapes of the test set from its far end: no good request carries them.
    images = [Image.fromarray(image) for image in draw(np.arange(2**20, 2**20 + _FRAMES), seed=seed)]
    refused = [_refused(kind, media, make(images[0])) for kind, (media, make) in _REFUSED.items()]
    accepted = [_accepted(kind, media, make(images)) for kind, (media, make) in _ACCEPTED.items()]
    size = int(oversize_mb * 1e6)
    oversize = Payload(
        "oversize",
        _PNG + bytes(max(size - len(_PNG), 0)),
        "image/png",
        (),
        REJECTED,
        poisoned=True,
        may_break=True,
    )
    return (*refused, *accepted, oversize)


def _refused(kind: str, media_type: str, body: bytes) -> Payload:
    return Payload(kind, body, media_type, (), REJECTED, poisoned=True)


def _accepted(kind: str, media_type: str, body: bytes) -> Payload:
    return Payload(kind, body, media_type, (digest(body),), ANSWERED, poisoned=True)


def _truncated_jpeg(image: Image.Image) -> bytes:
    whole = encode(image, "jpeg", quality=95)
    return whole[: len(whole) * 3 // 4]


def _bomb_png(image: Image.Image) -> bytes:
    header = struct.pack(">IIBBBBB", _BOMB_SIDE, _BOMB_SIDE, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(2**20), 9)
    return _PNG + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")


def _nan_npy(image: Image.Image) -> bytes:
    pixels = np.asarray(image, np.float32) / 255
    pixels[3, 5, 1] = np.nan
    return encode(pixels, "npy")


def _huge_npy(image: Image.Image) -> bytes:
    whole = encode(np.zeros((10_000, 1, 3), np.uint8), "npy")
    header = whole[: 10 + int.from_bytes(whole[8:10], "little")]
    # As many characters in as out, since the header says how long it is.
    return header.replace(b"(10000, 1, 3), }         ", b"(10000, 1000000000, 3), }") + bytes(12)


def _pickle_npy(image: Image.Image) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"not": "pixels"}], dtype=object), allow_pickle=True)
    return file.getvalue()


def _deep_json(image: Image.Image) -> bytes:
    return b'{"images": ' + b"[" * _DEPTH + b"]" * _DEPTH + b"}"


def _garbage(image: Image.Image) -> bytes:
    return np.random.default_rng(0).bytes(1000)


def _sixteen_bits(images: list[Image.Image]) -> bytes:
    return encode(np.asarray(images[0].convert("L"), np.uint16) * np.uint16(257), "png")


def _animated(format: str) -> Callable[[list[Image.Image]], bytes]:
    return lambda images: encode(images[0], format, save_all=True, append_images=images[1:], duration=100)


_REFUSED: dict[str, tuple[str, Callable[[Image.Image], bytes]]] = {
    "truncated-jpeg": ("image/jpeg", _truncated_jpeg),
    "bomb-png": ("image/png", _bomb_png),
    "nan-npy": ("application/x-npy", _nan_npy),
    "huge-npy": ("application/x-npy", _huge_npy),
    "pickle-npy": ("application/x-npy", _pickle_npy),
    "empty": ("image/png", lambda image: b""),
    "garbage": ("image/jpeg", _garbage),
    "wrong-type": ("text/plain", lambda image: encode(image, "png")),
    "deep-json": ("application/json", _deep_json),
}
_ACCEPTED: dict[str, tuple[str, Callable[[list[Image.Image]], bytes]]] = {
    "one-pixel": ("image/png", lambda images: encode(images[0].resize((1, 1)), "png")),
    "animated-gif": ("image/gif", _animated("gif")),
    "animated-webp": ("image/webp", _animated("webp")),
    "animated-png": ("image/png", _animated("png")),
    "cmyk-jpeg": ("image/jpeg", lambda images: encode(images[0].convert("CMYK"), "jpeg")),
    "16-bit-png": ("image/png", _sixteen_bits),
}
