"""Asking an ASGI app without a network: bodies can arrive in pieces, slowly, or never."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The short name of the error."""
        return self.json["error"]["code"]


async def ask(
    app: Any,
    method: str,
    url: str,
    body: bytes | Iterable[bytes] = b"",
    headers: dict[str, str] | None = None,
    *,
    pause_s: float = 0.0,
    leaves: bool = False,
) -> Reply:
    """Send one request.

    Args:
        app: The app.
        method: Such as GET.
        url: Path and query.
        body: Whole, or in pieces.
        headers: Of the request.
        pause_s: Between pieces.
        leaves: Whether the client goes away after the last piece, before the end.
    """
    parts = urlsplit(url)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    pieces = iter([body] if isinstance(body, bytes) else body)
    ended = False
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal ended
        if ended:
            await asyncio.sleep(3600)  # the client stays
        await asyncio.sleep(pause_s)
        piece = next(pieces, None)
        if piece is None and leaves:
            return {"type": "http.disconnect"}
        ended = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": not ended}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0]
    return Reply(
        start["status"],
        {name.decode().lower(): value.decode() for name, value in start["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )
