"""What each method costs beside the source model: time for a batch and peak memory, for the leaderboard.

Every batch goes through all methods in turn, so that other load on the machine affects all alike; the ratio to the
source model is taken batch by batch. Memory is the peak of a process of its own for each method, Python and torch
included, over two batches::

    python benchmarks/method_costs.py --model resnet20 --weights cifar10_resnet20.pt --normalization cifar10 \
      --data cifar10_test.npz -o docs/results/method-costs.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

import findtta
from findtta.bench import Planner, RunSpec
from findtta.bench.evaluate import interleaved_seconds
from findtta.bench.grid import expand, find
from findtta.paper.measure import measure_memory
from findtta.tables import render


def main() -> None:
    """Measure, print a table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="shapes-resnet26")
    parser.add_argument("--weights")
    parser.add_argument("--normalization")
    parser.add_argument("--data", default="shapes")
    parser.add_argument("--methods", nargs="+", help="default: those of the preset 'leaderboard'")
    parser.add_argument("--batches", type=int, default=7, help="that are timed (default: 7)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=("time", "memory"), help="the other is kept from the file")
    parser.add_argument("-o", "--output", type=Path, default=Path("method-costs.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    methods = arguments.methods or list(dict.fromkeys(spec.method for spec in expand(find("leaderboard"))))
    spec = RunSpec(
        model=arguments.model,
        weights=arguments.weights,
        normalization=arguments.normalization,
        data=arguments.data,
        batch_size=arguments.batch_size,
    )
    found = json.loads(arguments.output.read_text()) if arguments.only and arguments.output.exists() else {}
    if arguments.only != "memory":
        found["time"] = times(spec, methods, arguments.batches)
    if arguments.only != "time":
        found["memory"] = memories(spec, methods)
    setup = f"{arguments.model}, CPU, {arguments.threads} thread, torch {torch.__version__.partition('+')[0]}"
    found["about"] = (
        f"Time: that of a batch of {arguments.batch_size} as a ratio to the source model's ({setup}), median and "
        f"quartiles over {arguments.batches} interleaved batches. Memory: peak of a whole process, as a ratio."
    )
    arguments.output.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    time, memory = found.get("time", {}), found.get("memory", {})
    rows = [(name, *time.get(name, (None, None, None)), memory.get(name)) for name in methods]
    print(render(("method", "25%", "time", "75%", "memory"), rows))


def times(spec: RunSpec, methods: list[str], batches: int) -> dict[str, list[float]]:
    """Return the quartiles of the ratio of times to the source model, by method."""
    count = -(-batches * spec.batch_size // 15)
    plan = Planner().plan(RunSpec.from_dict(spec.to_dict() | {"images": count}))
    inputs = [batch for batch, _, _ in plan.batches(batches)]
    models = {}
    for name in methods:
        models[name] = findtta.adapt(plan.model, name)
        models[name].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for number in range(getattr(models[name].options, "cold_start", 0)):  # as it is for most of a stream
            models[name](inputs[number % len(inputs)])
    seconds = interleaved_seconds(models, inputs)
    ratios = {
        name: [own / base for own, base in zip(taken, seconds["source"], strict=True)]
        for name, taken in seconds.items()
    }
    return {name: [round(value, 3) for value in statistics.quantiles(of, n=4)] for name, of in ratios.items()}


def memories(spec: RunSpec, methods: list[str]) -> dict[str, float]:
    """Return the ratio of peak memory to that of the source model, by method."""
    planner, peaks = Planner(), {}
    for name in methods:
        two_batches = {"method": name, "images": -(-2 * spec.batch_size // 15)}
        plan = planner.plan(RunSpec.from_dict(spec.to_dict() | two_batches))
        peaks[name] = measure_memory(plan, {})["megabytes"]
        print(f"{name}: {peaks[name]:.0f} MB", flush=True)
    return {name: round(peak / peaks["source"], 3) for name, peak in peaks.items()}


if __name__ == "__main__":
    main()
