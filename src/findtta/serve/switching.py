"""Switching the served method while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from findtta.errors import first_line
from findtta.plugins import is_reference
from findtta.serve.engine import TRIAL, Description, Tried, Unavailable
from findtta.serve.requests import RequestError, json_response, parse_json, reading
from findtta.serve.settings import Choice, Settings

if TYPE_CHECKING:
    from findtta.serve.app import Frontend


class MethodRequest(BaseModel):
    """The method to serve from now on."""

    model_config = ConfigDict(strict=True, extra="forbid")

    method: str
    options: dict[str, Any] = {}


def method_routes(frontend: Frontend) -> APIRouter:
    """Return the routes that tell the served method and switch it."""
    routes = APIRouter(default_response_class=Response)
    settings, at_start = frontend.settings, frontend.description
    one_at_a_time = asyncio.Lock()

    @routes.get("/v1/method")
    async def method() -> Response:
        """Tell which method is served, with its options."""
        return json_response(_about(frontend.description))

    schema = {"content": {"application/json": {"schema": MethodRequest.model_json_schema()}}, "required": True}

    @routes.post("/v1/method", openapi_extra={"requestBody": schema})
    async def switch(request: Request) -> Response:
        """Serve another method from the next batch on, if it works on a replica; only on a server with a key."""
        if settings.kind == "ray":  # each ingress replica would know only its own method
            reason = "the method of an application on Ray Serve is changed by deploying it with another one."
            raise RequestError(403, "deploy", reason)
        if settings.api_key is None:
            reason = "the method of a server without an API key cannot be switched: start it with --api-key-file."
            raise RequestError(403, "no_key", reason)
        async with reading(settings.timeout_s):
            wanted = parse_json(MethodRequest, await request.body())
        choice = Choice.of(wanted.method, wanted.options)
        _require_no_code(choice, settings)
        async with one_at_a_time:
            before = frontend.description
            if choice == settings.choice:
                frontend.serve_under(None, at_start)
            else:
                frontend.serve_under(choice, await _try(frontend, choice))
            return json_response({**_about(frontend.description), "previous": _about(before)})

    return routes


def _about(description: Description) -> dict[str, Any]:
    names = ("method", "options", "batch_independent", "stateful", "warm_up_batches")
    return {name: getattr(description, name) for name in names}


async def _try(frontend: Frontend, choice: Choice) -> Description:
    """Have a replica predict a batch under a method, and return what would be served."""
    blank = np.zeros((2, *frontend.description.preprocessing.size, 3), np.uint8)
    try:
        tried = await frontend.engine.predict(blank, choice._replace(use=TRIAL), once=True)
    except (TimeoutError, Unavailable):
        raise
    except Exception as error:  # of the method, whatever it is
        reason = f"the method stays {frontend.description.method!r}: {first_line(error)}"
        raise RequestError(422, "bad_method", reason) from error
    assert isinstance(tried, Tried)
    return tried.description


def _require_no_code(choice: Choice, settings: Settings) -> None:
    """Refuse files and modules as methods or options: a key for predictions must not allow to run code."""
    shadow = settings.shadow_choice
    if choice == settings.choice or (shadow is not None and choice[:2] == shadow[:2]):
        return
    for text in _texts(choice[:2]):
        # Also the second of two methods, as in "find+lame".
        if any(map(is_reference, (text, *text.split("+")))):
            raise RequestError(
                422,
                "bad_method",
                f"the method and its options must be names, got {text[:100]!r}: code of files and modules is "
                "served only if --method or --shadow named it at the start.",
            )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
