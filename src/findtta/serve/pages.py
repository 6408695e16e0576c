"""What browsers see: the page at ``/``, what only it asks for, and the list of endpoints."""

import asyncio
import html
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from string import Template
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from findtta.data.dataset import MAIN_CORRUPTIONS, SEVERITIES
from findtta.data.randomness import sample_keys
from findtta.errors import FindTTAError
from findtta.images import Pixels
from findtta.options import require_known
from findtta.serve.domains_met import DomainsMet
from findtta.serve.engine import Unavailable
from findtta.serve.overview import Overview, corrupt_rows, png_url
from findtta.serve.requests import (
    RequestError,
    busy,
    json_response,
    parse_json,
    read_images,
    reading,
    too_many_images,
)
from findtta.serve.settings import Settings

MAX_IMAGES = 64
NONE, MIXED = "none", "mixed"
CHOICES = (NONE, MIXED, *MAIN_CORRUPTIONS)

_FOLDER = Path(__file__).parent / "page"
_LONGEST_NAME = 200
_LARGEST_SEED = 2**63 - 1
# Each comparison that waits holds a body in memory.
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
    return corrupt_rows(images, names, severity, seed, np.arange(len(images))), names


def compare_routes(
    settings: Settings,
    overview: Overview,
    domains: DomainsMet,
    accepted: Callable[[], AbstractContextManager[None]],
) -> APIRouter:
    """Return the routes that only the page asks; ``accepted`` counts a request that is being answered."""
    routes = APIRouter(tags=["compare"])
    places = asyncio.Semaphore(_MAX_WAITING)
    most_images = min(MAX_IMAGES, settings.max_batch)  # they are one batch

    @routes.get("/v1/overview")
    async def show_overview() -> Response:
        """Return how many of several hundred corrupted samples each method classifies correctly."""
        overview.start()
        met = domains.report()
        return json_response(overview.report() | ({"domains": met} if met else {}))

    @routes.get("/v1/domains")
    def show_domains() -> dict[str, Any]:
        """Return the domains that the served method has met in requests, those used most of late first."""
        return {"method": overview.side.served, "domains": domains.report(examples=True)}

    @routes.get("/v1/overview/batch")
    def first_batch() -> Response:
        """Return the first of the mixed batches of the overview in the form of a comparison."""
        batch = overview.first()
        if batch is None:
            raise busy("the overview has no batch yet")
        return json_response(batch)

    @routes.get("/v1/samples")
    def samples() -> dict[str, Any]:
        """Return images to try, with their true labels: those of the overview without corruption."""
        rows = zip(overview.samples.names, overview.samples.classes, overview.samples.images, strict=True)
        return {
            "model": settings.model_name,
            "method": overview.side.served,
            "limits": {"images": most_images, "bytes": settings.image_limits.max_bytes},
            "labelled": overview.samples.labels is not None,
            "samples": [{"name": name, "label": label, "data": png_url(image)} for name, label, image in rows],
        }

    @routes.get("/v1/corruptions")
    def corruptions() -> dict[str, Any]:
        """List the corruptions that /v1/compare knows."""
        return {"corruptions": list(MAIN_CORRUPTIONS), "also": [MIXED, NONE], "severities": [0, *SEVERITIES]}

    def read(body: bytes) -> tuple[list[str], list[str], Pixels]:
        request = parse_json(CompareRequest, body)
        if len(request.images) > most_images:
            raise too_many_images(most_images, len(request.images))
        names = [image.name[:_LONGEST_NAME] for image in request.images]
        files = [image.data for image in request.images]
        clean, _ = read_images(files, settings.image_limits, overview.side.description.preprocessing, names)
        images, kinds = corrupt_each(np.stack(clean), request.corruption, request.severity, request.seed)
        return names, kinds, images

    schema = CompareRequest.model_json_schema()
    # In place of a reference, which would point outside of the OpenAPI document.
    schema["properties"]["images"]["items"] = schema.pop("$defs")["NamedImage"]

    body_schema = {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}

    @routes.post("/v1/compare", openapi_extra=body_schema)
    async def compare(request: Request) -> Response:
        """Predict the same corrupted images with the source model, the served method and find-soft."""
        if places.locked():
            raise busy("the server compares images of other clients")
        with accepted():
            async with places:
                async with reading(settings.timeout_s):
                    body = await request.body()
                try:
                    # Reading and writing megabytes of JSON would hold up all other requests.
                    names, kinds, images = await run_in_threadpool(read, body)
                    side = overview.side
                    made = await side.predict(images)
                except (RequestError, Unavailable):
                    raise
                except FindTTAError as error:
                    raise RequestError(422, "not_possible", str(error)) from error
                return await run_in_threadpool(lambda: json_response(side.describe(names, kinds, images, made)))

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
