"""What browsers see: the page at ``/``, its comparison of source model and method, and the list of endpoints."""

import asyncio
import base64
import dataclasses
import html
import io
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from numpy.typing import NDArray
from PIL import Image
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from findtta.data.corruptions import corrupt
from findtta.data.dataset import CLEAN, MAIN_CORRUPTIONS, SEVERITIES
from findtta.data.randomness import sample_keys
from findtta.data.shapes import Shapes
from findtta.errors import FindTTAError
from findtta.images import Pixels
from findtta.options import require_known
from findtta.predictor import Predictions
from findtta.serve.requests import (
    RequestError,
    busy,
    json_response,
    parse_json,
    read_images,
    reading,
)
from findtta.serve.settings import Settings

if TYPE_CHECKING:
    from findtta.predictor import Predictor

SAMPLES = 32
MAX_IMAGES = 64
NONE, MIXED = "none", "mixed"
CHOICES = (NONE, MIXED, *MAIN_CORRUPTIONS)

_FOLDER = Path(__file__).parent / "page"
_TOP = 5
_LONGEST_NAME = 200
_LARGEST_SEED = 2**63 - 1
# Each comparison that waits holds a body in memory and a thread of the pool that the whole server shares.
_MAX_WAITING = 4


class NamedImage(BaseModel):
    """An image file of a comparison: base64 or a ``data:`` URL, and what the sender calls it."""

    model_config = ConfigDict(strict=True, frozen=True)

    data: Annotated[str, Field(description="base64, or a data: URL with base64")]
    name: str = "image"


def _known_corruption(name: str) -> str:
    require_known("corruption", name, CHOICES)
    return name


class CompareRequest(BaseModel):
    """What to compare."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    images: Annotated[list[NamedImage], Field(min_length=1, max_length=MAX_IMAGES)]
    corruption: Annotated[
        str,
        Field(max_length=_LONGEST_NAME, json_schema_extra={"enum": list(CHOICES)}),
        AfterValidator(_known_corruption),
    ] = MIXED
    severity: Annotated[int, Field(ge=0, le=max(SEVERITIES), description="0 leaves the images as they are")] = 5
    seed: Annotated[int, Field(ge=-_LARGEST_SEED, le=_LARGEST_SEED)] = 0


class Comparison:
    """The source model and the served method, side by side on the same images.

    Both are built at the first call, which imports torch into this process. Calls may come from several threads
    and are worked on one at a time. A stateful method remembers the batches compared here, not those of other
    requests.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()

    def __call__(self, request: CompareRequest) -> dict[str, Any]:
        """Return the predictions of both.

        Raises:
            RequestError: If images cannot be read; it lists all of them.
        """
        names = [image.name[:_LONGEST_NAME] for image in request.images]
        with self._lock:
            source, method = self._predictors
            clean, _ = read_images(
                [image.data for image in request.images], self._settings.image_limits, source.preprocess, names
            )
            images, corruptions = corrupt_each(np.stack(clean), request.corruption, request.severity, request.seed)
            unadapted, adapted = source(images), method(images)
        groups, drift, layer_drift = number_groups(adapted.groups), adapted.sample_drift, adapted.drift.mean(0)
        return {
            "model": self._settings.model_name,
            "method": self._settings.method_name,
            "labels": list(method.labels),
            "images": [
                {
                    "name": name,
                    "corruption": corruptions[row],
                    "corrupted": png_url(images[row]),
                    "source": _prediction(unadapted, row, source.labels),
                    "find": _prediction(adapted, row, method.labels),
                    "group": [int(number) or None for number in groups[row]],
                    "drift": float(drift[row]),
                }
                for row, name in enumerate(names)
            ],
            "layers": [
                {"name": name, "groups": int(groups[:, column].max()), "drift": float(layer_drift[column])}
                for column, name in enumerate(method.layers)
            ],
        }

    @cached_property
    def _predictors(self) -> "tuple[Predictor, Predictor]":
        import torch

        torch.set_num_threads(self._settings.threads)  # must not starve the replicas
        model = self._settings.load_model()
        source = dataclasses.replace(self._settings, method="source", options={})
        return source.predictor(model), self._settings.predictor(model)


