"""The HTTP side of the server: reads requests, has their images predicted in batches, and reports its state.

It is an ASGI app that any web server can run; where the model runs is the business of ``Engine``.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import findtta
from findtta.images import Pixels, Preprocessing
from findtta.serve.alert import CleanDrift, DriftAlert
from findtta.serve.batcher import Batcher, QueueFull
from findtta.serve.domains_met import DomainsMet
from findtta.serve.engine import Description, Engine, Row, Unavailable, rows_of
from findtta.serve.open_inference import inference_routes
from findtta.serve.overview import Overview, SideBySide, png_url
from findtta.serve.pages import add_pages, compare_routes
from findtta.serve.requests import (
    OPENAPI,
    Chunks,
    RequestError,
    bad_value,
    busy,
    json_response,
    largest_body,
    read_request,
    reading,
    receive,
)
from findtta.serve.settings import Choice, Settings
from findtta.serve.shadow import Shadow
from findtta.serve.switching import method_routes
from findtta.serve.telemetry import Telemetry

REQUEST_ID, BATCH_ID = "findtta.request_id", "findtta.batch_id"
_SECURITY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")

_log = logging.getLogger(__name__)


Content = TypeVar("Content")
About = TypeVar("About")
Receiver = Callable[[Headers, Chunks, int], Awaitable[Content]]
Reader = Callable[[Content, Settings, Preprocessing], tuple[list[Pixels], About]]


class Batches(Protocol):
    """Where the images of requests become batches."""

    size: int  # the number of images that wait or are being predicted

    @property
    def is_idle(self) -> bool:
        """Whether a replica has nothing to do."""

    async def submit(self, items: Sequence[Pixels], timeout_s: float | None = None) -> Sequence[Row]:
        """Have the images of one request predicted in one batch; see ``Batcher``."""


@dataclass(eq=False)
class Frontend:
    """The state of a running server, and ``app``, which a web server runs."""

    settings: Settings
    description: Description  # of what is served now
    engine: Engine
    telemetry: Telemetry
    batches: Batches | None = None  # None forms them here, from the requests of this process

    def __post_init__(self) -> None:
        self._batcher: Batches = self.batches or Batcher[Pixels, Row](
            run=self._predict_batch,
            max_batch=self.settings.max_batch,
            wait_s=self.settings.wait_ms / 1000,
            max_queue=self.settings.max_queue,
            workers=self.settings.most_replicas,
        )
        # Few at a time bound the memory of decoded images.
        self._decoders = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
        self._pending_bytes = 0
        self._active = 0
        self._draining = False
        self._choice: Choice | None = None  # None is the method of the settings
        self._alert = DriftAlert(self.settings, self.engine, lambda: self._batcher.is_idle, self.telemetry)
        self._shadow: Shadow | None = None
        if shadow := self.settings.shadow_choice:
            predict = partial(self.engine.predict, choice=shadow, once=True)
            share = self.settings.shadow_share
            self._shadow = Shadow(predict, share, lambda: self._batcher.is_idle, self.telemetry)
        self.domains = DomainsMet(keep_examples=self.settings.keep_examples)
        self.overview = Overview(self.settings, self._side(), lambda: not (self._active or self._draining))
        self.app = self._build()

    @property
    def clean_drift(self) -> CleanDrift | None:
        """The drift of clean images under what is served; None until it is known, or if there are none."""
        return self._alert.clean

    def watch(self) -> None:
        """Find out in the background what drift is normal; call it once requests are answered."""
        self._alert.watch(self._choice, self.description)

    def serve_under(self, choice: Choice | None, description: Description) -> None:
        """Predict all later batches under another method, None for that of the settings."""
        self._choice, self.description = choice, description
        self.telemetry.switch(description.method, description.layers)
        self.domains.forget()
        _log.warning("the served method is now %s with %s", description.method, description.options)
        self.watch()
        self.overview.follow(self._side())
        if self._shadow is not None:
            self._shadow.forget()

    def _side(self) -> SideBySide:
        return SideBySide(self._choice or self.settings.choice, self.description, self.engine)

    async def drain(self) -> None:
        """Accept nothing new, and wait until everything accepted is answered."""
        self._draining = True
        if self._shadow is not None:
            self._shadow.stop()
        self._alert.stop()
        while self._active:
            await asyncio.sleep(0.01)

    async def predict(
        self,
        request: Request,
        top: Annotated[int, Query(ge=1, le=10_000, description="Number of classes to list.")] = 5,
    ) -> Response:
        """Predict one image or several.

        The body is an image file, an npy array, several files as multipart/form-data, or JSON.
        """
        rows, digests = await self.predict_images(request, receive, read_request)
        content = {
            "predictions": [self._entry(row, digest, top) for row, digest in zip(rows, digests, strict=True)],
            "request_id": request.scope[REQUEST_ID],
            "model": self.description.model,
            "method": rows[0].method,
            "batch_size": rows[0].batch_size,
            "batch_id": rows[0].batch_id,
        }
        return json_response(content)

    async def predict_images(
        self, request: Request, receive: Receiver[Content], read: Reader[Content, About]
    ) -> tuple[Sequence[Row], About]:
        """Predict the images of a request, in one batch; also returns what else ``read`` found in its body.

        Args:
            request: The request.
            receive: Reads the body as it arrives.
            read: Decodes its images, on another thread.
        """
        with self._accepted():
            loop = asyncio.get_running_loop()
            start = loop.time()
            images, about = await self._read(request, receive, read)
            left = self.settings.timeout_s - (loop.time() - start)
            rows = await self._batcher.submit(images, max(left, 0.001))
            request.scope[BATCH_ID] = rows[0].batch_id
            return rows, about

    async def preprocess(self, request: Request) -> Response:
        """Return images as the model gets them, resized and cropped: PNG files as data: URLs.

        The body is as for a prediction, which is the same for such a file as for the original.
        """
        with self._accepted():
            images, digests = await self._read(request, receive, read_request)
            files = await run_in_threadpool(lambda: list(map(png_url, images)))
            rows = [{"data": data, "digest": digest} for data, digest in zip(files, digests, strict=True)]
            return json_response({"images": rows, "request_id": request.scope[REQUEST_ID]})

    async def info(self) -> Response:
        """Describe the model, its method and what is accepted."""
        description = self.description.to_dict()
        return json_response({**description, "limits": self.settings.public(), "findtta": findtta.__version__})

    async def live(self) -> Response:
        """Tell whether the server works; status 503 means that only a restart can help."""
        return json_response(
            {"status": "failed" if self.engine.failed else "ok"}, 503 if self.engine.failed else 200
        )

    async def health(self) -> Response:
        """Tell whether requests are accepted."""
        status = "draining" if self._draining else "ok" if self.engine.healthy else "model_unavailable"
        return json_response({"status": status, "queue": self._batcher.size}, 200 if status == "ok" else 503)

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        return PlainTextResponse(self.telemetry.text(self._batcher.size), media_type="text/plain; version=0.0.4")

    @contextlib.contextmanager
    def _accepted(self) -> Iterator[None]:
        """Count a request that will be answered even if the server is told to stop."""
        if self._draining:
            raise RequestError(503, "draining", "the server is stopping; ask another one.", retry_after_s=5)
        if self._batcher.size >= self.settings.max_queue:  # before its body is read
            raise busy("the queue is full")
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    async def _read(
        self, request: Request, receive: Receiver[Content], read: Reader[Content, About]
    ) -> tuple[list[Pixels], About]:
        held = 0

        async def counted() -> Chunks:
            nonlocal held
            async for chunk in request.stream():
                held += len(chunk)
                self._pending_bytes += len(chunk)
                if self._pending_bytes > self.settings.max_pending_bytes:
                    raise busy("the server is reading too many bodies")
                yield chunk

        try:
            async with reading(self.settings.timeout_s):
                content = await receive(request.headers, counted(), self.settings.most_images)
            loop = asyncio.get_running_loop()
            arguments = (content, self.settings, self.description.preprocessing)
            return await loop.run_in_executor(self._decoders, read, *arguments)
        finally:
            self._pending_bytes -= held

    async def _predict_batch(self, images: Sequence[Pixels]) -> Sequence[Row]:
        batch, description = np.stack(images), self.description
        predictions = await self.engine.predict(batch, self._choice)
        is_current = description is self.description  # or the method was switched meanwhile
        self.telemetry.count_batch(predictions, is_current=is_current)
        if is_current:
            self._alert.count(predictions.sample_drift)
            self.domains.note(batch, predictions)
            if self._shadow is not None:
                self._shadow.offer(batch, predictions)
        return rows_of(predictions, description.method)

    def _entry(self, row: Row, digest: str, top: int) -> dict[str, Any]:
        """Return one prediction; classes of equal probability are listed in their order."""
        best = np.argsort(-row.probabilities, kind="stable")[:top].tolist()
        labels = self.description.labels
        values = row.probabilities[best].tolist()
        return {
            "label": labels[best[0]],
            "index": best[0],
            "confidence": values[0],
            "probabilities": {labels[index]: value for index, value in zip(best, values, strict=True)},
            "group": row.group,
            "drift": row.drift,
            "digest": digest,
        }

    def _build(self) -> ASGIApp:
        app = FastAPI(
            title="findtta",
            version=findtta.__version__,
            summary=f"Predictions of {self.description.model}",
            docs_url=None,  # the usual page fetches scripts from elsewhere
            redoc_url=None,
            exception_handlers=dict.fromkeys((HTTPException, RequestValidationError, Exception), _refuse),
        )
        app.post("/v1/predict", response_class=Response, openapi_extra=OPENAPI)(self.predict)
        app.post("/v1/preprocess", response_class=Response, openapi_extra=OPENAPI)(self.preprocess)
        simple = {"/v1/info": self.info, "/livez": self.live, "/healthz": self.health, "/metrics": self.metrics}
        for path, endpoint in simple.items():
            app.get(path, response_class=Response)(endpoint)
        app.include_router(method_routes(self))
        app.include_router(inference_routes(self))
        app.include_router(compare_routes(self.settings, self.overview, self.domains, self._accepted))
        add_pages(app)
        return Guard(app, self.settings, self.telemetry)


@dataclass(frozen=True, eq=False)
class Guard:
    """What every request passes first: names it, requires the key, bounds its body, counts and logs the response.

    All but probes and pages require the key. The bytes of a body are counted while it arrives, whatever its
    header says. Responses are counted by the template of their route; others are counted together.
    """

    app: ASGIApp
    settings: Settings
    telemetry: Telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; see ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = scope[REQUEST_ID] = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        begin, status = time.perf_counter(), 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({"x-request-id": name, **_SECURITY})
            await send(message)

        try:
            self._require_key(_route_path(scope), headers)
            await self.app(scope, _bounded(receive, headers, largest_body(headers, self.settings)), send_named)
        except Exception as error:  # FastAPI raises it again after it has sent the response
            response = await _refuse(Request(scope), error)
            if response.status_code == 500:
                _log.exception("request %s to %s failed", name, scope["path"])
            if not status:
                await response(scope, receive, send_named)
        finally:
            # Known only now: the router says which route it took.
            route = getattr(scope.get("route"), "path", "other")
            self.telemetry.count_request(
                route, status, time.perf_counter() - begin, scope["method"], name, scope.get(BATCH_ID)
            )

    def _require_key(self, path: str, headers: Headers) -> None:
        key = self.settings.api_key
        if key is None or not path.startswith(("/v1/", "/v2", "/metrics")) or path.startswith("/v2/health/"):
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")
        # In constant time, so that the time taken tells nothing about the key.
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise RequestError(
                401, "unauthorized", "send the API key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
            )


def _route_path(scope: Scope) -> str:
    """Return the path that routes are found by: without the prefix under which another server mounts this one."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if path == prefix or path.startswith(f"{prefix}/") else path


