"""What FIND costs: forward passes of plain and adapted models, interleaved in one run.

    python benchmarks/forward.py                 both models, both memory layouts, growth, memory
    python benchmarks/forward.py --model resnet20 --only time

Ratios to the unadapted model are medians over rounds, with quartiles in brackets. Run it alone: a
second busy process distorts every number here.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch
from harness import interleave, now, ratios
from torch import Tensor, nn
from variants import naive_find, variants
from zoo import MODELS, build

from findtta import adapt
from findtta.layers import AdaptiveNorm
from findtta.tables import render

LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
ROUNDS = {"resnet20": (25, 4), "resnet50": (4, 1)}


def forward(model: Callable[[Tensor], Tensor], batch: Tensor) -> Callable[[], Tensor]:
    """Return a call of the model under inference mode."""

    def call() -> Tensor:
        with torch.inference_mode():
            return model(batch)

    return call


def measure_time(name: str, layout: str, batch_size: int) -> str:
    """Whole-model forward passes."""
    network, size = build(name)
    memory_format = LAYOUTS[layout]
    batch = torch.randn(batch_size, 3, size, size).to(memory_format=memory_format)
    models = {
        label: model.to(memory_format=memory_format)  # type: ignore[call-overload]
        for label, model in variants(network, batch).items()
    }
    rounds, calls = ROUNDS[name]
    times = interleave({label: forward(model, batch) for label, model in models.items()}, rounds, calls)
    bases = {"plain": "plain", "PyTorch's TBN": "TBN (PyTorch's own)", "FIND": "FIND"}
    compared = [ratios(times, base) for base in bases.values()]
    rows = [[label, f"{1e3 * min(times[label]):.1f}", *(to[label] for to in compared)] for label in models]
    return render(["forward pass", "best ms", *(f"ratio to {name}" for name in bases)], rows)


def measure_layers(name: str, layout: str, batch_size: int) -> str:
    """Time spent in the normalisation layers alone, during forward passes of the whole model."""
    network, size = build(name)
    batch = torch.randn(batch_size, 3, size, size).to(memory_format=LAYOUTS[layout])
    models = {"plain": network, "FIND": adapt(network, "find"), "loop over groups": naive_find(network)}
    spent: dict[str, list[float]] = {}
    clocks = {}
    for label, model in models.items():
        model.to(memory_format=LAYOUTS[layout])  # type: ignore[call-overload]
        layers = [
            m for m in model.modules() if isinstance(m, AdaptiveNorm if label != "plain" else nn.BatchNorm2d)
        ]
        clocks[label] = clock_layers(layers)
        spent[label] = []
    for turn in range(ROUNDS[name][0]):
        for label, model in models.items():
            clocks[label].clear()
            forward(model, batch)()
            if turn:
                spent[label].append(sum(clocks[label]))
    to_plain, to_find = ratios(spent, "plain"), ratios(spent, "FIND")
    rows = [[label, f"{1e3 * min(spent[label]):.1f}", to_plain[label], to_find[label]] for label in models]
    return render(["normalisation layers alone", "best ms", "ratio to plain", "ratio to FIND"], rows)


def clock_layers(layers: Sequence[nn.Module]) -> list[float]:
    """Make layers write down how long each of their calls takes; returns the growing list."""
    seconds: list[float] = []

    def timed(call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(features: Tensor) -> Tensor:
            start = now()
            result = call(features)
            seconds.append(now() - start)
            return result

        return run

    for layer in layers:
        layer.forward = timed(layer.forward)
    return seconds


def measure_growth(name: str, layout: str) -> str:
    """How the cost of FIND over the unadapted model grows with the batch."""
    network, size = build(name)
    rows = []
    for batch_size in (16, 32, 64, 128, 256, 512, 1024):
        batch = torch.randn(batch_size, 3, size, size).to(memory_format=LAYOUTS[layout])
        plain = network.to(memory_format=LAYOUTS[layout])  # type: ignore[call-overload]
        models = {"plain": plain, "FIND": adapt(plain, "find")}
        times = interleave({label: forward(model, batch) for label, model in models.items()}, 9)
        per_image = 1e6 * min(times["FIND"]) / batch_size
        rows.append([batch_size, f"{per_image:.0f}", ratios(times, "plain")["FIND"]])
    return render(["batch", "FIND, us per image", "ratio to plain"], rows)


def measure_compile(name: str, batch_size: int) -> str:
    """Compiled models against the plain one run eagerly."""
    network, size = build(name)
    batch = torch.randn(batch_size, 3, size, size)
    adapted = adapt(network, "find")
    functions = {
        "plain": forward(network, batch),
        "plain, compiled": forward(torch.compile(network), batch),
        "FIND": forward(adapted, batch),
        "FIND, compiled": forward(torch.compile(adapted, fullgraph=True), batch),
    }
    times = interleave(functions, *ROUNDS[name])
    to_plain, to_compiled = ratios(times, "plain"), ratios(times, "plain, compiled")
    return render(
        ["torch.compile", "ratio to plain", "ratio to plain, compiled"],
        [[label, to_plain[label], to_compiled[label]] for label in functions],
    )


def measure_memory(name: str, batch_size: int) -> str:
    """Peak memory of a few forward passes, each model in a process of its own."""
    peaks = {}
    for method in ("source", "tbn", "find", "find-star"):
        command = [
            sys.executable,
            __file__,
            "--model",
            name,
            "--batch-size",
            str(batch_size),
            "--peak-of",
            method,
        ]
        peaks[method] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = [[method, f"{peak:.0f}", f"{peak / peaks['source']:.3f}"] for method, peak in peaks.items()]
    return render(["method", "peak MiB", "ratio to plain"], rows)


def peak_of(name: str, batch_size: int, method: str) -> float:
    """Peak MiB of this process after three forward passes (of the GPU where there is one)."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, size = build(name)
    batch = torch.randn(batch_size, 3, size, size, device=device)
    call = forward(adapt(network.to(device), method, inplace=True), batch)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        call()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--only", choices=("time", "layers", "growth", "memory", "compile"))
    parser.add_argument("--peak-of", metavar="METHOD", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    networks = arguments.model or list(MODELS)
    if arguments.peak_of:
        print(peak_of(networks[0], arguments.batch_size, arguments.peak_of))
        return
    torch.set_grad_enabled(False)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {arguments.batch_size}\n")
    for name in networks:
        wanted = (arguments.only,) if arguments.only else ("time", "layers", "memory", "compile", "growth")
        for layout in LAYOUTS:
            if "time" in wanted:
                print(f"{name}, {layout}\n{measure_time(name, layout, arguments.batch_size)}\n", flush=True)
            if "layers" in wanted:
                print(f"{name}, {layout}\n{measure_layers(name, layout, arguments.batch_size)}\n", flush=True)
        if "memory" in wanted:
            print(f"{name}\n{measure_memory(name, arguments.batch_size)}\n", flush=True)
        if "compile" in wanted:
            print(f"{name}\n{measure_compile(name, arguments.batch_size)}\n", flush=True)
        if "growth" in wanted and name == "resnet20":
            print(f"{name}, channels-last\n{measure_growth(name, 'channels-last')}\n", flush=True)


if __name__ == "__main__":
    main()
