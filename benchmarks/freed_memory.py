"""What does it cost that glibc gives freed feature maps back to the system? Pairs of processes, in turn.

One process of a pair leaves the allocator as it is, the other keeps what it frees, as the commands of findtta do::

    python benchmarks/freed_memory.py --model cifar10-resnet26 --method find

Prints the time of the second as a ratio to that of the first: the median over pairs, and quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

import torch

import findtta
from findtta._processes import ALLOCATOR_SETTINGS, keep_freed_memory

CALLS = 10


def seconds(model: str, method: str, batch_size: int, train: bool) -> float:
    """Return how long a batch takes here, the median over some: a forward pass, or a step of training."""
    torch.set_num_threads(1)
    source = findtta.models.load(model)
    size = source.card.image_size or 224
    images = torch.rand(batch_size, 3, size, size)
    adapted = source.train() if train else findtta.adapt(source, method)
    times = []
    for _ in range(CALLS + 2):
        began = time.perf_counter()
        outputs = adapted(images)
        if train:
            outputs.square().mean().backward()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def main() -> None:
    """Measure pairs of processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar10-resnet26", help="a shipped model")
    parser.add_argument("--method", default="find")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--train", action="store_true", help="forward and backward passes in training mode")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--one", choices=("as it is", "kept"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        if arguments.one == "kept":
            keep_freed_memory()
        print(seconds(arguments.model, arguments.method, arguments.batch_size, arguments.train))
        return
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_SETTINGS.values()}
    ratios = []
    for _ in range(arguments.pairs):
        taken = [
            float(subprocess.check_output([sys.executable, *sys.argv, "--one", one], env=environment))
            for one in ("as it is", "kept")
        ]
        ratios.append(taken[1] / taken[0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{middle:.2f} [{low:.2f}, {high:.2f}] times as long with freed memory kept ({arguments.pairs} pairs)")


if __name__ == "__main__":
    main()