def mixture(count: int, seed: int) -> list[str]:
    """Return a corruption for each of ``count`` images: all fifteen in a random order, then all in another."""
    rounds = range(-(-count // len(MAIN_CORRUPTIONS)))
    positions = np.arange(len(MAIN_CORRUPTIONS))
    orders = [np.argsort(sample_keys(seed, positions, "compare", number)) for number in rounds]
    return [MAIN_CORRUPTIONS[position] for order in orders for position in order][:count]


def corrupt_each(images: Pixels, corruption: str, severity: int, seed: int) -> tuple[Pixels, list[str]]:
    """Return a batch with one of ``CHOICES`` applied, and the name of each image's corruption or ``"none"``."""
    if severity == 0 or corruption == NONE:
        return images, [NONE] * len(images)
    names = mixture(len(images), seed) if corruption == MIXED else [corruption] * len(images)
    result = np.empty_like(images)
    for name in set(names):
        rows = np.flatnonzero(np.array(names) == name)
        result[rows] = corrupt(images[rows], name, severity, seed=seed, index=rows)
    return result, names


def number_groups(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the groups of every layer (column) from 1, in order of appearance; 0 where there are none."""
    numbers = np.zeros_like(labels)
    for column, layer in enumerate(labels.T):
        if (layer >= 0).all():
            _, first, inverse = np.unique(layer, return_index=True, return_inverse=True)
            numbers[:, column] = (np.argsort(np.argsort(first)) + 1)[inverse]
    return numbers


def png_url(image: Pixels) -> str:
    """Return an image as a ``data:`` URL."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _prediction(predictions: Predictions, row: int, labels: Sequence[str]) -> dict[str, Any]:
    probabilities = predictions.probabilities[row]
    best = np.argsort(-probabilities, kind="stable")[:_TOP]
    top = [{"label": labels[index], "confidence": float(probabilities[index])} for index in best]
    return {**top[0], "top": top}


def sample_images() -> list[dict[str, str]]:
    """Return the built-in samples: drawn shapes, each with ``name``, ``label`` and ``data`` (a PNG data URL)."""
    dataset = Shapes(SAMPLES)
    labels = [dataset.classes[label] for label in dataset.labels()]
    images = dataset.images(CLEAN, np.arange(SAMPLES))
    return [
        {"name": f"{label} {number}", "label": label, "data": png_url(image)}
        for number, (label, image) in enumerate(zip(labels, images, strict=True), 1)
    ]


def compare_routes(settings: Settings, comparison: Comparison) -> APIRouter:
    """Return the routes that only the page asks: ``/v1/samples``, ``/v1/corruptions`` and ``/v1/compare``."""
    routes = APIRouter(tags=["compare"])
    places = asyncio.Semaphore(_MAX_WAITING)

    @routes.get("/v1/samples")
    def samples() -> dict[str, Any]:
        """Return drawn shapes to try, with their true labels."""
        return {
            "model": settings.model_name,
            "method": settings.method_name,
            "limits": {"images": MAX_IMAGES, "bytes": settings.image_limits.max_bytes},
            "samples": sample_images(),
        }

    @routes.get("/v1/corruptions")
    def corruptions() -> dict[str, Any]:
        """List the corruptions that /v1/compare knows."""
        return {"corruptions": list(MAIN_CORRUPTIONS), "also": [MIXED, NONE], "severities": [0, *SEVERITIES]}

    def work(body: bytes) -> Response:
        try:
            return json_response(comparison(parse_json(CompareRequest, body)))
        except RequestError:
            raise
        except FindTTAError as error:
            raise RequestError(422, "not_possible", str(error)) from error

    schema = CompareRequest.model_json_schema()
    # In place of a reference, which would point outside of the OpenAPI document.
    schema["properties"]["images"]["items"] = schema.pop("$defs")["NamedImage"]

    body_schema = {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}

    @routes.post("/v1/compare", openapi_extra=body_schema)
    async def compare(request: Request) -> Response:
        """Predict the same corrupted images with the source model and with the method."""
        if places.locked():
            raise busy("the server compares images of other clients")
        async with places:
            async with reading(settings.timeout_s):
                body = await request.body()
            # Reading and writing megabytes of JSON would hold up all other requests, too.
            return await run_in_threadpool(work, body)

    return routes


def add_pages(app: FastAPI) -> None:
    """Serve the page with its files, and a list of the endpoints that works offline."""
    app.mount("/page", StaticFiles(directory=_FOLDER))

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return FileResponse(_FOLDER / "index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        about = app.openapi()
        rows = [
            f"<h2><code>{method.upper()} {path}</code></h2><p>{html.escape(operation['description'])}</p>"
            for path, methods in about["paths"].items()
            for method, operation in methods.items()
        ]
        template = Template((_FOLDER / "docs.html").read_text(encoding="utf-8"))
        text = template.substitute(summary=html.escape(about["info"]["summary"]), endpoints="\n".join(rows))
        return HTMLResponse(text)
