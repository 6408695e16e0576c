"""What FIND costs as compiled code, beside the compiled source model; compile times and kernels are printed, too.

    python benchmarks/compiled.py                          ResNet-20 at 32 px, batches of 64 and of 1
    python benchmarks/compiled.py --threads 1 --batch-size 16

The source model is compiled by ``torch.compile`` for each batch size by itself, the adapted ones by
``adapt(model, compile=True)`` for all of them. Ratios are medians over rounds, with quartiles in brackets. Run it
alone.
"""

from __future__ import annotations

import argparse
import logging
import re
import time
from collections.abc import Callable

import torch
from harness import interleave, ratios
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from zoo import build

from findtta import adapt
from findtta.tables import render

METHODS = ("find", "find-soft", "tbn")
ROUNDS, CALLS = 25, 4
KERNEL = re.compile(r"cpp_fused\w*\(|extern_kernels\.\w+\(|torch\.ops\.\w+\.\w+\.\w+\(")


def kernels(code: list[str]) -> int:
    """Count the kernels that generated code calls."""
    return sum(len(KERNEL.findall(text[text.index("def call(") :])) for text in code)


def compiled_source(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """Compile a model as torch does by default."""
    compiled = torch.compile(network, fullgraph=True, dynamic=False)

    def call(batch: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = compiled(batch)
        return result

    return call


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, action="append", help="64 and 1 by default")
    parser.add_argument("--method", action="append", help="find, find-soft and tbn by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.getLogger("torch").setLevel(logging.ERROR)
    sizes = arguments.batch_size or [64, 1]
    network, side = build("resnet20")
    layers = sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    batches = {size: torch.randn(size, 3, side, side) for size in sizes}
    print(f"torch {torch.__version__}, {arguments.threads} threads, resnet20, {side} px, {layers} layers\n")

    calls: dict[str, Callable[[Tensor], Tensor]] = {"source, compiled": compiled_source(network)}
    rows = []
    start = time.perf_counter()
    source_kernels = 0
    for batch in batches.values():
        _, code = run_and_get_code(calls["source, compiled"], batch)
        source_kernels = source_kernels or kernels(code)
    rows.append(["source", len(sizes), f"{time.perf_counter() - start:.0f}", source_kernels, None])
    for method in arguments.method or METHODS:
        adapted = adapt(network, method, compile=True)
        first = 0
        for batch in batches.values():
            _, code = run_and_get_code(adapted, batch)
            first = first or kernels(code)
        assert adapted.compiled is not None
        each = f"{(first - source_kernels) / layers:.1f}"
        rows.append([method, adapted.compiled.graphs, f"{adapted.compiled.seconds:.0f}", first, each])
        calls[f"{method}, compiled"] = adapted
        calls[f"{method}"] = adapt(network, method)
    calls["source"] = adapt(network, "source")
    print(
        render(["compiled", "graphs", "seconds", "kernels", "more per layer than source"], rows), "\n", flush=True
    )

    for size, batch in batches.items():
        functions = {label: (lambda call=call, batch=batch: call(batch)) for label, call in calls.items()}
        times = interleave(functions, ROUNDS, CALLS)
        compared = ratios(times, "source, compiled")
        table = [[label, f"{1e3 * min(times[label]):.2f}", compared[label]] for label in calls]
        print(render([f"batch {size}", "best ms", "ratio to source, compiled"], table), "\n", flush=True)


if __name__ == "__main__":
    main()
