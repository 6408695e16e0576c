"""The HTTP side of the server: reads requests, has them answered in batches, and says how it is doing."""

from __future__ import annotations

import asyncio
import contextlib
import html
import importlib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

import findtta
from findtta.images import Pixels
from findtta.serve.batcher import Batcher, Closed, QueueFull
from findtta.serve.guard import REQUEST_ID, Guard, error_response, failure
from findtta.serve.metrics import Metrics
from findtta.serve.model import BatchAnswer, Classify, Description, RowAnswer, by_row
from findtta.serve.requests import (
    ARRAY_TYPE,
    BYTES_TYPE,
    IMAGE_TYPES,
    RequestError,
    RequestLimits,
    parse,
    read_pictures,
)
from findtta.serve.settings import Settings

PAGE = Path(__file__).parent / "page"
_PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_DEFAULT_TOP = 5


class Unavailable(Exception):
    """No copy of the model could be reached in time."""


class Front:
    """Everything that a running server keeps, and its ASGI app.

    Args:
        settings: Of the server.
        description: Of the model.
        classify: Answers a batch; raises ``Unavailable`` if there is no model to ask.
        metrics: What is counted; by default counters of its own.
        healthy: Whether the model is there.

    Attributes:
        app: What a web server runs.
        metrics: What is counted.
    """

    def __init__(
        self,
        settings: Settings,
        description: Description,
        classify: Classify,
        *,
        metrics: Metrics | None = None,
        healthy: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = settings
        self._description = description
        self._classify = classify
        self._healthy = healthy
        self.metrics = metrics or Metrics(description.layers, description.labels)
        self._prepare = description.preprocessing
        self._limits = RequestLimits(settings.limits, settings.most_images, settings.max_json_bytes)
        self._batcher = Batcher[Pixels, RowAnswer](
            by_row(self._classify_and_count),
            max_batch=settings.max_batch,
            wait_s=settings.wait_ms / 1000,
            max_queue=settings.max_queue,
            workers=settings.most_replicas,
        )
        # Few threads bound the memory of unpacked images.
        self._readers = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "findtta-read")
        self._pending_bytes = 0
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self.app: ASGIApp = self._build()

    async def drain(self) -> None:
        """Accept nothing new, and wait until everything accepted is answered."""
        self._draining = True
        await self._idle.wait()
        await self._batcher.drain()

    def close(self) -> None:
        """Let go of the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def predict(
        self,
        request: Request,
        top: Annotated[int, Query(ge=1, le=10_000, description="How many classes to list.")] = _DEFAULT_TOP,
    ) -> Response:
        """Classify one image or several.

        The body is an image file, an npy array, several files as multipart/form-data, or JSON.
        """
        with self._accepted():
            loop = asyncio.get_running_loop()
            start = loop.time()
            pictures, digests = await self._receive(request)
            left = self._settings.timeout_s - (loop.time() - start)
            try:
                answers = await self._batcher.submit(pictures, max(left, 0.001))
            except QueueFull as error:
                raise RequestError(503, "busy", f"{error} Try again soon.", retry_after_s=1) from error
            except Closed as error:
                raise _draining() from error
            except TimeoutError as error:
                raise RequestError(
                    504, "timeout", f"there was no answer within {self._settings.timeout_s:g} s."
                ) from error
            except Unavailable as error:
                raise RequestError(
                    503, "model_unavailable", "the model cannot be reached now; try again soon.", retry_after_s=5
                ) from error
            content = {
                "predictions": [
                    self._row(answer, digest, top) for answer, digest in zip(answers, digests, strict=True)
                ],
                "request_id": request.scope[REQUEST_ID],
                "model": self._description.model,
                "method": self._description.method,
                "batch_size": len(answers[0].batch.predictions.probabilities),
            }
            self.metrics.count_seconds(loop.time() - start)
            return _json(content)

    async def info(self) -> Response:
        """Tell which model answers, with which method, and what is accepted."""
        description = asdict(self._description)
        return _json({**description, "limits": self._settings.public(), "findtta": findtta.__version__})

    async def health(self) -> Response:
        """Tell whether requests are accepted."""
        status = "draining" if self._draining else "ok" if self._healthy() else "model_unavailable"
        return _json({"status": status, "queue": self._batcher.size}, 200 if status == "ok" else 503)

    async def measure(self) -> Response:
        """Give the counters in Prometheus' text format."""
        self.metrics.watch_queue(self._batcher.size)
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _classify_and_count(self, pictures: Pixels) -> BatchAnswer:
        answer = await self._classify(pictures)
        self.metrics.count_batch(answer)
        return answer

    @contextlib.contextmanager
    def _accepted(self) -> Iterator[None]:
        """Count a request that will be answered, even if the server is told to stop."""
        if self._draining:
            raise _draining()
        if self._batcher.size >= self._settings.max_queue:  # before its body is read
            raise RequestError(503, "busy", "the queue is full; try again soon.", retry_after_s=1)
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def _receive(self, request: Request) -> tuple[list[Pixels], list[str]]:
        """Read the body, and make pictures of it on another thread."""
        chunks: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                async for chunk in request.stream():
                    held += len(chunk)
                    self._pending_bytes += len(chunk)
                    if self._pending_bytes > self._settings.max_pending_bytes:
                        raise RequestError(503, "busy", "too much is being read; try again soon.", retry_after_s=1)
                    chunks.append(chunk)
            body = b"".join(chunks)
            chunks.clear()
            loop = asyncio.get_running_loop()
            header = request.headers.get("content-type")
            return await loop.run_in_executor(self._readers, self._understand, header, body)
        except TimeoutError as error:
            raise RequestError(408, "slow_body", "the body took too long to arrive.") from error
        except ClientDisconnect as error:  # nobody will read this, but it is counted
            raise RequestError(400, "incomplete_body", "the connection ended before the body did.") from error
        finally:
            self._pending_bytes -= held

    def _understand(self, content_type: str | None, body: bytes) -> tuple[list[Pixels], list[str]]:
        items = parse(content_type, body, self._limits)
        pictures = read_pictures(items, self._limits.image, self._prepare)
        return pictures, [item.digest for item in items]

    def _row(self, answer: RowAnswer, digest: str, top: int) -> dict[str, Any]:
        probabilities = answer.batch.predictions.probabilities[answer.row]
        best = _largest(probabilities, top)
        labels = self._description.labels
        values = probabilities[best].tolist()
        return {
            "label": labels[best[0]],
            "index": int(best[0]),
            "confidence": _number(values[0]),
            "probabilities": {labels[index]: _number(value) for index, value in zip(best, values, strict=True)},
            "group": answer.batch.groups[answer.row],
            "drift": _number(answer.batch.drift[answer.row]),
            "digest": digest,
        }

    def _build(self) -> ASGIApp:
        app = FastAPI(
            title="findtta",
            version=findtta.__version__,
            summary=f"{self._description.model} under {self._description.method}",
            docs_url=None,  # the usual page fetches scripts from elsewhere
            redoc_url=None,
        )
        errors: dict[int | str, dict[str, Any]] = {
            status: {"description": meaning} for status, meaning in _ERRORS.items()
        }
        app.add_api_route(
            "/v1/predict",
            self.predict,
            methods=["POST"],
            response_class=Response,
            responses={200: {"description": "The answers", "content": {"application/json": {}}}, **errors},
            openapi_extra={"requestBody": _BODY},
        )
        app.add_api_route("/v1/info", self.info, methods=["GET"], response_class=Response)
        app.add_api_route("/healthz", self.health, methods=["GET"], response_class=Response)
        app.add_api_route("/metrics", self.measure, methods=["GET"], response_class=Response)
        if importlib.util.find_spec("findtta.serve.compare") is not None:
            compare: Any = importlib.import_module("findtta.serve.compare")
            app.include_router(compare.router(self._settings))
        _add_pages(app)
        app.add_exception_handler(RequestError, _refuse)
        app.add_exception_handler(RequestValidationError, _refuse_values)
        app.add_exception_handler(HTTPException, _refuse_http)
        app.add_exception_handler(Exception, _fail)
        return Guard(
            app,
            api_key=self._settings.api_key,
            max_body_bytes=self._settings.max_body_bytes,
            known_paths=list(app.openapi()["paths"]),
            count=self.metrics.count_request,
        )


