"""Running exported files, numpy arrays in, logits out, and what a file says about itself."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

import findtta
from findtta._extras import require
from findtta._io import atomic_write
from findtta.algorithms.base import Adapted
from findtta.errors import InputError, few
from findtta.export.tracing import quiet_torch, state_of
from findtta.models.card import Classifier
from findtta.options import require_int

PREFIX = "findtta."  # of the keys in an ONNX file
PT2_ENTRY = "findtta.json"
SUFFIXES = (".onnx", ".pt2")

Array = NDArray[Any]


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
    opset: int | None = None  # version of the ONNX operators; None in a .pt2 file
    findtta: str  # version of this package that wrote the file
    torch: str  # version of torch that traced the model
    state: tuple[str, ...] = ()  # what the method learns: inputs of the graph, and, after "next.", its outputs
    neighbours: tuple[str, ...]  # values of the graph that hold first neighbours, one per layer that makes groups

    @classmethod
    def of(cls, adapted: Adapted, example: Tensor, *, max_batch: int, neighbours: tuple[str, ...]) -> Description:
        """Describe the export of an adapted model as a ``.pt2`` file."""
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
            findtta=findtta.__version__,
            torch=torch.__version__.partition("+")[0],
            state=tuple(state_of(adapted)),
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
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name not in written and field.default is not dataclasses.MISSING:
                continue  # of an earlier version
            value = json.loads(written[field.name])
            fields[field.name] = tuple(value) if isinstance(value, list) else value
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


class Runtime(ABC):
    """An exported file, ready to run: call it with a batch of images, and it returns their logits.

    Where the method learns from every batch, the runtime keeps what it has learned from one call to the next,
    beginning with what is in the file. Several threads may call it; then one call follows the other.
    """

    #: The state in the file, by name; empty for a method that keeps nothing.
    initial_state: Mapping[str, Array]

    def __init__(self, path: Path, description: Description) -> None:
        self.path = path
        self.description = description
        self._lock = threading.Lock()
        self._state: Mapping[str, Array] = {}

    def __call__(self, images: Array) -> Array:
        """Return the logits, ``(batch, classes)``, of floats of shape ``(batch, *description.input_shape)``."""
        images = self._checked(images)
        with self._lock if self.description.state else contextlib.nullcontext():
            logits, self._state, _ = self._run(images, self._state, neighbours=False)
        return logits

    def run_with_neighbours(self, images: Array) -> tuple[Array, list[Array]]:
        """Return the logits of a batch, and the first neighbours that each layer chose, ``(rows,)`` each.

        Nothing is learned from the batch.
        """
        logits, _, neighbours = self._run(self._checked(images), self._state, neighbours=True)
        return logits, neighbours

    @property
    def state(self) -> dict[str, Array]:
        """What has been learned so far, by the names of the adapted model's state dict; can be set."""
        return {name: value.copy() for name, value in self._state.items()}

    @state.setter
    def state(self, state: Mapping[str, Array]) -> None:
        shapes = {name: value.shape for name, value in self.initial_state.items()}
        given = {name: np.shape(value) for name, value in state.items()}
        if given != shapes:
            wrong = [name for name in {**shapes, **given} if shapes.get(name) != given.get(name)]
            raise InputError(
                f"state must have the {len(shapes)} arrays of this file, in their shapes, got another "
                f"{few(wrong)}: it is of another model or method."
            )
        with self._lock:
            self._state = {name: np.array(state[name], kept.dtype) for name, kept in self.initial_state.items()}

    def reset(self) -> None:
        """Forget what was learned from batches: the next call begins with the state in the file."""
        self.state = self.initial_state

    def save_state(self, path: str | Path) -> None:
        """Write what has been learned to a ``.npz`` file."""
        with atomic_write(Path(path)) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **self._state)  # type: ignore[arg-type]

    def load_state(self, path: str | Path) -> None:
        """Go on from what :meth:`save_state` wrote."""
        with np.load(path, allow_pickle=False) as saved:
            self.state = dict(saved)

    @abstractmethod
    def _run(
        self, images: Array, state: Mapping[str, Array], *, neighbours: bool
    ) -> tuple[Array, Mapping[str, Array], list[Array]]:
        """Return the logits, the next state, and the first neighbours if they are asked for."""

    def _checked(self, images: Array) -> Array:
        images = np.asarray(images)
        wanted, largest = self.description.input_shape, self.description.max_batch
        if not np.issubdtype(images.dtype, np.floating) or images.shape[1:] != wanted:
            raise InputError(
                f"images must be floats of shape (batch, {', '.join(map(str, wanted))}), got "
                f"{images.dtype} of shape {images.shape}."
            )
        if not 1 <= len(images) <= largest:
            raise InputError(
                f"images must be a batch of 1 to {largest}, got {len(images)}: give several batches, or "
                "export the model again with a larger max_batch."
            )
        return np.ascontiguousarray(images, dtype=self.description.dtype)


