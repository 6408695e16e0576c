"""Asking an ASGI app without a network, through httpx."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx


async def ask(
    app: Any,
    method: str,
    url: str,
    body: bytes | Iterable[bytes] = b"",
    headers: dict[str, str] | None = None,
    *,
    pause_s: float = 0.0,
) -> httpx.Response:
    """Send one request, with its body whole or in pieces with pauses between them."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in body:
            await asyncio.sleep(pause_s)
            yield piece

    content = body if isinstance(body, bytes) else pieces()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        encoded = {name: value.encode() for name, value in (headers or {}).items()}
        return await client.request(method, url, content=content, headers=encoded)


def code(response: httpx.Response) -> str:
    """The short name of an error."""
    return response.json()["error"]["code"]
