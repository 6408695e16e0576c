"""What adaptation costs: forward passes of adapted models beside the source model's, interleaved in one run.

    python benchmarks/forward.py eager                  FIND and find-soft, batches of 16 to 1024
    python benchmarks/forward.py small                  the same for batches of 1 to 8, as in serving
    python benchmarks/forward.py eager --without-c      and how the layers of PyTorch's operations do
    python benchmarks/forward.py variants               the limit, other methods, FIND as a loop over groups
    python benchmarks/forward.py growth --figure F.png  time and memory by batch, depth, channels and image size
    python benchmarks/forward.py eager --cpu-time       in CPU time of one thread, where the machine is not quiet

Ratios to the source model are medians over rounds, with quartiles in brackets. Run it alone: a second busy process
distorts every number here. With ``--device cuda`` times are taken by events after a warm-up, and memory is the
allocator's peak; no GPU has run it yet.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from harness import interleave_for, quartiles, ratios
from torch import Tensor, nn
from variants import pytorch_tbn, variants
from zoo import MODELS, build, settle

from findtta import adapt, plots
from findtta.functional import native
from findtta.models.resnet_cifar import CifarResNet
from findtta.tables import render

LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
METHODS = ("find", "find-soft")
LARGE, SMALL = (16, 64, 256, 1024), (1, 2, 4, 8)
MOST = {"resnet50": 64}  # images in a batch, where more would take minutes
#: FIND against batch statistics, as published: latency and memory.
PUBLISHED = {"time": 3.0, "memory": 1.67}
GROWTH = {
    "batch": (1, 16, 64, 256, 1024),
    "depth": (8, 20, 56),
    "channels": (8, 16, 32),
    "image size": (16, 32, 64),
}
USUAL = {"batch": 64, "depth": 20, "channels": 16, "image size": 32}

Call = Callable[[], Tensor]


def forward(model: nn.Module, batch: Tensor, *, with_c: bool = True) -> Call:
    """Return a call of the model under inference mode."""

    def call() -> Tensor:
        with torch.inference_mode():
            if with_c:
                return model(batch)
            with native.disabled():
                return model(batch)

    return call


def placed(model: nn.Module, layout: str, device: str) -> nn.Module:
    """Put a model on a device, in a memory layout."""
    return model.to(device, memory_format=LAYOUTS[layout])  # type: ignore[call-overload]


def images(count: int, size: int, layout: str, device: str) -> Tensor:
    """Return a batch of noise."""
    return torch.randn(count, 3, size, size, device=device).to(memory_format=LAYOUTS[layout])


def eager(arguments: argparse.Namespace, batch_sizes: Iterable[int]) -> Iterator[str]:
    """FIND and find-soft by model, layout and batch size."""
    columns = [(method, with_c) for with_c in (True, False)[: 1 + arguments.without_c] for method in METHODS]
    names = [method + ("" if with_c else ", without C") for method, with_c in columns]
    for name in arguments.models:
        for layout in arguments.layouts:
            network, size = build(name)
            network = placed(network, layout, arguments.device)
            adapted = {method: adapt(network, method) for method in METHODS}
            rows = []
            for batch_size in batch_sizes:
                if batch_size > MOST.get(name, batch_size):
                    continue
                batch = images(batch_size, size, layout, arguments.device)
                calls = {"source": forward(network, batch)}
                for column, (method, with_c) in zip(names, columns, strict=True):
                    calls[column] = forward(adapted[method], batch, with_c=with_c)
                times = interleave_for(calls, arguments.seconds, arguments.device, arguments.clock)
                to_source = ratios(times, "source")
                best = f"{1e3 * min(times['source']):.2f}"
                rows.append([batch_size, best, *(to_source[column] for column in names)])
            yield f"{name}, {layout}\n" + render(["batch", "source, best ms", *names], rows)


def compare(arguments: argparse.Namespace) -> Iterator[str]:
    """All that FIND is timed against."""
    for name in arguments.models:
        for layout in arguments.layouts:
            network, size = build(name)
            network = placed(network, layout, arguments.device)
            batch = images(64, size, layout, arguments.device)
            models = {label: placed(model, layout, arguments.device) for label, model in variants(network, batch)}
            calls = {label: forward(model, batch) for label, model in models.items()}
            times = interleave_for(calls, 2 * arguments.seconds, arguments.device, arguments.clock)
            to_source = ratios(times, "source")
            rows = [[label, f"{1e3 * min(times[label]):.1f}", to_source[label]] for label in models]
            yield f"{name}, {layout}, batch 64\n" + render(["forward pass", "best ms", "ratio to source"], rows)


def growth(arguments: argparse.Namespace) -> Iterator[str]:
    """Time and memory of a ResNet-20 as one of its sizes grows."""
    panels = []
    for what, values in GROWTH.items():
        measured: dict[str, dict[str, list[float]]] = {"time": {}, "memory": {}}
        rows = []
        for value in values:
            times, memory = cost(USUAL | {what: value}, arguments)
            rows.append([value, *(f"{ratio:.2f}" for ratio in (*times.values(), *memory.values()))])
            for kind, ratios_ in (("time", times), ("memory", memory)):
                for name, ratio in ratios_.items():
                    measured[kind].setdefault(name, []).append(ratio)
        header = [what, *(f"{kind}, {name}" for kind, by_name in measured.items() for name in by_name)]
        yield render(header, rows)
        panels += [panel(kind, what, values, by_name) for kind, by_name in measured.items()]
    if arguments.figure:
        ordered = [*panels[::2], *panels[1::2]]
        drawn = plots.render(
            lambda figure: plots.draw_panels(figure, ordered, len(GROWTH)), (13, 5.6), kinds=("png",), dpi=100
        )
        arguments.figure.write_bytes(drawn["png"])
        yield f"drawn: {arguments.figure}"


def panel(kind: str, what: str, values: tuple[int, ...], by_name: dict[str, list[float]]) -> plots.Panel:
    """Return one panel of the figure."""
    places = tuple(map(float, values))
    series = [plots.Series(name=name, look=name, x=places, y=tuple(y)) for name, y in by_name.items()]
    published = tuple(PUBLISHED[kind] * ratio for ratio in by_name["tbn"])
    name = "published FIND"
    series.append(plots.Series(name=name, look="noise", x=places, y=published))
    return plots.Panel(
        title="",
        x=what,
        y=f"{'time' if kind == 'time' else 'peak memory'} / source model",
        series=tuple(series),
        doubling=True,
        ticks={str(value): float(value) for value in values},
        legend=(kind, what) == ("time", "batch"),
    )


def cost(sizes: dict[str, int], arguments: argparse.Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """Return time and peak memory of each method as ratios to the source model."""
    torch.manual_seed(0)
    size, layout = sizes["image size"], arguments.layouts[0]
    new = CifarResNet(sizes["depth"], 10, classic=True, width=sizes["channels"])
    network = placed(settle(new, size), layout, arguments.device)
    batch = images(sizes["batch"], size, layout, arguments.device)
    models = {"source": network, "tbn": pytorch_tbn(network)} | {name: adapt(network, name) for name in METHODS}
    calls = {name: forward(model, batch) for name, model in models.items()}
    middle = {
        name: median
        for name, (_, median, _) in quartiles(
            interleave_for(calls, arguments.seconds, arguments.device, arguments.clock), "source"
        ).items()
    }
    peaks = {name: peak_memory(call, arguments.device) for name, call in calls.items()}
    others = [name for name in models if name != "source"]
    return {name: middle[name] for name in others}, {name: peaks[name] / peaks["source"] for name in others}


def peak_memory(call: Call, device: str) -> float:
    """Return how many bytes more than before a call needs at its peak (on a GPU: with the model and the batch)."""
    call()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        call()
        return float(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is held
    before = _kib(status, "VmRSS")
    call()
    return 1024 * (_kib(status, "VmHWM") - before)


def _kib(status: Path, field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", status.read_text())
    assert found is not None
    return float(found[1])


def main() -> None:
    """Run what the command line asks for."""
    blocks: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
        "eager": lambda chosen: eager(chosen, chosen.batch_sizes or LARGE),
        "small": lambda chosen: eager(chosen, chosen.batch_sizes or SMALL),
        "variants": compare,
        "growth": growth,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("block", choices=blocks)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--batch-sizes", nargs="+", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row (default: 4)")
    parser.add_argument(
        "--cpu-time",
        dest="clock",
        action="store_const",
        const=time.process_time,
        default=time.perf_counter,
        help="one thread, without what other processes take",
    )
    parser.add_argument("--without-c", action="store_true", help="time PyTorch's operations as well")
    parser.add_argument("--figure", type=Path, help="where growth is drawn")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    if arguments.clock is time.process_time:
        torch.set_num_threads(1)
    threads = f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {arguments.device}, {threads}; functions in C: {native.status()}\n")
    for part in blocks[arguments.block](arguments):
        print(f"{part}\n", flush=True)


if __name__ == "__main__":
    main()