class OnnxRuntime(Runtime):
    """A ``.onnx`` file in onnxruntime, on a number of CPU threads (None: all cores)."""

    def __init__(self, path: Path, description: Description, threads: int | None = None) -> None:
        super().__init__(path, description)
        self.threads = threads
        self.session = self._open(str(path))
        self.initial_state = self._initial_state() if description.state else {}
        self.reset()

    def _initial_state(self) -> dict[str, Array]:
        # Initial values of inputs; a session does not show them.
        onnx = require_export_extra("onnx")
        values = {value.name: value for value in onnx.load(self.path).graph.initializer}
        return {name: onnx.numpy_helper.to_array(values[name]) for name in self.description.state}

    def _open(self, model: str | bytes) -> Any:
        onnxruntime = require_export_extra("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        if self.threads is not None:
            options.intra_op_num_threads = self.threads
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    @functools.cached_property
    def _neighbour_session(self) -> Any:
        onnx = require_export_extra("onnx")
        model = onnx.load(self.path)
        kind = onnx.TensorProto.INT64
        for name in self.description.neighbours:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, [None]))
        return self._open(model.SerializeToString())

    def _run(
        self, images: Array, state: Mapping[str, Array], *, neighbours: bool
    ) -> tuple[Array, Mapping[str, Array], list[Array]]:
        session = self._neighbour_session if neighbours else self.session
        logits, *more = session.run(None, {session.get_inputs()[0].name: images, **state})
        return logits, dict(zip(state, more, strict=False)), more[len(state) :]


class ProgramRuntime(Runtime):
    """A ``.pt2`` file in torch."""

    def __init__(self, path: Path, description: Description) -> None:
        super().__init__(path, description)
        with quiet_torch():
            program = torch.export.load(io.BytesIO(path.read_bytes()))
            self.module = program.module()
        self.initial_state = {}
        if description.state:  # the state that the model was traced with is kept with the program
            assert program.example_inputs is not None
            self.initial_state = {name: kept.numpy() for name, kept in program.example_inputs[0][1].items()}
        self.reset()

    def _run(
        self, images: Array, state: Mapping[str, Array], *, neighbours: bool
    ) -> tuple[Array, Mapping[str, Array], list[Array]]:
        recorder = _Recorder(self.module, self.description.neighbours)
        inputs: list[Any] = [torch.from_numpy(images)]
        if state:
            inputs.append({name: torch.from_numpy(value) for name, value in state.items()})
        with torch.no_grad():
            outputs = recorder.run(*tree_leaves(inputs)) if neighbours else self.module(*inputs)
        logits, *more = (output.numpy() for output in tree_leaves(outputs))
        return logits, dict(zip(state, more, strict=True)), recorder.values


class _Recorder(fx.Interpreter):
    """Runs a graph, and keeps the values of some of its nodes."""

    def __init__(self, module: fx.GraphModule, names: tuple[str, ...]) -> None:
        super().__init__(module)
        self.names = set(names)
        self.values: list[Array] = []

    def run_node(self, node: fx.Node) -> Any:
        value = super().run_node(node)
        if node.name in self.names:
            self.values.append(value.numpy())
        return value


def load(path: str | Path, *, threads: int | None = None) -> Runtime:
    """Open an exported file to run it.

    Args:
        path: A ``.onnx`` file, which runs in onnxruntime, or a ``.pt2`` file, which runs in torch.
        threads: CPU threads of onnxruntime (default: all cores); torch has a setting of its own.

    Returns:
        A callable that takes a batch as a numpy array and returns its logits as one, and keeps the state of a
        method that learns.

    Raises:
        MissingExtraError: If onnx or onnxruntime is not installed.
        InputError: If the file is not there, or not written by this package.
    """
    if threads is not None:
        require_int("threads", threads)
    return open_described(Path(path), describe(path), threads)


def open_described(path: Path, description: Description, threads: int | None = None) -> Runtime:
    """Open a file whose description is known; its name may be that of a file that is still being written."""
    if description.opset is None:
        return ProgramRuntime(path, description)
    return OnnxRuntime(path, description, threads)
