"""What the page at ``/`` asks for: samples, and the same images under the plain model and under a method."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import json
import math
import threading
from collections.abc import Sequence
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
from findtta.errors import FindTTAError
from findtta.images import ImageError, ImageLimits, Pixels, decode_image
from findtta.predictor import Predictions, Predictor
from findtta.serve.compare_request import (
    BODY,
    MAX_IMAGES,
    MIXED,
    NONE,
    CompareRequest,
    NamedImage,
    file_bytes,
    parse_request,
)
from findtta.serve.requests import RequestError
from findtta.serve.settings import Settings

SAMPLES = 32

_TOP = 5
# Each comparison that waits holds a body in memory and a thread of the pool that the whole server shares.
_MAX_WAITING = 4


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
    pictures = np.zeros((len(images), *predictor.preprocess.size, 3), np.uint8)
    problems = []
    for index, image in enumerate(images):
        try:
            # One after another, so that only one picture of full size is in memory.
            pictures[index] = predictor.preprocess(decode_image(file_bytes(image.data), limits))
        except ImageError as error:
            problems.append({"index": index, "name": image.name, "code": error.code, "message": str(error)})
    if problems:
        told = "; ".join(f"{problem['name']}: {problem['message']}" for problem in problems[:3])
        more = f" And {len(problems) - 3} more." if len(problems) > 3 else ""
        raise RequestError(422, "bad_image", f"{told}{more}", images=problems)
    return pictures


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
        openapi_extra={"requestBody": BODY},
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
