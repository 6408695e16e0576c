"""Running exported files: numpy arrays in, logits out."""

from __future__ import annotations

import functools
import io
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from findtta.errors import InputError
from findtta.export.description import Description, describe, require_export_extra
from findtta.options import require_int

Array = NDArray[Any]


class Runtime(ABC):
    """An exported file, ready to run: call it with a batch of images, and it returns their logits."""

    def __init__(self, path: Path, description: Description) -> None:
        self.path = path
        self.description = description

    def __call__(self, images: Array) -> Array:
        """Return the logits, ``(batch, classes)``, of floats of shape ``(batch, *description.input_shape)``."""
        return self._run(self._checked(images), neighbours=False)[0]

    def run_with_neighbours(self, images: Array) -> tuple[Array, list[Array]]:
        """Return the logits of a batch, and the first neighbours that each layer chose, ``(rows,)`` each."""
        return self._run(self._checked(images), neighbours=True)

    @abstractmethod
    def _run(self, images: Array, *, neighbours: bool) -> tuple[Array, list[Array]]:
        """Return the logits, and the first neighbours if they are asked for."""

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

    def _run(self, images: Array, *, neighbours: bool) -> tuple[Array, list[Array]]:
        session = self._neighbour_session if neighbours else self.session
        logits, *found = session.run(None, {session.get_inputs()[0].name: images})
        return logits, found


class ProgramRuntime(Runtime):
    """A ``.pt2`` file in torch."""

    def __init__(self, path: Path, description: Description) -> None:
        super().__init__(path, description)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about itself
            self.module = torch.export.load(io.BytesIO(path.read_bytes())).module()

    def _run(self, images: Array, *, neighbours: bool) -> tuple[Array, list[Array]]:
        recorder = _Recorder(self.module, self.description.neighbours)
        with torch.no_grad():
            logits = (recorder.run if neighbours else self.module)(torch.from_numpy(images))
        return logits.numpy(), recorder.values


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
        A callable that takes a batch as a numpy array and returns its logits as one.

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
