"""What FIND costs: forward passes of plain and adapted networks, interleaved in one run.

    python benchmarks/forward.py                 both networks, both memory layouts, growth, memory
    python benchmarks/forward.py --network resnet20 --only time

Ratios to the plain network are medians over rounds, with quartiles in brackets. Run it alone: a
second busy process distorts every number here.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from harness import interleave, ratios
from networks import NETWORKS, build
from torch import Tensor, nn
from variants import naive_find, variants

from findtta import adapt
from findtta._table import render
from findtta.layers.surgery import adaptive_layers

LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
ROUNDS = {"resnet20": (25, 4), "resnet50": (6, 1)}


def forward(model: nn.Module, batch: Tensor) -> Callable[[], Tensor]:
    """Return a call of the model under inference mode."""

    def call() -> Tensor:
        with torch.inference_mode():
            result: Tensor = model(batch)
            return result

    return call


def measure_time(name: str, layout: str, batch_size: int) -> str:
    """Whole-network forward passes."""
    network, size = build(name)
    memory_format = LAYOUTS[layout]
    batch = torch.randn(batch_size, 3, size, size).to(memory_format=memory_format)
    models = {
        label: model.to(memory_format=memory_format)  # type: ignore[call-overload]
        for label, model in variants(network, batch).items()
    }
    rounds, calls = ROUNDS[name]
    times = interleave({label: forward(model, batch) for label, model in models.items()}, rounds, calls)
    to_plain, to_tbn = ratios(times, "plain"), ratios(times, "TBN (PyTorch's own)")
    rows = [[label, f"{1e3 * min(times[label]):.1f}", to_plain[label], to_tbn[label]] for label in models]
    return render(["forward pass", "best ms", "ratio to plain", "ratio to PyTorch's TBN"], rows)


def measure_layers(name: str, layout: str, batch_size: int) -> str:
    """Normalisation layers alone: FIND against the loop over groups."""
    network, size = build(name)
    batch = torch.randn(batch_size, 3, size, size).to(memory_format=LAYOUTS[layout])
    quick, naive = adapt(network, "find", reuse_buffers=False), naive_find(network)
    inputs: dict[str, Tensor] = {}

    def record(layer_name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _module, args: inputs.__setitem__(layer_name, args[0].clone())

    handles = [layer.register_forward_pre_hook(record(key)) for key, layer in quick.layers()]
    forward(quick.to(memory_format=LAYOUTS[layout]), batch)()  # type: ignore[call-overload]
    for handle in handles:
        handle.remove()

    def all_layers(layers: dict[str, nn.Module]) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode():
                for key, layer in layers.items():
                    layer(inputs[key])

        return call

    functions = {"FIND": all_layers(dict(quick.layers())), "loop": all_layers(dict(adaptive_layers(naive)))}
    times = interleave(functions, 5)
    return f"all normalisation layers, loop over groups / FIND: {ratios(times, 'FIND')['loop']}"


def measure_growth(name: str, layout: str) -> str:
    """How the cost of FIND over the plain network grows with the batch."""
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
    """Compiled networks against the plain one run eagerly."""
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
            "--network",
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
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--only", choices=("time", "layers", "growth", "memory", "compile"))
    parser.add_argument("--peak-of", metavar="METHOD", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    networks = arguments.network or list(NETWORKS)
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
                print(f"{name}, {layout}: {measure_layers(name, layout, arguments.batch_size)}\n", flush=True)
        if "memory" in wanted:
            print(f"{name}\n{measure_memory(name, arguments.batch_size)}\n", flush=True)
        if "compile" in wanted:
            print(f"{name}\n{measure_compile(name, arguments.batch_size)}\n", flush=True)
        if "growth" in wanted and name == "resnet20":
            print(f"{name}, channels-last\n{measure_growth(name, 'channels-last')}\n", flush=True)


if __name__ == "__main__":
    main()
