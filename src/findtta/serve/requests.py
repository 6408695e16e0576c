"""What clients send, taken apart: whatever arrives becomes a list of images, or an error with an HTTP status."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Any

import numpy as np

from findtta.errors import FindTTAError
from findtta.images import ImageError, ImageLimits, Pixels, Preprocessing, decode_image, read_array

IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")
ARRAY_TYPE = "application/x-npy"
_NPY_HEADER_BYTES = 4096  # far more than the header of an image needs
_NPY_HEADER = re.compile(
    rb"\{\s*'descr':\s*'(?P<type>[<>|=]?[a-zA-Z]\d{0,2})',\s*'fortran_order':\s*(?P<columns>True|False),"
    rb"\s*'shape':\s*\((?P<shape>[-\d, ]{0,1000})\),?\s*\}\s*"
)
BYTES_TYPE = "application/octet-stream"
_ACCEPTED = (*IMAGE_TYPES, BYTES_TYPE, ARRAY_TYPE, "multipart/form-data", "application/json")
_NPY_MAGIC = b"\x93NUMPY"


class RequestError(FindTTAError):
    """A request that is refused.

    Attributes:
        status: The HTTP status.
        code: A short name for programs.
        images: Which images are at fault, by their place in the request, and why.
        retry_after_s: When to try again, if that can help.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        images: Sequence[Mapping[str, Any]] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.images = tuple(images)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class RequestLimits:
    """How much one request may bring.

    Attributes:
        image: The largest image.
        max_images: The most images.
        max_json_bytes: The largest body that is JSON.
    """

    image: ImageLimits
    max_images: int
    max_json_bytes: int


@dataclass(frozen=True)
class Item:
    """One image as it was received.

    Attributes:
        data: The bytes of a file, or nested lists of numbers.
        is_array: Whether the bytes are an npy file.
    """

    data: bytes | list[Any]
    is_array: bool = False

    @property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the bytes; lists count as JSON without spaces."""
        data = self.data
        content = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
        return hashlib.sha256(content).hexdigest()[:16]

    def pixels(self, limits: ImageLimits) -> Pixels:
        """Read the image; raises an ``ImageError`` if it is none."""
        if isinstance(self.data, list):
            _require_numbers(self.data)
            return read_array(self.data, limits)
        return read_npy(self.data, limits) if self.is_array else decode_image(self.data, limits)


def parse(content_type: str | None, body: bytes, limits: RequestLimits) -> list[Item]:
    """Find the images in the body of a request, without decoding them.

    Args:
        content_type: The header of that name.
        body: The whole body.
        limits: How much is accepted.

    Returns:
        At least one image.

    Raises:
        RequestError: If there is none, there are too many, or the body is not what the header says.
    """
    header = Message()
    header["content-type"] = _one_line(content_type or "")
    kind = header.get_content_type() if content_type else ""
    if kind == "application/json":
        items = _from_json(body, limits)
    elif kind == "multipart/form-data":
        items = _from_multipart(body, header.get_boundary(), limits)
    elif kind in (*IMAGE_TYPES, BYTES_TYPE, ARRAY_TYPE):
        items = [_from_bytes(kind, body)]
    else:
        raise RequestError(
            415,
            "unsupported_type",
            f"Content-Type must be one of {', '.join(_ACCEPTED)}, got {(content_type or '')[:100]!r}.",
        )
    _require_count(len(items), limits)
    return items


def read_pictures(items: Sequence[Item], limits: ImageLimits, prepare: Preprocessing) -> list[Pixels]:
    """Decode all images of a request and bring them to the network's size; one bad image refuses all of them."""
    pictures, errors = [], []
    for index, item in enumerate(items):
        try:
            pictures.append(prepare(item.pixels(limits)))
        except ImageError as error:
            errors.append({"index": index, "code": error.code, "message": str(error)})
    if errors:
        others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise RequestError(
            422,
            "bad_image",
            f"image {errors[0]['index']} of {len(items)} cannot be classified: {errors[0]['message']}{others}",
            images=errors,
        )
    return pictures


def read_npy(data: bytes, limits: ImageLimits) -> Pixels:
    """Read an npy file as an image.

    The header is checked against the number of bytes before memory is taken; nothing in the file is executed.
    """
    if len(data) > limits.max_bytes:
        raise ImageError(
            "too_many_bytes", f"image: {len(data):,} bytes, and at most {limits.max_bytes:,} are accepted."
        )
    shape, by_columns, dtype, begin = _read_npy_header(data)
    if dtype.kind not in "uif":
        raise ImageError("not_an_array", f"image: an array must hold numbers, but holds {dtype}.")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise ImageError("wrong_shape", f"image: an array must be (height, width, 3), got {shape!r:.100}.")
    content = memoryview(data)[begin:]
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ImageError("broken", f"image: the npy file says {shape} of {dtype}, got {len(content):,} bytes.")
    array = np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")
    return read_array(array, limits)


