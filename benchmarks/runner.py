"""What the benchmark's runner costs beside a bare loop, and whether its memory grows with the stream.

    python benchmarks/runner.py                       FIND on a ResNet-26, batch 64
    python benchmarks/runner.py --method tbn --batch-size 16

Both go over the same batches with the same adapted model; the bare loop only counts right answers. Images are
held in memory, since making or reading them would hide the difference. Ratios are medians over rounds, with
quartiles in brackets. Run it alone: a second busy process distorts every number here.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys

import numpy as np
import torch
from harness import interleave, ratios

from findtta import adapt, streams
from findtta.bench import Plan, Planner, RunSpec, run
from findtta.data.dataset import HeldDataset
from findtta.images import to_input
from findtta.models import build
from findtta.tables import render

DOMAINS = ("fog", "contrast", "gaussian_noise")
LENGTHS = (1, 10)


def make_plan(method: str, batch_size: int, images: int, rounds: int = 1) -> Plan:
    """Plan a run on images in memory, with a ResNet-26 of random weights."""
    count = {"count": images}
    spec = RunSpec(method=method, data_options=count, images=None, domains=DOMAINS, model=f"{__file__}:resnet26")
    plan = Planner().plan(dataclasses.replace(spec, batch_size=batch_size))
    held = HeldDataset(plan.dataset)
    for domain in held.domains:
        held.images(domain, np.arange(len(held.labels(domain))))
    stream = streams.make("lifelong", held, batch_size=batch_size, rounds=rounds)
    return dataclasses.replace(plan, dataset=held, stream=stream)


def resnet26() -> torch.nn.Module:
    """Build the model."""
    torch.manual_seed(0)
    return build("resnet26", num_classes=10, normalization="half")


def bare_loop(plan: Plan) -> int:
    """Do no more than has to be done to count right answers."""
    adapted = adapt(plan.model, plan.spec.method, **plan.options)
    adapted.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    right = 0
    for batch in plan.stream:
        images, labels = plan.dataset.batch(batch.domain_ids, batch.rows)
        right += int((adapted(to_input(images)).argmax(1) == torch.from_numpy(labels)).sum())
    return right


def measure_time(method: str, batch_size: int, images: int, rounds: int) -> str:
    """Compare the runner with the bare loop."""
    plan = make_plan(method, batch_size, images)
    samples = len(plan.stream.rows)
    assert round(run(plan).accuracy * samples / 100) == bare_loop(plan), "the two did not do the same"
    times = interleave({"bare loop": lambda: bare_loop(plan), "runner": lambda: run(plan)}, rounds)
    to_bare = ratios(times, "bare loop")
    rows = [
        [name, f"{1e3 * min(seconds) / len(plan.stream):.2f}", to_bare[name]] for name, seconds in times.items()
    ]
    return render(["", "best ms per batch", "ratio to the bare loop"], rows)


def measure_memory(method: str, batch_size: int, images: int) -> str:
    """Peak memory by the length of the stream, each in a process of its own."""
    rows = []
    for length in LENGTHS:
        command = [sys.executable, __file__, "--method", method, "--batch-size", str(batch_size)]
        command += ["--images", str(images), "--peak-of-rounds", str(length)]
        peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append([f"{length} x {images * len(DOMAINS)} images", f"{peak:.1f}"])
    growth = float(rows[-1][1]) - float(rows[0][1])
    return render(["stream", "peak MB"], rows) + f"\ngrowth: {growth:+.1f} MB"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="find")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=640, help="per domain (default: 640)")
    parser.add_argument("--rounds", type=int, default=9, help="of the comparison (default: 9)")
    parser.add_argument("--only", choices=("time", "memory"))
    parser.add_argument("--peak-of-rounds", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    method, batch_size, images = arguments.method, arguments.batch_size, arguments.images
    if arguments.peak_of_rounds:
        print(run(make_plan(method, batch_size, images, arguments.peak_of_rounds)).cost["peak_memory_mb"])
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {method}, batch {batch_size}\n")
    if arguments.only != "memory":
        print(f"{measure_time(method, batch_size, images, arguments.rounds)}\n", flush=True)
    if arguments.only != "time":
        print(measure_memory(method, batch_size, images))


if __name__ == "__main__":
    main()
