"""From the body of a request to images: whatever a client sends is read, or refused with an HTTP status."""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from findtta._io import finite
from findtta.errors import FindTTAError
from findtta.images import ImageError, ImageLimits, Pixels, Preprocessing, read_array, read_image
from findtta.serve.settings import Settings

#: What OpenAPI says of requests with images; the media types in it are those that are accepted.
OPENAPI = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
_JSON, _FORM = "application/json", "multipart/form-data"
TYPES = tuple(OPENAPI["requestBody"]["content"])
FILE_TYPES = tuple(kind for kind in TYPES if kind not in (_JSON, _FORM))
#: The header that says how many bytes of a body are JSON; binary tensors follow.
JSON_BYTES = "inference-header-content-length"
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER_BYTES = 4096  # far more than the header of an image needs
_NPY_HEADER = re.compile(
    rb"\{\s*'descr':\s*'(?P<type>[<>|=]?[a-zA-Z]\d{0,2})',\s*'fortran_order':\s*(?P<columns>True|False),"
    rb"\s*'shape':\s*\((?P<shape>[\d, ]{0,1000})\),?\s*\}\s*"
)

Chunks = AsyncGenerator[bytes, None]
#: An image as it was received: the bytes of a file, base64 text, an array, or nested lists of numbers.
Received = Any
Body = TypeVar("Body", bound=BaseModel)


@dataclass(eq=False)
class RequestError(FindTTAError):
    """A request that is refused."""

    status: int  # of HTTP
    code: str  # a short name for programs
    message: str
    images: Sequence[Mapping[str, Any]] = ()  # those at fault, by their index in the request, and why
    retry_after_s: int | None = None  # when to try again, if that can help

    def __str__(self) -> str:
        return self.message


def busy(reason: str) -> RequestError:
    """Return the refusal of a request that may well be accepted a little later."""
    return RequestError(503, "busy", f"{reason}; try again soon.", retry_after_s=1)


def too_many_images(most: int, count: object) -> RequestError:
    """Return the refusal of a request with too many images."""
    return RequestError(413, "too_many_images", f"a request must have at most {most} images, got {count}.")


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response in JSON, with null for what is NaN or infinite."""
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError:  # rare, and to look at every value takes longer than to write it
        text = json.dumps(finite(content))
    return Response(text.encode(), status, headers, "application/json")


class PredictRequest(BaseModel):
    """The body of a request that is JSON."""

    model_config = ConfigDict(strict=True)

    images: list[Any]


def parse_json(kind: type[Body], body: bytes) -> Body:
    """Read a JSON body; raises ``RequestError`` with what is wrong in it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise bad_value(error.errors(include_url=False)[0]) from error


def bad_value(error: Mapping[str, Any]) -> RequestError:
    """Turn one of pydantic's errors into a refusal."""
    if error["type"] == "json_invalid":
        return RequestError(400, "bad_json", f"the body must be JSON ({error['msg'][:200]}).")
    if error["type"] == "too_long":
        return too_many_images(error["ctx"]["max_length"], error["ctx"]["actual_length"])
    if error["type"] == "value_error":
        return RequestError(422, "bad_value", str(error["ctx"]["error"]))
    where = ".".join(map(str, error["loc"])) or "body"
    value = error["input"]
    got = repr(value)[:100] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return RequestError(422, "bad_value", f"{where}: {error['msg']}, got {got}.")


@contextlib.asynccontextmanager
async def reading(timeout_s: float) -> AsyncIterator[None]:
    """Refuse a request whose body takes longer than this to arrive, or never ends."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise RequestError(408, "slow_body", f"the body must arrive within {timeout_s:g} s.") from error
    except ClientDisconnect as error:  # nobody will read this, but it is counted
        raise RequestError(400, "incomplete_body", "the connection ended before the body did.") from error


def largest_body(headers: Headers, settings: Settings) -> int:
    """Return how many bytes a body may have; what is not declared as files may be JSON."""
    are_files = _media_type(headers.get("content-type", "")) in (*FILE_TYPES, _FORM) or JSON_BYTES in headers
    return settings.max_body_bytes if are_files else settings.max_json_bytes


async def receive(headers: Headers, chunks: Chunks, max_images: int) -> bytes | list[Received]:
    """Read a body as it arrives, without decoding images.

    Returns:
        The images, or a JSON document that is not parsed yet, since that may take long.
    """
    content_type = headers.get("content-type", "")
    kind = _media_type(content_type)
    if kind not in TYPES:
        reason = f"Content-Type must be one of {', '.join(TYPES)}, got {content_type[:100]!r}."
        raise RequestError(415, "unsupported_type", reason)
    if kind == _FORM:
        return await _receive_files(headers, chunks, max_images)
    body = b"".join([chunk async for chunk in chunks])
    return body if kind == _JSON else [body]


class _FileParser(MultiPartParser):
    """Starlette's parser, with files in memory (the server bounds bodies) and an end that is required."""

    spool_max_size = sys.maxsize
    complete = False

    def on_end(self) -> None:
        """Note that the last boundary was read."""
        self.complete = True