def _read_npy_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether columns come first, type, and where the numbers begin.

    numpy's own reader parses the header as Python, which in Python 3.11 now and then fails when several threads
    do so at once; and bytes from outside need no such power.
    """
    size = {b"\x01\x00": 2, b"\x02\x00": 4}.get(data[6:8], 0)
    begin = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    found = _NPY_HEADER.fullmatch(data[8 + size : min(begin, _NPY_HEADER_BYTES)])
    try:
        if not data.startswith(_NPY_MAGIC) or not size or not found:
            raise ValueError("no such header")
        dtype = np.dtype(found["type"].decode())
    except (TypeError, ValueError):
        raise ImageError("not_an_array", "image: the bytes are no npy file of version 1 or 2.") from None
    shape = tuple(int(side) for side in re.findall(rb"-?\d+", found["shape"]))
    return shape, found["columns"] == b"True", dtype, begin


def _require_numbers(rows: list[Any]) -> None:
    """Refuse lists with anything but numbers in them, which could become arrays of any size."""
    kinds: set[type] = set()
    for row in rows:
        cells = row if isinstance(row, list) else [row]
        for cell in cells:
            kinds.update(map(type, cell) if isinstance(cell, list) else (type(cell),))
    if not kinds <= {int, float}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds - {int, float}))
        raise ImageError("not_an_array", f"image: rows of pixels must hold numbers, but hold {names}.")


def _one_line(header: str) -> str:
    return " ".join(header.split())


def _from_bytes(kind: str, data: bytes) -> Item:
    return Item(data, is_array=kind == ARRAY_TYPE or (kind == BYTES_TYPE and data.startswith(_NPY_MAGIC)))


def _require_count(count: int, limits: RequestLimits) -> None:
    if count == 0:
        raise RequestError(400, "no_images", "the request has no image; send at least one.")
    if count > limits.max_images:
        raise RequestError(
            413,
            "too_many_images",
            f"the request has {count} images, and at most {limits.max_images} are accepted.",
        )


def _from_json(body: bytes, limits: RequestLimits) -> list[Item]:
    if len(body) > limits.max_json_bytes:
        raise RequestError(
            413,
            "body_too_large",
            f"the JSON has {len(body):,} bytes, and at most {limits.max_json_bytes:,} are accepted; "
            "multipart/form-data takes larger images.",
        )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "bad_json", f"the body is no JSON ({str(error)[:200]}).") from error
    images = document.get("images") if isinstance(document, dict) else None
    if not isinstance(images, list):
        raise RequestError(400, "bad_json", 'the JSON must look like {"images": [...]}.')
    _require_count(len(images), limits)  # before work is done for each
    return [_from_json_value(index, image) for index, image in enumerate(images)]


def _from_json_value(index: int, image: Any) -> Item:
    if isinstance(image, list):
        return Item(image)
    if not isinstance(image, str):
        raise _bad_value(index, f"must be text or nested lists, got {type(image).__name__}")
    head, comma, tail = image.partition(",") if image.startswith("data:") else ("", "", image)
    if head and not (comma and head.endswith(";base64")):
        raise _bad_value(index, "is a data: URL that is not base64")
    try:
        data = base64.b64decode("".join(tail.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad_value(index, "is not base64") from error
    return _from_bytes(BYTES_TYPE, data)


def _bad_value(index: int, reason: str) -> RequestError:
    fault = {"index": index, "code": "bad_value", "message": f"image {reason}."}
    return RequestError(422, "bad_image", f"image {index} {reason}.", images=[fault])


def _from_multipart(body: bytes, boundary: str | None, limits: RequestLimits) -> list[Item]:
    if not boundary or not boundary.isascii():
        raise RequestError(400, "bad_multipart", "Content-Type multipart/form-data must name its boundary.")
    mark = b"\r\n--" + boundary.encode()
    # The first mark may start the body; a split costs no more than the parts that are accepted.
    pieces = (b"\r\n" + body).split(mark, limits.max_images + 2)
    if len(pieces) < 2:
        raise RequestError(400, "bad_multipart", "the body does not have the boundary that Content-Type names.")
    items: list[Item] = []
    for piece in pieces[1:]:
        if piece.startswith(b"--"):
            return items
        _require_count(len(items) + 1, limits)
        items.append(_from_part(piece))
    raise RequestError(400, "bad_multipart", "the last boundary is missing: the body is incomplete.")


def _from_part(piece: bytes) -> Item:
    _, newline, rest = piece.partition(b"\r\n")
    head, blank, data = (b"\r\n" + rest).partition(b"\r\n\r\n")
    if not newline or not blank:
        raise RequestError(400, "bad_multipart", "a part has no end of its headers.")
    header = Message()
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-type":
            header["content-type"] = _one_line(value)
            break
    kind = header.get_content_type() if "content-type" in header else BYTES_TYPE
    if kind not in (*IMAGE_TYPES, BYTES_TYPE, ARRAY_TYPE):
        raise RequestError(415, "unsupported_type", f"a part must be an image, got {kind[:100]!r}.")
    return _from_bytes(kind, data)