_ERRORS = {
    400: "The body is not what its Content-Type says",
    401: "The API key is missing or wrong",
    408: "The body arrived too slowly",
    413: "The body is too large, or has too many images",
    415: "The Content-Type is not accepted",
    422: "An image cannot be classified; 'images' says which",
    503: "The queue is full, the server is stopping, or the model is away; see Retry-After",
    504: "There was no answer in time",
}

_BODY = {
    "required": True,
    "content": {
        **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in (*IMAGE_TYPES, BYTES_TYPE)},
        ARRAY_TYPE: {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"file": {"type": "array", "items": {"type": "string", "format": "binary"}}},
            }
        },
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["images"],
                "properties": {
                    "images": {
                        "type": "array",
                        "items": {
                            "anyOf": [
                                {"type": "string", "description": "base64, or a data: URL with base64"},
                                {"type": "array", "description": "rows of pixels", "items": {"type": "array"}},
                            ]
                        },
                    }
                },
            }
        },
    },
}


def _add_pages(app: FastAPI) -> None:
    """Serve the page, if it is there, and a list of the endpoints."""
    files = sorted(file for file in PAGE.glob("*") if file.suffix in _PAGE_TYPES) if PAGE.is_dir() else []

    def serve_file(file: Path) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return FileResponse(file, media_type=_PAGE_TYPES[file.suffix], headers=_PAGE_HEADERS)

        return answer

    async def point(request: Request) -> Response:
        return PlainTextResponse("findtta serve: POST images to /v1/predict; /docs lists everything.\n")

    async def docs(request: Request) -> Response:
        return HTMLResponse(_docs(app.openapi()), headers=_PAGE_HEADERS)

    for file in files:
        app.add_route(f"/{file.name}", serve_file(file))
    index = PAGE / "index.html"
    app.add_route("/", serve_file(index) if index in files else point)
    app.add_route("/docs", docs)


