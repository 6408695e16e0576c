"""The Open Inference Protocol (version 2) of KServe, Triton and MLServer: requests and responses as tensors.

Tensors are JSON, or binary after the JSON (the extension "binary_tensor_data"); "classification" lists the most
probable classes. What the protocol calls an inference is a prediction for each image of the request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import Response

import findtta
from findtta._io import finite
from findtta.images import Pixels, Preprocessing
from findtta.serve.requests import (
    JSON_BYTES,
    Chunks,
    Received,
    RequestError,
    json_response,
    parse_json,
    read_images,
    require_count,
    types_within,
)
from findtta.serve.settings import Settings

if TYPE_CHECKING:
    from findtta.serve.app import Frontend
    from findtta.serve.engine import Row

VERSION = "1"  # of the model, which has one
INPUT = "images"
OUTPUTS = {"probabilities": "FP32", "label": "INT64", "class": "BYTES", "group": "INT64", "drift": "FP32"}
_TYPES: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("u1"), "FP32": np.dtype("<f4")}


class Tensor(BaseModel):
    """An input."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None  # or binary, after the JSON


class Wanted(BaseModel):
    """An output that is requested."""

    name: str
    parameters: dict[str, Any] = {}


class Inference(BaseModel):
    """The JSON of a request."""

    id: str | None = None
    inputs: list[Tensor]
    outputs: list[Wanted] | None = None
    parameters: dict[str, Any] = {}


def inference_routes(frontend: Frontend) -> APIRouter:
    """Return the routes under ``/v2``."""
    routes = APIRouter(tags=["Open Inference Protocol"], default_response_class=Response)
    description = frontend.description
    outputs = _Outputs(description.labels)

    def require_model(name: str, version: str = VERSION) -> None:
        if name != description.model or version != VERSION:
            known = f"model must be {description.model!r}, version {VERSION}"
            raise RequestError(404, "not_found", f"{known}, got {name!r}, version {version[:20]}.")

    @routes.get("/v2")
    async def server() -> Response:
        """Describe the server."""
        extensions = ["binary_tensor_data", "classification"]
        return json_response({"name": "findtta", "version": findtta.__version__, "extensions": extensions})

    routes.get("/v2/health/live")(frontend.live)
    routes.get("/v2/health/ready")(frontend.health)

    @routes.get("/v2/models/{name}/versions/{version}")
    @routes.get("/v2/models/{name}")
    async def model(name: str, version: str = VERSION) -> Response:
        """Describe the inputs and outputs of the model."""
        require_model(name, version)
        height, width = description.preprocessing.size
        also = f"FP32 [-1, 3, {height}, {width}] from 0 to 1, read as 8 bits; BYTES [-1], image files"
        return json_response(
            {
                "name": name,
                "versions": [VERSION],
                "platform": "pytorch_findtta",
                "inputs": [
                    {"name": INPUT, "datatype": "UINT8", "shape": [-1, -1, -1, 3], "parameters": {"or": also}}
                ],
                "outputs": outputs.metadata,
            }
        )

    @routes.get("/v2/models/{name}/versions/{version}/ready")
    @routes.get("/v2/models/{name}/ready")
    async def ready(name: str, version: str = VERSION) -> Response:
        """Tell whether the model accepts requests."""
        require_model(name, version)
        return await frontend.health()

    @routes.post("/v2/models/{name}/versions/{version}/infer")
    @routes.post("/v2/models/{name}/infer")
    async def infer(request: Request, name: str, version: str = VERSION) -> Response:
        """Predict images that are sent as a tensor."""
        require_model(name, version)
        read = partial(read_inference, json_bytes=request.headers.get(JSON_BYTES))
        rows, inference = await frontend.predict_images(request, receive_body, read)
        head = {
            "model_name": name,
            "model_version": VERSION,
            **({} if inference.id is None else {"id": inference.id}),
            "parameters": {name: getattr(rows[0], name) for name in ("batch_id", "batch_size", "method")},
        }
        return outputs.respond(head, inference, rows)

    return routes


async def receive_body(headers: Headers, chunks: Chunks, max_images: int) -> bytes:
    """Read a whole body as it arrives."""
    if headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "unsupported_type", "the body must not be compressed.")
    return b"".join([chunk async for chunk in chunks])


def read_inference(
    body: bytes, settings: Settings, preprocessing: Preprocessing, json_bytes: str | None = None
) -> tuple[list[Pixels], Inference]:
    """Return the images of a request as inputs of the model, and its JSON.

    Args:
        body: JSON, then binary data if ``json_bytes`` is given.
        settings: The limits.
        preprocessing: What becomes of the images.
        json_bytes: The header that says how many bytes of the body are JSON.
    """
    size = len(body) if json_bytes is None else int(json_bytes[:20]) if json_bytes.isdecimal() else -1
    if not 0 <= size <= min(len(body), settings.max_json_bytes):
        raise _bad(f"{JSON_BYTES} must be a number of bytes up to that of the body, got {json_bytes!r}.")
    inference = parse_json(Inference, body[:size])
    names = [tensor.name for tensor in inference.inputs]
    if names != [INPUT]:
        raise _bad(f"inputs must be one tensor named {INPUT!r}, got {names[:5]}.")
    asked = [wanted.name for wanted in inference.outputs or ()]
    for name in asked:
        if name not in OUTPUTS:
            raise _bad(f"outputs must be among {', '.join(OUTPUTS)}, got {name[:100]!r}.")
    if len(asked) != len(set(asked)):
        raise _bad("outputs must each be asked for once.")
    images = _images(inference.inputs[0], body[size:], settings)
    return read_images(images, settings.image_limits, preprocessing)[0], inference


