"""What the page at ``/`` asks for: samples, and the same images under the plain model and under a method."""

from __future__ import annotations

import asyncio
import base64
import binascii
import dataclasses
import io
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from findtta.data.corruptions import corrupt
from findtta.data.dataset import CLEAN, MAIN_CORRUPTIONS, SEVERITIES
from findtta.data.randomness import sample_keys
from findtta.data.shapes import shapes
from findtta.errors import FindTTAError, close_matches
from findtta.inference import ImageError, ImageLimits, Predictions, Predictor, decode_image
from findtta.inference.images import Pixels
from findtta.serving.requests import RequestError
from findtta.serving.settings import Settings

MAX_IMAGES = 64
SAMPLES = 32
NONE, MIXED = "none", "mixed"
CHOICES = (NONE, MIXED, *MAIN_CORRUPTIONS)

_TOP = 5
_LONGEST_NAME = 200
_LARGEST_SEED = 2**63 - 1
# Each comparison that waits holds a body in memory and a thread of the pool that the whole server shares.
_MAX_WAITING = 4


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
    return RequestError(422, "bad_value", f"{argument} must be {expected}, but is {got[:_LONGEST_NAME]}.{hint}")


def mixture(count: int, seed: int) -> list[str]:
    """Return a corruption for each of ``count`` images: all fifteen in a drawn order, then all in another."""
    rounds = range(-(-count // len(MAIN_CORRUPTIONS)))
    positions = np.arange(len(MAIN_CORRUPTIONS))
    orders = [np.argsort(sample_keys(seed, positions, "compare", number)) for number in rounds]
    return [MAIN_CORRUPTIONS[position] for order in orders for position in order][:count]


def corrupt_each(pictures: Pixels, corruption: str, severity: int, seed: int) -> tuple[Pixels, list[str]]:
    """Corrupt a batch as the page wants it.

    Args:
        pictures: uint8, ``(samples, size, size, 3)``.
        corruption: One of ``CHOICES``.
        severity: From 0, which changes nothing, to 5.
        seed: Of everything that is drawn at random.

    Returns:
        The corrupted batch, and what became of each picture: the name of a corruption, or ``"none"``.
    """
    count = len(pictures)
    if severity == 0 or corruption == NONE:
        return pictures, [NONE] * count
    names = mixture(count, seed) if corruption == MIXED else [corruption] * count
    result = np.empty_like(pictures)
    for name in dict.fromkeys(names):
        rows = np.flatnonzero([name == other for other in names])
        result[rows] = corrupt(pictures[rows], name, severity, seed=seed, index=rows)
    return result, names


class Comparison:
    """The plain model and the served method, side by side on the same images.

    Both are loaded at the first call. Calls may come from several threads; one at a time is worked on. A method
    that remembers earlier batches remembers those compared here, not those of other requests.

    Args:
        settings: What is served.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._pair: tuple[Predictor, Predictor] | None = None

    def __call__(self, request: CompareRequest) -> dict[str, Any]:
        """Return the answers, ready for JSON.

        Raises:
            RequestError: If images cannot be read; it lists all of them.
        """
        with self._lock:
            source, method = self._predictors()
            clean = _read_all(request.images, source, self._settings.limits)
            pictures, names = corrupt_each(clean, request.corruption, request.severity, request.seed)
            plain, adapted = source(pictures), method(pictures)
        groups, drift = number_groups(adapted.groups), adapted.sample_drift
        return {
            "model": model_name(self._settings),
            "method": self._settings.method,
            "labels": list(method.labels),
            "images": [
                {
                    "name": image.name,
                    "corruption": names[row],
                    "corrupted": png_url(pictures[row]),
                    "source": _answer(plain, row, source.labels),
                    "find": _answer(adapted, row, method.labels),
                    "group": [int(number) or None for number in groups[row]],
                    "drift": _finite(drift[row]),
                }
                for row, image in enumerate(request.images)
            ],
            "layers": [
                {"name": name, "groups": int(groups[:, column].max()), "drift": _mean(adapted.drift[:, column])}
                for column, name in enumerate(method.layers)
            ],
        }

    def _predictors(self) -> tuple[Predictor, Predictor]:
        if self._pair is None:
            source = dataclasses.replace(self._settings, method="source", options={})
            self._pair = source.predictor(), self._settings.predictor()
        return self._pair


def _read_all(images: Sequence[NamedImage], predictor: Predictor, limits: ImageLimits) -> Pixels:
    size = predictor.prepare.size
    pictures = np.zeros((len(images), size, size, 3), np.uint8)
    problems = []
    for index, image in enumerate(images):
        try:
            # One after another, so that only one picture of full size is in memory.
            pictures[index] = predictor.prepare(decode_image(_file_bytes(image.data), limits))
        except ImageError as error:
            problems.append({"index": index, "name": image.name, "code": error.code, "message": str(error)})
    if problems:
        told = "; ".join(f"{problem['name']}: {problem['message']}" for problem in problems[:3])
        more = f" And {len(problems) - 3} more." if len(problems) > 3 else ""
        raise RequestError(422, "bad_image", f"{told}{more}", images=problems)
    return pictures


def _file_bytes(data: str) -> bytes:
    _, comma, rest = data.partition(",") if data.startswith("data:") else ("", "", "")
    try:
        return base64.b64decode(rest if comma else data, validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("not_base64", "image: its data is not base64.") from None


def number_groups(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the groups of every layer from 1, in the order in which they first appear; 0 where there are none.

    Args:
        labels: As in ``Predictions.groups``, ``(samples, layers)``.

    Returns:
        The numbers, of the same shape.
    """
    numbers = np.zeros_like(labels)
    for column, layer in enumerate(labels.T):
        if (layer >= 0).all():
            _, first, inverse = np.unique(layer, return_index=True, return_inverse=True)
            numbers[:, column] = (np.argsort(np.argsort(first)) + 1)[inverse]
    return numbers


def png_url(picture: Pixels) -> str:
    """Return a picture as a ``data:`` URL."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _answer(predictions: Predictions, row: int, labels: Sequence[str]) -> dict[str, Any]:
    probabilities = predictions.probabilities[row]
    best = np.argsort(-probabilities, kind="stable")[:_TOP]
    top = [{"label": labels[index], "confidence": _finite(probabilities[index])} for index in best]
    return {**top[0], "top": top}


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def sample_images() -> list[dict[str, str]]:
    """Return the built-in samples: drawn shapes, each with ``name``, ``label`` and ``data`` (a PNG data URL)."""
    dataset = shapes(SAMPLES)
    labels = [dataset.classes[label] for label in dataset.labels()]
    pictures = dataset.images(CLEAN, np.arange(SAMPLES))
    return [
        {"name": f"{label} {number}", "label": label, "data": png_url(picture)}
        for number, (label, picture) in enumerate(zip(labels, pictures, strict=True), 1)
    ]


_BODY = {
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


def model_name(settings: Settings) -> str:
    """Return what the model is called, without the folder of a file, which is nobody's business."""
    return Path(settings.model).name


def router(settings: Settings) -> APIRouter:
    """Return the routes that the page needs.

    Args:
        settings: What is served, and its limits.

    Returns:
        ``GET /v1/samples``, ``GET /v1/corruptions`` and ``POST /v1/compare``.
    """
    routes = APIRouter(tags=["compare"])
    comparison = Comparison(settings)
    waiting = threading.BoundedSemaphore(_MAX_WAITING)

    @routes.get("/v1/samples", summary="Drawn shapes to try things on, with their true labels")
    def samples() -> dict[str, Any]:
        return {
            "model": model_name(settings),
            "method": settings.method,
            "limits": {"images": MAX_IMAGES, "bytes": settings.limits.max_bytes},
            "samples": sample_images(),
        }

    @routes.get("/v1/corruptions", summary="The names that /v1/compare knows")
    def corruptions() -> dict[str, Any]:
        return {"corruptions": list(MAIN_CORRUPTIONS), "also": [MIXED, NONE], "severities": [0, *SEVERITIES]}

    def work(body: bytes) -> bytes:
        return json.dumps(comparison(parse_request(body)), allow_nan=False).encode()

    @routes.post(
        "/v1/compare",
        summary="The same corrupted images under the plain model and under the method",
        openapi_extra={"requestBody": _BODY},
    )
    async def compare(request: Request) -> Response:
        if not waiting.acquire(blocking=False):
            raise RequestError(503, "busy", "the server compares other images; try again soon.", retry_after_s=1)
        try:
            body = await _read_body(request, settings)
            # Reading and writing megabytes of JSON would hold up everybody else, too.
            return Response(await run_in_threadpool(work, body), media_type="application/json")
        except RequestError:
            raise
        except FindTTAError as error:
            raise RequestError(422, "not_possible", str(error)) from error
        finally:
            waiting.release()

    return routes


async def _read_body(request: Request, settings: Settings) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(settings.timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > settings.max_json_bytes:
                    raise RequestError(
                        413,
                        "body_too_large",
                        f"the JSON has more than the {settings.max_json_bytes:,} bytes accepted.",
                    )
    except TimeoutError as error:
        raise RequestError(408, "slow_body", "the body took too long to arrive.") from error
    return bytes(body)
