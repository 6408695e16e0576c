"""Requests with known results for the load test: images that no other request carries, and poisoned inputs."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from findtta.data.shapes import draw
from findtta.errors import InputError
from findtta.images import SUFFIXES, read_image

#: Statuses with which a server refuses what it cannot read and never will.
REJECTED = frozenset({400, 413, 415, 422})
MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "npy": "application/x-npy"}
_POOL = 256
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Payload:
    """The body of one request, and the response that a correct server gives.

    Attributes:
        kind: What it is, such as ``"png"`` or ``"truncated-jpeg"``.
        body: The bytes to send.
        content_type: What they are declared as.
        digests: Of the images, in the order of the predictions.
        accepts: The statuses that are correct.
        poisoned: Whether it is meant to break a server.
        may_break: Whether the server may close the connection instead of answering, as it may when it does not
            read a body to its end.
    """

    kind: str
    body: bytes
    content_type: str
    digests: tuple[str, ...] = ()
    accepts: frozenset[int] = frozenset({200})
    poisoned: bool = False
    may_break: bool = False


def digest(data: bytes) -> str:
    """Return the digest that the server gives an image: the beginning of the SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def encode(pixels: Any, format: str, **options: Any) -> bytes:
    """Return an image or an array as the bytes of a file: one of Pillow's formats, or ``"npy"``."""
    file = io.BytesIO()
    if format == "npy":
        np.save(file, np.asarray(pixels), allow_pickle=False)
    else:
        image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
        image.save(file, format, **options)
    return file.getvalue()


class Inputs:
    """What each request carries: a pure function of the seed and the number of the request.

    Drawing and encoding costs more than sending, and the load test shares its machine with the server. So a few
    hundred images are encoded beforehand, and each request gets one with its own number stamped into it.

    Args:
        source: ``"shapes"``, which are drawn, or a folder of images.
        requests: The number of requests.
        bad: The fraction of poisoned requests; each kind of poison comes in turn.
        per_request: Images in each good request.
        seed: Seed of the images and of the choice of poisoned requests.
        oversize_mb: Size of the poison that is too large.
    """

    def __init__(
        self, source: str, requests: int, *, bad: float, per_request: int, seed: int, oversize_mb: float
    ) -> None:
        self._pool = _drawn(seed) if source == "shapes" else _found(Path(source))
        self._per_request = per_request
        self._poisons = poisons(seed, oversize_mb) if bad else ()
        self._poisoned = np.random.default_rng([seed, 1]).random(requests) < bad
        self._turn = np.cumsum(self._poisoned) - 1

    def __getitem__(self, number: int) -> Payload:
        """Return what a request carries."""
        if self._poisoned[number]:
            return self._poisons[self._turn[number] % len(self._poisons)]
        numbers = range(number * self._per_request, (number + 1) * self._per_request)
        pool = [self._pool[image % len(self._pool)] for image in numbers]
        formats = [format for format, _ in pool]
        files = [stamp(format, data, image) for (format, data), image in zip(pool, numbers, strict=True)]
        digests = tuple(map(digest, files))
        if len(files) == 1:
            return Payload(formats[0], files[0], MEDIA_TYPES[formats[0]], digests)
        if number % 2:
            texts = [base64.b64encode(file).decode() for file in files]
            return Payload("json", json.dumps({"images": texts}).encode(), "application/json", digests)
        boundary = f"findtta-{digests[0]}"
        body = b"".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="{format}"\r\n'
            f"Content-Type: {MEDIA_TYPES[format]}\r\n\r\n".encode()
            + file
            + b"\r\n"
            for format, file in zip(formats, files, strict=True)
        )
        body += f"--{boundary}--\r\n".encode()
        return Payload("form", body, f"multipart/form-data; boundary={boundary}", digests)