def _docs(openapi: dict[str, Any]) -> str:
    """Return a page that lists the endpoints, which works offline."""
    rows = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            text = operation.get("description") or operation.get("summary", "")
            rows.append(
                f"<h2><code>{html.escape(f'{method.upper()} {path}')}</code></h2><p>{html.escape(text)}</p>"
            )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>findtta: endpoints</title>'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"></head>'
        f"<body><h1>findtta</h1><p>{html.escape(openapi['info'].get('summary', ''))}</p>"
        '<p>For programs: <a href="/openapi.json">/openapi.json</a></p>'
        f"{''.join(rows)}</body></html>"
    )


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, request.scope[REQUEST_ID])


async def _refuse_values(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error_response(RequestError(422, "bad_value", f"{where}: {first['msg']}."), request.scope[REQUEST_ID])


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "refused")
    refusal = RequestError(error.status_code, code, f"{error.detail}. /docs lists what there is.")
    return error_response(refusal, request.scope[REQUEST_ID])


async def _fail(request: Request, error: Exception) -> Response:
    return error_response(failure(), request.scope[REQUEST_ID])


def _draining() -> RequestError:
    return RequestError(503, "draining", "the server is stopping; ask another one.", retry_after_s=5)


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content, allow_nan=False).encode(), status, media_type="application/json")


def _largest(values: np.ndarray[Any, np.dtype[np.float32]], count: int) -> Sequence[int]:
    """Return the places of the largest values, in falling order; equal ones in the order of their places."""
    order: list[int] = np.argsort(-values, kind="stable")[:count].tolist()
    return order


def _number(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None
