"""What an exported file says about itself."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import findtta
from findtta._extras import require
from findtta.errors import InputError
from findtta.export.tracing import require_exportable
from findtta.models.card import Classifier

PREFIX = "findtta."  # of the keys in an ONNX file
PT2_ENTRY = "findtta.json"
SUFFIXES = (".onnx", ".pt2")


def require_export_extra(module: str) -> Any:
    """Import a module of the ``export`` extra."""
    return require(module, "export", f"an ONNX file ({module})")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is needed to use an exported file."""

    method: str
    options: Mapping[str, Any]  # of the method
    input_shape: tuple[int, ...]  # of one sample, without the batch
    dtype: str  # of the input
    max_batch: int  # the largest batch that the graph takes
    labels: tuple[str, ...] | None  # names of the classes; this and the next three only where known
    mean: tuple[float, ...] | None  # what the graph subtracts from the RGB channels, on the [0, 1] scale
    std: tuple[float, ...] | None  # what it divides them by then
    model: str | None  # the architecture
    opset: int | None  # version of the ONNX operators; None in a .pt2 file
    findtta: str  # version of this package that wrote the file
    torch: str  # version of torch that traced the model
    neighbours: tuple[str, ...]  # values of the graph that hold first neighbours, one per layer that makes groups

    @classmethod
    def of(
        cls,
        adapted: nn.Module,
        example: Tensor,
        *,
        max_batch: int,
        opset: int | None,
        neighbours: tuple[str, ...],
    ) -> Description:
        """Describe the export of an adapted model, compiled or not."""
        adapted = require_exportable(adapted)
        card = adapted.model.card if isinstance(adapted.model, Classifier) else None
        return cls(
            method=adapted.name,
            options={name: _plain(value) for name, value in dataclasses.asdict(adapted.options).items()},
            input_shape=tuple(example.shape[1:]),
            dtype=str(example.dtype).removeprefix("torch."),
            max_batch=max_batch,
            labels=card.classes if card else None,
            mean=card.mean if card else None,
            std=card.std if card else None,
            model=card.arch if card else None,
            opset=opset,
            findtta=findtta.__version__,
            torch=torch.__version__.partition("+")[0],
            neighbours=neighbours,
        )

    def to_json(self) -> dict[str, str]:
        """Return every field as JSON, by its name."""
        return {name: json.dumps(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, written: Mapping[str, str]) -> Description:
        """Return the description that :meth:`to_json` wrote."""
        if "largest_batch" in written:  # of version 0.1
            written = {**written, "max_batch": written["largest_batch"]}
        fields = {field.name: json.loads(written[field.name]) for field in dataclasses.fields(cls)}
        for name in ("input_shape", "labels", "mean", "std", "neighbours"):
            fields[name] = None if fields[name] is None else tuple(fields[name])
        return cls(**fields)


def describe(path: str | Path) -> Description:
    """Read the description in a ``.onnx`` or ``.pt2`` file that this package wrote, without running it."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"path must end in {' or '.join(SUFFIXES)}, got {str(path)!r}.")
    if not path.is_file():
        raise InputError(f"path {str(path)!r} does not exist.")
    written = _written_in_onnx(path) if path.suffix == ".onnx" else _written_in_pt2(path)
    try:
        return Description.from_json(written)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f"path {str(path)!r} has no description, so this package did not write it: export the model with "
            "findtta.export."
        ) from error


def _written_in_onnx(path: Path) -> dict[str, str]:
    onnx = require_export_extra("onnx")
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf has errors of its own
        raise InputError(f"path {str(path)!r} cannot be read as ONNX: {error}") from error
    return {
        entry.key.removeprefix(PREFIX): entry.value
        for entry in model.metadata_props
        if entry.key.startswith(PREFIX)
    }


def _written_in_pt2(path: Path) -> dict[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next((name for name in archive.namelist() if name.endswith(f"/{PT2_ENTRY}")), None)
            return {} if entry is None else json.loads(archive.read(entry))
    except zipfile.BadZipFile as error:
        raise InputError(f"path {str(path)!r} cannot be read as a .pt2 file: {error}.") from error


def _plain(value: Any) -> Any:
    """Return an option as JSON can hold it; functions by their name, infinity as text."""
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value
