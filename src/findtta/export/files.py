"""Writing exported files: traced, described, checked, and only then put in place."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import findtta
from findtta._io import atomic_write
from findtta.errors import OptionError
from findtta.export.checking import TOLERANCE, Check, check
from findtta.export.description import PREFIX, PT2_ENTRY, Description
from findtta.export.problems import ExportError, first_line, import_extra, require_exportable
from findtta.export.runtimes import open_described
from findtta.export.tracing import LARGEST_BATCH, neighbour_nodes, program

OPSET = 18
OPSETS = range(18, 24)


def onnx(
    adapted: nn.Module,
    example: Tensor,
    path: str | Path,
    *,
    images: Tensor | None = None,
    largest_batch: int = LARGEST_BATCH,
    opset: int = OPSET,
) -> Check:
    """Write an adapted model as an ONNX file, and check it in onnxruntime before it is put in place.

    Args:
        adapted: What :func:`findtta.adapt` returned; it is not changed.
        example: A batch as the model gets it. All its sizes but the first are fixed in the file.
        path: The file to write, ending in ``.onnx``.
        images: Images to check the file on, besides random ones.
        largest_batch: The largest batch the file has to serve.
        opset: The version of the ONNX operators, 18 to 23.

    Returns:
        How file and model compare, at several batch sizes.

    Raises:
        ExportError: If the model cannot be exported, or the file does not do what the model does.
        MissingExtraError: If onnx, onnxscript or onnxruntime is not installed.
    """
    path = _writable(path, ".onnx")
    _require_full_precision(example)
    if isinstance(opset, bool) or opset not in OPSETS:
        raise OptionError(f"opset must be a whole number from {OPSETS[0]} to {OPSETS[-1]}, got {opset!r}.")
    for module in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(module)
    model = require_exportable(adapted)
    traced = program(model, example, largest_batch=largest_batch)
    written = _to_onnx(traced, opset)
    description = Description.of(
        model,
        example,
        largest_batch=largest_batch,
        opset=opset,
        neighbours=_neighbour_values(written, len(neighbour_nodes(traced))),
    )
    for name, value in description.to_json().items():
        written.metadata_props.add(key=PREFIX + name, value=value)
    import_extra("onnx").checker.check_model(written)
    refuse_training_batch_norm(written)
    with atomic_write(path) as partial:
        partial.write_bytes(written.SerializeToString())
        return _checked(partial, description, model, images)


def pt2(
    adapted: nn.Module,
    example: Tensor,
    path: str | Path,
    *,
    images: Tensor | None = None,
    largest_batch: int = LARGEST_BATCH,
) -> Check:
    """Write an adapted model as a ``.pt2`` file of torch.export, and check it before it is put in place.

    Args:
        adapted: What :func:`findtta.adapt` returned; it is not changed.
        example: A batch as the model gets it. All its sizes but the first are fixed in the file.
        path: The file to write, ending in ``.pt2``.
        images: Images to check the file on, besides random ones.
        largest_batch: The largest batch the file has to serve.

    Returns:
        How file and model compare, at several batch sizes.

    Raises:
        ExportError: If the model cannot be exported, or the file does not do what the model does.
    """
    path = _writable(path, ".pt2")
    _require_full_precision(example)
    model = require_exportable(adapted)
    traced = program(model, example, largest_batch=largest_batch)
    description = Description.of(
        model, example, largest_batch=largest_batch, opset=None, neighbours=neighbour_nodes(traced)
    )
    with atomic_write(path) as partial:
        # torch insists on the suffix, which a file that is being written does not have: to memory first.
        memory = io.BytesIO()
        torch.export.save(traced, memory, extra_files={PT2_ENTRY: json.dumps(description.to_json())})
        partial.write_bytes(memory.getvalue())
        return _checked(partial, description, model, images)


def refuse_training_batch_norm(written: Any) -> None:
    """Raise if a node of an ONNX model is a BatchNormalization in training mode, which ignores its statistics."""
    graphs = [written.graph.node, *(function.node for function in written.functions)]
    while graphs:
        for node in graphs.pop():
            graphs += [attribute.g.node for attribute in node.attribute if attribute.HasField("g")]
            if node.op_type == "BatchNormalization" and any(
                attribute.name == "training_mode" and attribute.i for attribute in node.attribute
            ):
                raise ExportError(f"node {node.name!r} of the graph is a BatchNormalization in training mode.")


def _to_onnx(traced: ExportedProgram, opset: int) -> Any:
    try:
        # torch tells on the way what it is doing, and warns about itself.
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            converted = torch.onnx.export(
                traced,
                dynamo=True,
                opset_version=opset,
                input_names=["images"],
                output_names=["logits"],
                verbose=False,
            )
    except Exception as error:  # whatever torch raises, there is no file
        raise ExportError(f"torch.onnx cannot write the graph: {first_line(error.__cause__ or error)}") from error
    if converted is None:
        raise ExportError("torch.onnx gave no graph.")
    written = converted.model_proto
    got = next(entry.version for entry in written.opset_import if not entry.domain)
    if got != opset:
        raise ExportError(f"opset {opset} was asked for, but torch.onnx gave {got}: ask for another.")
    _forget_origin(written)
    return written


def _forget_origin(written: Any) -> None:
    """Remove what torch notes down about each node: half of the file, with paths of this machine in it."""
    written.producer_name, written.producer_version = "findtta", findtta.__version__
    del written.metadata_props[:]
    graph = written.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    # Tools that change types or shapes, such as quantisers, trip over what the old ones were.
    del graph.value_info[:]
    for node in graph.node:
        node.doc_string = ""


def _neighbour_values(written: Any, count: int) -> tuple[str, ...]:
    """Return the names of the values that hold first neighbours, or none if they cannot be told from others."""
    values = tuple(node.output[0] for node in written.graph.node if node.op_type == "ArgMax")
    return values if len(values) == count else ()


def _checked(partial: Path, description: Description, model: nn.Module, images: Tensor | None) -> Check:
    outcome = check(open_described(partial, description, torch.get_num_threads()), model, images)
    if not outcome.passed:
        raise ExportError(f"the file does not do what the model does, and is not kept:\n{outcome}")
    return outcome


def _require_full_precision(example: Tensor) -> None:
    if isinstance(example, Tensor) and example.dtype in (torch.float16, torch.bfloat16):
        raise OptionError(
            f"example is {example.dtype}, in which no file can be checked to {TOLERANCE:g}: export the model in "
            "float32, and convert the convolutions of the file."
        )


def _writable(path: str | Path, suffix: str) -> Path:
    path = Path(path)
    if path.suffix != suffix:
        raise OptionError(f"path must end in {suffix}, got {str(path)!r}.")
    if not path.parent.is_dir():
        raise OptionError(f"path: the folder {str(path.parent)!r} does not exist.")
    return path