@functools.cache
def _drawn(seed: int) -> list[tuple[str, bytes]]:
    formats = list(MEDIA_TYPES) * (_POOL // len(MEDIA_TYPES))
    images = draw(np.arange(_POOL), seed=seed)
    return [(format, encode(image, format)) for format, image in zip(formats, images, strict=True)]


def _found(folder: Path) -> list[tuple[str, bytes]]:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise InputError(f"images must be 'shapes' or a folder of images, got {str(folder)!r}, which has none.")
    pool = []
    for file in files[:_POOL]:
        data = file.read_bytes()
        format = {".jpg": "jpeg"}.get(file.suffix.lower(), file.suffix.lower().removeprefix("."))
        pixels = read_image(data)  # an image that cannot be read would look like a fault of the server
        pool.append((format, data) if format in MEDIA_TYPES else ("png", encode(pixels, "png")))
    return pool


def stamp(format: str, data: bytes, number: int) -> bytes:
    """Return the file of an image with a number in it, so that no two requests send the same bytes.

    The number is a comment, which changes no pixel; in arrays, which have none, it replaces the last pixels.
    """
    mark = number.to_bytes(8, "big")
    if format == "png":
        after_header = len(_PNG) + 25  # the chunk that is always first
        return data[:after_header] + _chunk(b"tEXt", b"Comment\0" + mark.hex().encode()) + data[after_header:]
    if format == "jpeg":  # behind the first segment, by which some readers know the format
        after_first = 4 + int.from_bytes(data[4:6], "big")
        return data[:after_first] + b"\xff\xfe\x00\x0a" + mark + data[after_first:]
    if format == "webp":
        body = data[8:] + b"note" + struct.pack("<I", len(mark)) + mark
        return data[:4] + struct.pack("<I", len(body)) + body
    return data[: -len(mark)] + mark


def _chunk(name: bytes, content: bytes) -> bytes:
    """Return one chunk of a PNG file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def poisons(seed: int = 0, oversize_mb: float = 40.0) -> tuple[Payload, ...]:
    """Return one payload of every kind that breaks careless servers."""
    # From the far end of the test set: no good request carries these shapes.
    images = [Image.fromarray(image) for image in draw(np.arange(2**20, 2**20 + 3), seed=seed)]
    refused = [
        Payload(kind, make(images[0]), media_type, accepts=REJECTED, poisoned=True)
        for kind, (media_type, make) in _REFUSED.items()
    ]
    read = []
    for kind, (media_type, make_odd) in _READ.items():
        body = make_odd(images)
        read.append(Payload(kind, body, media_type, (digest(body),), poisoned=True))
    large = _PNG + bytes(int(oversize_mb * 1e6))
    oversize = Payload("oversize", large, "image/png", accepts=REJECTED, poisoned=True, may_break=True)
    return (*refused, *read, oversize)


def _bomb_png(image: Image.Image) -> bytes:
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(2**20), 9)
    return _PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


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


def _animated(format: str) -> Callable[[list[Image.Image]], bytes]:
    return lambda images: encode(images[0], format, save_all=True, append_images=images[1:], duration=100)


_REFUSED: dict[str, tuple[str, Callable[[Image.Image], bytes]]] = {
    "truncated-jpeg": ("image/jpeg", lambda image: encode(image, "jpeg", quality=95)[:-400]),
    "bomb-png": ("image/png", _bomb_png),
    "nan-npy": ("application/x-npy", _nan_npy),
    "huge-npy": ("application/x-npy", _huge_npy),
    "pickle-npy": ("application/x-npy", _pickle_npy),
    "empty": ("image/png", lambda image: b""),
    "garbage": ("image/jpeg", lambda image: np.random.default_rng(0).bytes(1000)),
    "wrong-type": ("text/plain", lambda image: encode(image, "png")),
    "deep-json": ("application/json", lambda image: b'{"images": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
}
_READ: dict[str, tuple[str, Callable[[list[Image.Image]], bytes]]] = {
    "one-pixel": ("image/png", lambda images: encode(images[0].resize((1, 1)), "png")),
    "animated-gif": ("image/gif", _animated("gif")),
    "animated-webp": ("image/webp", _animated("webp")),
    "animated-png": ("image/png", _animated("png")),
    "cmyk-jpeg": ("image/jpeg", lambda images: encode(images[0].convert("CMYK"), "jpeg")),
    "16-bit-png": (
        "image/png",
        lambda images: encode(np.asarray(images[0].convert("L"), np.uint16) * np.uint16(257), "png"),
    ),
}
