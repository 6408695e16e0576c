"""Adapted models as files that run without this package: ONNX and torch.export."""

from findtta.export.checking import BATCH_SIZES, BatchCheck, Check, check
from findtta.export.files import OPSET, onnx, pt2
from findtta.export.runtimes import Description, Runtime, describe, load
from findtta.export.tracing import MAX_BATCH, ExportError, program

__all__ = [
    "BATCH_SIZES",
    "MAX_BATCH",
    "OPSET",
    "BatchCheck",
    "Check",
    "Description",
    "ExportError",
    "Runtime",
    "check",
    "describe",
    "load",
    "onnx",
    "program",
    "pt2",
]
