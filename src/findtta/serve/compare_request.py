"""What the page sends to be compared, taken apart: a request with everything checked, or an error in words."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from dataclasses import dataclass

from findtta.data.dataset import MAIN_CORRUPTIONS, SEVERITIES
from findtta.errors import close_matches
from findtta.images import ImageError
from findtta.serve.requests import RequestError

MAX_IMAGES = 64
NONE, MIXED = "none", "mixed"
CHOICES = (NONE, MIXED, *MAIN_CORRUPTIONS)

_LONGEST_NAME = 200
_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class NamedImage:
    """An image file as it came.

    Attributes:
        name: What the sender calls it.
        data: The file, in base64; a ``data:`` URL is accepted, too.
    """

    name: str
    data: str


@dataclass(frozen=True)
class CompareRequest:
    """What to compare.

    Attributes:
        images: From one to 64 files.
        corruption: One of the fifteen, ``"mixed"`` for another one on each image, or ``"none"``.
        severity: From 1 to 5; 0 leaves the images as they are.
        seed: Of everything that is drawn at random.
    """

    images: tuple[NamedImage, ...]
    corruption: str = MIXED
    severity: int = 5
    seed: int = 0


def parse_request(body: bytes) -> CompareRequest:
    """Read the body of a request.

    Args:
        body: A ``CompareRequest`` as JSON, such as
            ``{"images": [{"name": "a.png", "data": base64}], "corruption": "fog", "severity": 3, "seed": 0}``.

    Returns:
        The request; its images are not decoded yet.

    Raises:
        RequestError: If it is something else; the message says what.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "bad_json", f"the body is no JSON ({str(error)[:200]}).") from error
    if not isinstance(fields, dict):
        raise _wrong("body", 'an object such as {"images": [...], "corruption": "fog", "severity": 3}', fields)
    unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(CompareRequest)})
    if unknown:
        raise RequestError(422, "bad_value", f"body: there is no field {unknown[0][:_LONGEST_NAME]!r}.")
    corruption = fields.get("corruption", MIXED)
    if corruption not in CHOICES:
        hint = close_matches(corruption[:_LONGEST_NAME], CHOICES) if isinstance(corruption, str) else ""
        raise _wrong("corruption", f"one of {', '.join(CHOICES)}", corruption, hint)
    return CompareRequest(
        images=_images(fields.get("images")),
        corruption=corruption,
        severity=_whole_number("severity", fields.get("severity", 5), 0, max(SEVERITIES)),
        seed=_whole_number("seed", fields.get("seed", 0), -_LARGEST_SEED, _LARGEST_SEED),
    )


def _images(entries: object) -> tuple[NamedImage, ...]:
    if not isinstance(entries, list) or not entries:
        raise _wrong("images", f"a list of 1 to {MAX_IMAGES} images", entries)
    if len(entries) > MAX_IMAGES:
        raise RequestError(
            413, "too_many_images", f"images: {len(entries)} came, and at most {MAX_IMAGES} are accepted at once."
        )
    return tuple(_image(index, entry) for index, entry in enumerate(entries))


def _image(index: int, entry: object) -> NamedImage:
    if not isinstance(entry, dict) or not isinstance(entry.get("data"), str):
        raise _wrong(f"images[{index}]", 'an object {"name": text, "data": base64}', entry)
    name = entry.get("name", f"image {index + 1}")
    if not isinstance(name, str):
        raise _wrong(f"images[{index}].name", "text", name)
    # JSON can spell halves of characters, which no answer could be written with.
    return NamedImage(name[:_LONGEST_NAME].encode(errors="replace").decode(), entry["data"])


def _whole_number(argument: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(argument, f"a whole number from {low} to {high}", value)
    return value


def _wrong(argument: str, expected: str, value: object, hint: str = "") -> RequestError:
    got = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return RequestError(422, "bad_value", f"{argument} must be {expected}, got {got[:_LONGEST_NAME]}.{hint}")


def file_bytes(data: str) -> bytes:
    """Return the file that a base64 text, or a ``data:`` URL, holds."""
    _, comma, rest = data.partition(",") if data.startswith("data:") else ("", "", "")
    try:
        return base64.b64decode(rest if comma else data, validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("not_base64", "image: its data is not base64.") from None


#: What OpenAPI says of the body.
BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["images"],
                "properties": {
                    "images": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": MAX_IMAGES,
                        "items": {
                            "type": "object",
                            "required": ["data"],
                            "properties": {
                                "name": {"type": "string"},
                                "data": {"type": "string", "description": "base64, or a data: URL with base64"},
                            },
                        },
                    },
                    "corruption": {"type": "string", "enum": list(CHOICES), "default": MIXED},
                    "severity": {"type": "integer", "minimum": 0, "maximum": max(SEVERITIES), "default": 5},
                    "seed": {"type": "integer", "default": 0},
                },
            }
        }
    },
}