def _bounded(receive: Receive, headers: Headers, most: int) -> Receive:
    """Refuse a body with too many bytes: before it is read if its header says so, and otherwise as it arrives."""
    received = 0
    length = headers.get("content-length", "")
    declared = int(length[:20]) if length.isdecimal() else 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive() if declared <= most else {}
        received += len(message.get("body", b""))
        if max(received, declared) > most:
            raise RequestError(413, "body_too_large", f"the body must have at most {most:,} bytes.")
        return message

    return bounded


async def _refuse(request: Request, error: Exception) -> Response:
    """Return an error in the form that all endpoints use."""
    refusal = _refusal(error)
    detail: dict[str, Any] = {"code": refusal.code, "message": refusal.message}
    if refusal.images:
        detail["images"] = list(refusal.images)
    headers = {} if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    content: dict[str, Any] = {"error": detail, "request_id": request.scope[REQUEST_ID]}
    if _route_path(request.scope).startswith("/v2"):  # as the Open Inference Protocol has it
        content = {"error": refusal.message}
    return json_response(content, refusal.status, headers)


def _refusal(error: Exception) -> RequestError:
    """Return an error with its HTTP status; the reason of a failure is only in the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RequestValidationError):
        return bad_value(error.errors()[0])
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "refused")
        return RequestError(error.status_code, code, f"{error.detail}. /docs lists the endpoints.")
    if isinstance(error, QueueFull):
        return busy(str(error).rstrip("."))
    if isinstance(error, TimeoutError):
        return RequestError(504, "timeout", "there was no prediction in time.")
    if isinstance(error, Unavailable):
        reason = "the model cannot be reached now; try again soon."
        return RequestError(503, "model_unavailable", reason, retry_after_s=5)
    return RequestError(500, "internal", "the server failed on this request; its log says why.")