async def _receive_files(headers: Headers, chunks: Chunks, max_images: int) -> list[Received]:
    async def to_the_end() -> Chunks:
        async for chunk in chunks:
            yield chunk
        if not parser.complete:  # where Starlette would drop the last part without an error
            raise MultiPartException("the last boundary is missing.")

    parser = _FileParser(headers, to_the_end(), max_files=max_images, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise too_many_images(max_images, "more") from error
        reason = "every part must be a file." if error.message.startswith("Too many fields") else error.message
        raise RequestError(400, "bad_multipart", f"the multipart body is not valid: {reason}") from error
    try:
        files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        for file in files:
            kind = _media_type(file.content_type or FILE_TYPES[0])
            if kind not in FILE_TYPES:
                raise RequestError(415, "unsupported_type", f"a part must be an image, got {kind[:100]!r}.")
        return [file.file.read() for file in files]
    finally:
        await form.close()


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def read_request(
    content: bytes | list[Received], settings: Settings, preprocessing: Preprocessing
) -> tuple[list[Pixels], list[str]]:
    """Return the images of a request, as inputs of the model, and the digest of each."""
    images = parse_json(PredictRequest, content).images if isinstance(content, bytes) else content
    require_count(len(images), settings)
    return read_images(images, settings.image_limits, preprocessing)


def require_count(count: int, settings: Settings) -> None:
    """Refuse a request without images, or with too many."""
    if not count:
        raise RequestError(400, "no_images", "the request must have at least one image.")
    if count > settings.most_images:
        raise too_many_images(settings.most_images, count)


def read_images(
    images: Sequence[Received], limits: ImageLimits, preprocessing: Preprocessing, names: Sequence[str] = ()
) -> tuple[list[Pixels], list[str]]:
    """Decode images and bring them to the model's size; one bad image refuses all of them.

    The error tells which are bad, by ``names`` if the sender gave any, and otherwise by their indices.

    Returns:
        The images, and the first 16 hexadecimal digits of the SHA-256 of the bytes of each (of nested lists: as
        JSON without spaces).
    """
    pixels, digests = [], []
    faults: list[dict[str, Any]] = []
    for index, image in enumerate(images):
        try:  # one after another, so that only one image of full size is in memory
            data = _decode_base64(image) if isinstance(image, str) else image
            pixels.append(preprocessing(_decode(data, limits)))
            digests.append(hashlib.sha256(_content(data)).hexdigest()[:16])
        except ImageError as error:
            name = names[index] if names else f"image {index}"
            faults.append({"index": index, "name": name, "code": error.code, "message": str(error)})
    if faults:
        told = "; ".join(f"{fault['name']}: {fault['message'].removeprefix('image: ')}" for fault in faults[:3])
        more = f" And {len(faults) - 3} more." if len(faults) > 3 else ""
        raise RequestError(422, "bad_image", f"{told}{more}", images=faults)
    return pixels, digests


def _content(data: Received) -> bytes:
    if isinstance(data, np.ndarray):
        return data.tobytes()
    return data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()


def _decode_base64(text: str) -> bytes:
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not head.endswith(";base64"):
            raise ImageError("bad_value", "image: a data: URL must be in base64.")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise ImageError("bad_value", "image: the text must be base64.") from None


def _decode(data: object, limits: ImageLimits) -> Pixels:
    if isinstance(data, np.ndarray):
        return read_array(data, limits)
    if isinstance(data, list):
        # Lists with anything but numbers in them could become arrays of any size.
        if strange := types_within(data) - {int, float}:
            names = ", ".join(sorted(kind.__name__ for kind in strange))
            raise ImageError("not_an_array", f"image: rows of pixels must hold numbers, but hold {names}.")
        return read_array(data, limits)
    if not isinstance(data, bytes):
        raise ImageError("bad_value", f"image: must be text or nested lists, got {type(data).__name__}.")
    return read_npy(data, limits) if data.startswith(_NPY_MAGIC) else read_image(data, limits)


def read_npy(data: bytes, limits: ImageLimits) -> Pixels:
    """Read an npy file as an image; no memory is taken for it, and nothing in it is executed.

    numpy's own reader parses the header as Python, which in Python 3.11 now and then fails when several threads
    do so at once; and bytes from outside need no such power.
    """
    if len(data) > limits.max_bytes:
        raise ImageError(
            "too_many_bytes", f"image: {len(data):,} bytes, and at most {limits.max_bytes:,} are accepted."
        )
    size = {b"\x01\x00": 2, b"\x02\x00": 4}.get(data[6:8], 0)
    begin = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    header = _NPY_HEADER.fullmatch(data[8 + size : min(begin, _NPY_HEADER_BYTES)])
    if not size or not header:
        raise ImageError("not_an_array", "image: the bytes must be an npy file of version 1 or 2.")
    try:
        shape = [int(side) for side in re.findall(rb"\d+", header["shape"])]
        numbers = np.frombuffer(data, np.dtype(header["type"].decode()), offset=begin)
        array = numbers.reshape(shape, order="F" if header["columns"] == b"True" else "C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ImageError("broken", f"image: the npy file is broken ({str(error)[:200]}).") from None
    return read_array(array, limits)


def types_within(values: list[Any]) -> set[type]:
    """Return the types of what nested lists hold."""
    return set[type]().union(
        *(types_within(value) if isinstance(value, list) else {type(value)} for value in values)
    )
