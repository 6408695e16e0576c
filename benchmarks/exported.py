"""What FIND costs in onnxruntime, and what smaller numbers cost it: exported files, interleaved in one run.

    python benchmarks/exported.py                     times and accuracy of the shipped ResNet-26
    python benchmarks/exported.py --only time --model resnet20
    python benchmarks/exported.py --only accuracy --model resnet20 --weights FILE --data cifar10_test.npz

Ratios to the exported unadapted model are medians over batches that go through all files in turn. Nodes are those
of the graph that onnxruntime runs, after its own optimisation.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from zoo import build

from findtta import adapt, export, models, streams
from findtta.bench.evaluate import interleaved_ratios
from findtta.data.open import load as load_data
from findtta.errors import first_line
from findtta.images import to_input
from findtta.tables import render

METHODS = ("source", "tbn", "find", "find-soft")
MODELS = ("shapes-resnet26", "resnet20", "resnet50")
ROUNDS = {"shapes-resnet26": 15, "resnet20": 25, "resnet50": 4}
CALIBRATION_BATCHES = 4
# Statistics and neighbours stay in float32.
QUANTIZED = {"Conv", "Gemm"}

Logits = Callable[[Tensor], Any]


def network(name: str) -> tuple[nn.Module, int]:
    """Return a model, and the side of its images."""
    return (models.load(name), 32) if name == "shapes-resnet26" else build(name)


def session(path: Path, threads: int) -> Logits:
    """Open an ONNX file, ours or one made from it, as a function of a batch."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    opened = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (given,) = opened.get_inputs()
    return lambda batch: opened.run(None, {given.name: batch.numpy()})[0]


def measure_time(name: str, batch_size: int, folder: Path, threads: int) -> str:
    """Whole models in onnxruntime, and in torch for comparison."""
    net, size = network(name)
    example = torch.rand(2, 3, size, size)
    calls: dict[str, Logits] = {}
    nodes: dict[str, int] = {}
    for method in METHODS:
        adapted = adapt(net, method)
        path = folder / f"{method}.onnx"
        export.onnx(adapted, example, path)
        calls[f"{method}, onnxruntime"] = session(path, threads)
        nodes[f"{method}, onnxruntime"] = optimized_nodes(path)
        calls[f"{method}, torch"] = adapted
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(batch_size, 3, size, size, generator=generator) for _ in range(ROUNDS[name])]
    to_onnx = interleaved_ratios(calls, batches, baseline="source, onnxruntime", warmup=2)
    rows = [(label, f"{ratio:.2f}", nodes.get(label)) for label, ratio in to_onnx.items()]
    return render((f"{name}, {size} px, batch {batch_size}", "ratio to source, onnxruntime", "nodes"), rows)


def optimized_nodes(path: Path) -> int:
    """Count the nodes that onnxruntime runs for an ONNX file."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    onnx: Any = importlib.import_module("onnx")
    return len(onnx.load(options.optimized_model_filepath).graph.node)


def crossmix(data: str | None, count: int, batch_size: int) -> list[tuple[Tensor, np.ndarray[Any, Any]]]:
    """Return mixed batches of drifted images, of shapes if no data is given, and their labels."""
    each = -(-count // 15)
    dataset = load_data("shapes", count=each).pick() if data is None else load_data(data).pick(limit=each)
    result = []
    for batch in streams.make("crossmix", dataset, batch_size=batch_size):
        images, labels = dataset.batch(batch.domain_ids, batch.rows)
        result.append((to_input(images).contiguous(), labels))
    return result


def smaller(path: Path, batches: list[Tensor], folder: Path) -> Mapping[str, Callable[[], Path]]:
    """Return what makes each smaller form of a file."""
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    onnx: Any = importlib.import_module("onnx")

    def dynamic() -> Path:
        out = folder / f"dynamic-{path.name}"
        quantization.quantize_dynamic(path, out, op_types_to_quantize=sorted(QUANTIZED))
        return out

    def static() -> Path:
        out = folder / f"static-{path.name}"
        name = onnx.load(path).graph.input[0].name

        class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self.left = iter([{name: batch.numpy()} for batch in batches])

            def get_next(self) -> dict[str, Any] | None:
                return next(self.left, None)

        quantization.quantize_static(path, out, Reader(), op_types_to_quantize=sorted(QUANTIZED))
        return out

    def mixed() -> Path:
        out = folder / f"float16-{path.name}"
        model = onnx.load(path)
        others = {node.op_type for node in model.graph.node} - QUANTIZED
        convert: Any = importlib.import_module("onnxruntime.transformers.float16").convert_float_to_float16
        onnx.save(convert(model, keep_io_types=True, op_block_list=sorted(others)), out)
        return out

    return {
        "int8 weights (dynamic)": dynamic,
        "int8 convolutions (static QDQ)": static,
        "float16 convolutions": mixed,
    }


def measure_accuracy(
    net: nn.Module, data: str | None, count: int, batch_size: int, folder: Path, threads: int
) -> str:
    """Accuracy and time of smaller forms of the files, on images with every drift."""
    batches = crossmix(data, count + CALIBRATION_BATCHES * batch_size, batch_size)
    calibration, test = [images for images, _ in batches[:CALIBRATION_BATCHES]], batches[CALIBRATION_BATCHES:]
    rows = []
    for method in ("source", "find"):
        adapted = adapt(net, method)
        path = folder / f"{method}.onnx"
        export.onnx(adapted, test[0][0][:2], path)
        makers = {"float32": lambda path=path: path, **smaller(path, calibration, folder)}  # type: ignore[misc]
        forms: dict[str, Logits] = {}
        for label, make in makers.items():
            try:
                forms[label] = session(make(), threads)
                forms[label](test[0][0])
            except Exception as error:  # what does not work is a result, too
                forms.pop(label, None)
                rows.append((method, label, "-", f"does not work: {_reason(error)}"))
        ratios = interleaved_ratios(forms, [images for images, _ in test], baseline="float32")
        for label, form in forms.items():
            right = sum(int((form(images).argmax(1) == labels).sum()) for images, labels in test)
            total = sum(len(labels) for _, labels in test)
            rows.append((method, label, f"{100 * right / total:.1f} % of {total}", f"{ratios[label]:.2f}"))
    return render(("method", "numbers", "accuracy, crossmix", "time, ratio to float32"), rows)


def _reason(error: Exception) -> str:
    """Return the end of the first line of an error, which is where onnxruntime says what is wrong."""
    return first_line(error).rpartition("failed:")[2][:90]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--weights", help="of resnet20, to measure its accuracy")
    parser.add_argument("--data", help="clean test images (an npz, a folder) that accuracy is measured on")
    parser.add_argument("--images", type=int, default=600, help="that accuracy is measured on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=("time", "accuracy"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    versions = f"torch {torch.__version__}, onnxruntime {importlib.import_module('onnxruntime').__version__}"
    print(f"{versions}, {arguments.threads} threads\n")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if arguments.only != "accuracy":
            print(measure_time(arguments.model, arguments.batch_size, place, arguments.threads), "\n", flush=True)
        if arguments.only != "time" and (arguments.weights or arguments.model == "shapes-resnet26"):
            net = (
                models.load(arguments.model, weights=arguments.weights, num_classes=10, normalization="cifar10")
                if arguments.weights
                else models.load(arguments.model)
            )
            sizes = (arguments.images, arguments.batch_size)
            print(measure_accuracy(net, arguments.data, *sizes, place, arguments.threads))


if __name__ == "__main__":
    main()