def _images(tensor: Tensor, binary: bytes, settings: Settings) -> Sequence[Received]:
    """Return the images of a tensor."""
    shape, kind = tensor.shape, tensor.datatype
    count = shape[0] if shape else 0
    fits = {
        "UINT8": len(shape) == 4 and shape[3] == 3,
        "FP32": len(shape) == 4 and shape[1] == 3,
        "BYTES": len(shape) == 1,
    }
    if not fits.get(kind) or min(shape) < 0 or max(shape) > settings.max_body_bytes:
        expected = "UINT8 [n, height, width, 3], FP32 [n, 3, height, width] or BYTES [n]"
        raise _bad(f"{INPUT} must be {expected}, got {kind[:20]} {str(shape[:8])[:100]}.")
    require_count(count, settings)
    size = tensor.parameters.get("binary_data_size")
    if size is None and tensor.data is None:
        raise _bad(f"{INPUT} must have data, or binary_data_size among its parameters.")
    if size is not None and size != len(binary):
        raise _bad(f"binary_data_size of {INPUT} must be that of the binary data, {len(binary)}, got {size!r}.")
    if kind == "BYTES":
        files = _split(binary) if size is not None else tensor.data or []
        if len(files) != count:
            raise _bad(f"{INPUT} must have {count} elements, got {len(files)}.")
        return files
    numbers = _numbers(tensor.data or [], binary, size is not None, _TYPES[kind])
    if numbers.size != math.prod(shape):
        raise _bad(f"{INPUT} must have {math.prod(shape)} numbers, as its shape says, got {numbers.size}.")
    array = numbers.reshape(shape)
    return list(array if kind == "UINT8" else array.transpose(0, 2, 3, 1))


def _numbers(data: list[Any], binary: bytes, is_binary: bool, kind: np.dtype[Any]) -> NDArray[Any]:
    if is_binary:
        if len(binary) % kind.itemsize:
            raise _bad(f"the binary data of {INPUT} must be whole numbers of {kind.itemsize} bytes.")
        return np.frombuffer(binary, kind)
    # Lists with anything but numbers in them could become arrays of any size.
    allowed = {int} if kind.kind == "u" else {int, float}
    if types_within(data) - allowed:
        raise _bad(f"data of {INPUT} must be {'whole numbers' if kind.kind == 'u' else 'numbers'}.")
    try:
        # Whole numbers out of range are refused with the image.
        return np.array(data, np.int64 if kind.kind == "u" else kind)
    except (ValueError, OverflowError) as error:
        raise _bad(f"data of {INPUT} must be lists of one length with numbers in range.") from error


def _split(binary: bytes) -> list[bytes]:
    """Return the elements of a binary tensor of bytes: each after its length in four bytes."""
    elements, start = [], 0
    while start < len(binary):
        end = start + 4 + int.from_bytes(binary[start : start + 4], "little")
        if end > len(binary):
            raise _bad(f"the binary data of {INPUT} must be elements after their lengths, but ends early.")
        elements.append(binary[start + 4 : end])
        start = end
    return elements


def _bad(message: str) -> RequestError:
    return RequestError(400, "bad_tensor", message)


class _Outputs:
    """The outputs, and how they are written."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = np.array([label.encode() for label in labels], object)
        self.metadata = [
            {"name": name, "datatype": kind, "shape": [-1, len(labels)] if name == "probabilities" else [-1]}
            for name, kind in OUTPUTS.items()
        ]

    def respond(self, head: dict[str, Any], inference: Inference, rows: Sequence[Row]) -> Response:
        """Return the response with the outputs that are requested, or with all of them."""
        by_default = inference.parameters.get("binary_data_output", False) is True
        outputs, parts = [], []
        for wanted in inference.outputs or [Wanted(name=name) for name in OUTPUTS]:
            kind, values = self._values(wanted, rows)
            output: dict[str, Any] = {"name": wanted.name, "datatype": kind, "shape": list(values.shape)}
            if wanted.parameters.get("binary_data", by_default) is True:
                parts.append(_binary(values))
                output["parameters"] = {"binary_data_size": len(parts[-1])}
            else:
                flat = values.ravel().tolist()
                output["data"] = [item.decode() for item in flat] if kind == "BYTES" else flat
            outputs.append(output)
        content = {**head, "outputs": outputs}
        if not parts:
            return json_response(content)
        text = json.dumps(finite(content)).encode()
        return Response(b"".join([text, *parts]), 200, {JSON_BYTES: str(len(text))}, "application/octet-stream")

    def _values(self, wanted: Wanted, rows: Sequence[Row]) -> tuple[str, NDArray[Any]]:
        probabilities = np.stack([row.probabilities for row in rows]).astype("<f4")
        count = wanted.parameters.get("classification")
        if count:
            if wanted.name != "probabilities" or not isinstance(count, int) or count < 1:
                raise _bad(f"classification must be a number of classes, and of probabilities, got {count!r}.")
            best = np.argsort(-probabilities, 1, kind="stable")[:, :count]
            texts = [
                [f"{row[index]:f}:{index}:{self._labels[index].decode()}".encode() for index in indices]
                for row, indices in zip(probabilities, best, strict=True)
            ]
            return "BYTES", np.array(texts, object)
        label = probabilities.argmax(1)
        values: dict[str, NDArray[Any]] = {
            "probabilities": probabilities,
            "label": label.astype("<i8"),
            "class": self._labels[label],
            "group": np.array([row.group for row in rows], "<i8"),
            "drift": np.array([row.drift for row in rows], "<f4"),
        }
        return OUTPUTS[wanted.name], values[wanted.name]


def _binary(values: NDArray[Any]) -> bytes:
    if values.dtype != object:
        return values.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in values.ravel())
