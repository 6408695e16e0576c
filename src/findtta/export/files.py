"""Writing exported files: traced, described, checked, and only then put in place."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import findtta
from findtta._io import atomic_write
from findtta.errors import OptionError, first_line
from findtta.export.checking import TOLERANCE, Check, check
from findtta.export.runtimes import PREFIX, PT2_ENTRY, Description, open_described, require_export_extra
from findtta.export.tracing import (
    MAX_BATCH,
    ExportError,
    neighbour_nodes,
    program,
    quiet_torch,
    require_exportable,
    state_of,
)
from findtta.options import require_int

OPSET = 18
OPSETS = range(18, 24)

#: Called with the name of each step, which can take a minute, when it begins.
Progress = Callable[[str], object]


def onnx(
    adapted: nn.Module,
    example: Tensor,
    path: str | Path,
    *,
    images: Tensor | None = None,
    max_batch: int = MAX_BATCH,
    opset: int = OPSET,
    progress: Progress = lambda step: None,
) -> Check:
    """Write an adapted model as an ONNX file, and check it in onnxruntime before it is put in place.

    Args:
        adapted: What :func:`findtta.adapt` returned; it is not changed.
        example: A batch as the model gets it. All its sizes but the first are fixed in the file.
        path: The file to write, ending in ``.onnx``.
        images: Images to check the file on, besides random ones.
        max_batch: The largest batch that the file has to take.
        opset: The version of the ONNX operators, 18 to 23.
        progress: Called with the name of each step when it begins.

    Returns:
        How file and model compare, at several batch sizes.

    Raises:
        ExportError: If the model cannot be exported, or the file does not compute what the model computes.
        MissingExtraError: If onnx, onnxscript or onnxruntime is not installed.
    """
    require_int("opset", opset, OPSETS[0], OPSETS[-1])
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require_export_extra(module)
    return _write(adapted, example, path, images, max_batch, opset, progress)


def pt2(
    adapted: nn.Module,
    example: Tensor,
    path: str | Path,
    *,
    images: Tensor | None = None,
    max_batch: int = MAX_BATCH,
    progress: Progress = lambda step: None,
) -> Check:
    """Write an adapted model as a ``.pt2`` file of torch.export, and check it before it is put in place.

    Arguments, result and errors are those of :func:`onnx`; ``path`` ends in ``.pt2``.
    """
    return _write(adapted, example, path, images, max_batch, None, progress)


def _write(
    adapted: nn.Module,
    example: Tensor,
    path: str | Path,
    images: Tensor | None,
    max_batch: int,
    opset: int | None,
    progress: Progress,
) -> Check:
    """Trace, write and check; what is written, a ``.pt2`` file without an opset, is kept only if it passes."""
    path = Path(path)
    suffix = ".pt2" if opset is None else ".onnx"
    if path.suffix != suffix:
        raise OptionError(f"path must end in {suffix}, got {str(path)!r}.")
    if not path.parent.is_dir():
        raise OptionError(f"path: the folder {str(path.parent)!r} does not exist.")
    if isinstance(example, Tensor) and example.dtype in (torch.float16, torch.bfloat16):
        raise OptionError(
            f"example is {example.dtype}, in which a file cannot be checked to {TOLERANCE:g}: export the model in "
            "float32, and convert the convolutions of the file."
        )
    model = require_exportable(adapted)
    progress("tracing the model")
    traced = program(model, example, max_batch=max_batch)
    description = Description.of(model, example, max_batch=max_batch, neighbours=neighbour_nodes(traced))
    progress(f"writing {path.name}")
    if opset is None:
        # torch insists on the suffix, which a file that is being written does not have: to memory first.
        memory = io.BytesIO()
        torch.export.save(traced, memory, extra_files={PT2_ENTRY: json.dumps(description.to_json())})
        content = memory.getvalue()
    else:
        written = _to_onnx(traced, opset, state_of(model))
        # The values that hold first neighbours; none if they cannot be told from others.
        values = tuple(node.output[0] for node in written.graph.node if node.op_type == "ArgMax")
        neighbours = values if len(values) == len(description.neighbours) else ()
        description = dataclasses.replace(description, opset=opset, neighbours=neighbours)
        for name, value in description.to_json().items():
            written.metadata_props.add(key=PREFIX + name, value=value)
        require_export_extra("onnx").checker.check_model(written)
        refuse_training_batch_norm(written)
        content = written.SerializeToString()
    with atomic_write(path) as partial:
        partial.write_bytes(content)
        progress("checking the file against the model")
        outcome = check(open_described(partial, description, torch.get_num_threads()), model, images)
        if not outcome.passed:
            raise ExportError(f"the file does not compute what the model computes, and is not kept:\n{outcome}")
        return outcome


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


def _tidy(model: Any) -> None:
    """Fold constants, and compute once what is computed twice; in place."""
    passes = require_export_extra("onnx_ir.passes.common")
    passes.InlinePass()(model)
    require_export_extra("onnxscript.optimizer").fold_constants(model, onnx_shape_inference=True)
    for node in model.graph:
        # torch gives convolutions without a bias one of zeros, which quantisers copy under names that are taken.
        if node.op_type == "Conv" and len(node.inputs) == 3 and not node.inputs[2].const_value.numpy().any():
            node.resize_inputs(2)
    passes.RemoveUnusedNodesPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)


def _to_onnx(traced: ExportedProgram, opset: int, state: Mapping[str, Tensor]) -> Any:
    try:
        with quiet_torch(), contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
            converted: Any = torch.onnx.export(
                traced,
                dynamo=True,
                opset_version=opset,
                input_names=["images", *state],
                output_names=["logits", *(f"next.{name}" for name in state)],
                custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
                verbose=False,
                optimize=False,  # its rewriting takes time with the square of the nodes, and finds next to nothing
            )
            _tidy(converted.model)
    except Exception as error:  # whatever torch raises, there is no file
        raise ExportError(f"torch.onnx cannot write the graph: {first_line(error.__cause__ or error)}") from error
    written = converted.model_proto
    got = next(entry.version for entry in written.opset_import if not entry.domain)
    if got != opset:
        raise ExportError(f"opset {opset} was asked for, but torch.onnx wrote {got}: ask for another.")
    # What torch records about each node is half of the file, with paths of this machine in it.
    written.producer_name, written.producer_version = "findtta", findtta.__version__
    del written.metadata_props[:]
    graph = written.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    _name_batch_axis(graph)
    # An input with an initial value need not be given.
    to_onnx = require_export_extra("onnx").numpy_helper.from_array
    graph.initializer.extend(to_onnx(kept.cpu().numpy(), name) for name, kept in state.items())
    # Tools that change types or shapes, such as quantisers, fail on the recorded old ones.
    del graph.value_info[:]
    for node in graph.node:
        node.doc_string = ""
    return written


def _stable_sort(values: Any, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    """Sort in ONNX, for which torch has no translation: its TopK puts the first of equal values first."""
    op = require_export_extra("onnxscript").opset18
    count = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
    return op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)


def _name_batch_axis(graph: Any) -> None:
    """Call the first axis "batch" in the shapes of the input and the outputs; torch calls it s34 or the like."""
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = axis.dim_param.replace(symbol, "batch")
