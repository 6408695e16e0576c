"""What every request passes first: its name, its key, the size of its body, and how errors are put."""

from __future__ import annotations

import hmac
import json
import logging
import re
import uuid
from collections.abc import Callable, Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from findtta.serve.requests import RequestError

REQUEST_ID = "findtta.request_id"
_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")

_log = logging.getLogger(__name__)


def error_response(error: RequestError, request_id: str) -> Response:
    """Put an error as all endpoints do."""
    detail: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.images:
        detail["images"] = list(error.images)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    content = json.dumps({"error": detail, "request_id": request_id}).encode()
    return Response(content, error.status, headers, "application/json")


def failure() -> RequestError:
    """Say that something went wrong here, but not what: that is nothing for strangers."""
    return RequestError(500, "internal", "the server failed on this request; its log says why.")


class Guard:
    """Stands before the app: names requests, asks for the key, bounds bodies and counts answers.

    Args:
        app: The app behind it.
        api_key: What requests to ``/v1/...`` and ``/metrics`` must bring, or None.
        max_body_bytes: The largest body; counted while it arrives, whatever its header says.
        known_paths: Paths that are counted by name; all others are counted together.
        count: Told the path and the status of every answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None,
        max_body_bytes: int,
        known_paths: Collection[str],
        count: Callable[[str, int], None],
    ) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode()
        self._max_body_bytes = max_body_bytes
        self._known_paths = frozenset(known_paths)
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; see ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = scope[REQUEST_ID] = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        path = scope["path"] if scope["path"] in self._known_paths else "other"
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = name
                self._count(path, message["status"])
            await send(message)

        try:
            self._require_key(scope["path"], headers)
            self._require_length(headers)
            await self._app(scope, self._bounded(receive), send_named)
        except RequestError as error:
            if not started:
                await error_response(error, name)(scope, receive, send_named)
        except Exception:
            _log.exception("request %s to %s failed", name, path)
            if not started:
                await error_response(failure(), name)(scope, receive, send_named)

    def _require_key(self, path: str, headers: Headers) -> None:
        if self._key is None or not (path.startswith("/v1/") or path == "/metrics"):
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")
        # In constant time, so that the time taken tells nothing about the key.
        if not hmac.compare_digest(given.encode(), self._key):
            raise RequestError(
                401, "unauthorized", "send the API key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
            )

    def _require_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            raise self._too_large()

    def _bounded(self, receive: Receive) -> Receive:
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> RequestError:
        return RequestError(
            413, "body_too_large", f"the body has more than the {self._max_body_bytes:,} bytes that are accepted."
        )
