"""What the functions in C pay: forward passes with and without them, interleaved in one run.

    python benchmarks/native.py                     ResNet-20 and ResNet-26, both layouts, batches of 1 to 256
    python benchmarks/native.py --batch-sizes 64

Ratios are medians over rounds, with quartiles in brackets. Run it alone: a second busy process distorts them.
"""

from __future__ import annotations

import argparse

import torch
from forward import LAYOUTS, forward
from harness import interleave, ratios
from torch import Tensor

from findtta import adapt
from findtta.functional import native
from findtta.models import build
from findtta.tables import render


def measure(arch: str, layout: str, batch_size: int, rounds: int) -> list[list[str]]:
    """Return a row for each method: with C and without it to the unadapted model, and one to the other."""
    torch.manual_seed(0)
    model = build(arch, num_classes=10, normalization="cifar10").eval()
    model.to(memory_format=LAYOUTS[layout])  # type: ignore[call-overload]
    batch = torch.rand(batch_size, 3, 32, 32).to(memory_format=LAYOUTS[layout])
    calls = {"plain": forward(model, batch)}
    for method in ("find", "find-soft"):
        adapted = adapt(model, method)
        inside = forward(adapted, batch)

        def without(call: object = inside) -> Tensor:
            with native.disabled():
                return call()  # type: ignore[operator]

        calls |= {f"{method}, C": inside, f"{method}, torch": without}
    times = interleave(calls, rounds, 2)
    to_plain, rows = ratios(times, "plain"), []
    for method in ("find", "find-soft"):
        to_torch = ratios(times, f"{method}, torch")[f"{method}, C"]
        compared = (to_plain[f"{method}, torch"], to_plain[f"{method}, C"], to_torch)
        rows.append([arch, layout, str(batch_size), method, *compared])
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet20", "resnet26"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; functions in C: {native.status()}\n")
    rows = []
    for arch in arguments.models:
        for layout in LAYOUTS:
            for batch_size in arguments.batch_sizes:
                rows += measure(arch, layout, batch_size, arguments.rounds)
    header = ["model", "layout", "batch", "method", "torch / plain", "C / plain", "C / torch"]
    print(render(header, rows))


if __name__ == "__main__":
    main()
