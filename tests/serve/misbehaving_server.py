"""A prediction server that responds like the real one, except where a test wants it to misbehave."""

import asyncio
import base64
import hashlib
import io
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
from aiohttp import web
from PIL import Image

LARGEST = 1_000_000
TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")

Misbehaviour = Callable[["Stub", web.Request, str], Awaitable[web.StreamResponse | None]]


class Stub:
    """Counts what it gets; ``misbehave`` sees each request first, and what it returns is the response."""

    def __init__(self, misbehave: Misbehaviour | None = None) -> None:
        self.misbehave = misbehave
        self.ids: list[str] = []
        self.digests: list[str] = []
        self.authorizations: set[str | None] = set()
        self.at_once = self.most_at_once = 0

    @asynccontextmanager
    async def serve(self):
        app = web.Application(client_max_size=LARGEST)
        app.router.add_get("/healthz", self.health)
        app.router.add_post("/v1/predict", self.predict)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def health(self, request):
        return web.json_response({"status": "ok"})

    async def predict(self, request):
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            request_id = request.headers["X-Request-ID"]
            self.ids.append(request_id)
            self.authorizations.add(request.headers.get("Authorization"))
            if self.misbehave:
                response = await self.misbehave(self, request, request_id)
                if response is not None:
                    return response
            return await self.honest(request, request_id)
        finally:
            self.at_once -= 1

    async def honest(self, request, request_id):
        try:
            images = await read_images(request)
            digests = [classified(kind, data) for kind, data in images]
        except web.HTTPRequestEntityTooLarge:
            return error(413, "too_large")
        except Exception as problem:
            return error(415 if isinstance(problem, TypeError) else 422, repr(problem)[:100])
        self.digests += digests
        return respond(request_id, digests)


async def read_images(request):
    kind = request.content_type
    body = await request.read()
    if kind == "application/json":
        return [("any", base64.b64decode(text, validate=True)) for text in json.loads(body)["images"]]
    if kind == "multipart/form-data":
        boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()
        parts = body.split(b"--" + boundary)[1:-1]
        return [("any", part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")) for part in parts]
    return [(kind, body)]


def classified(kind, data):
    if kind == "application/x-npy" or (kind == "any" and data.startswith(b"\x93NUMPY")):
        array = np.load(io.BytesIO(data), allow_pickle=False)
        if not np.isfinite(array).all():
            raise ValueError("not finite")
    elif kind in (*TYPES, "any"):
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    else:
        raise TypeError(kind)
    return hashlib.sha256(data).hexdigest()[:16]


def respond(request_id, digests, **changes):
    prediction = {"label": "star", "index": 4, "confidence": 0.5, "probabilities": [], "group": 0, "drift": 0.0}
    predictions = [{**prediction, "digest": digest, **changes} for digest in digests]
    return web.json_response({"predictions": predictions, "request_id": request_id})


def error(status, code, **headers):
    return web.json_response({"error": {"code": code, "message": code}}, status=status, headers=headers)


async def hang_up(request):
    """Close the connection without a response, as a killed server does."""
    request.transport.abort()
    await asyncio.sleep(0)
    return web.Response()
