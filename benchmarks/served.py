"""What serving costs: the server against the same model called directly, in turn, on the same images.

``python benchmarks/served.py`` starts ``findtta serve`` with the options that it is given, and prints for rounds
that alternate between the two: images per second at many connections and of an offline loop in batches of 64, once
on pixels and once on the files that the clients send; the latency of one image; and the CPU time of client, HTTP
side and replica, since on few cores they compete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from loadtest import LoadOptions, drive, replicas
from loadtest_inputs import Inputs

from findtta.images import Pixels
from findtta.predictor import Predictor
from findtta.serve import Settings
from findtta.serve.requests import read_images
from findtta.tables import render

BATCH = 64
SINGLES = 100


def main() -> int:
    """Measure, and print medians and quartiles over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000, help="requests per round (default: 4000)")
    parser.add_argument("--connections", type=int, default=64, help="connections at one time (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="how often to go round (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of replica and loop (default: 1)")
    parser.add_argument("server", nargs="*", help="further options of 'findtta serve', behind --")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = Settings()
    predictor = settings.predictor()
    inputs = Inputs("shapes", 4 * BATCH, bad=0, per_request=1, seed=0, oversize_mb=1)
    files = [inputs[number].body for number in range(4 * BATCH)]
    pixels, _ = read_images(files, settings.image_limits, predictor.preprocess)
    command = [sys.executable, "-m", "findtta", "serve", "--port", "0", "--threads", str(arguments.threads)]
    rounds = []
    with running([*command, *arguments.server]) as (url, server):
        measure(url, server, 500, arguments.connections, predictor, files, pixels)  # to warm up
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
            rounds.append(
                measure(url, server, arguments.requests, arguments.connections, predictor, files, pixels)
            )
    rows = [(name, *quartiles([each[name] for each in rounds])) for name in rounds[0]]
    print(render(("", "lower quartile", "median", "upper quartile"), rows))
    return 0


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server; gives its URL and its process as soon as it has nothing to do but to serve."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit("the server did not start")
        url = line.split()[-1]
        try:
            while get(f"{url}/v1/overview")["status"] == "computing":
                time.sleep(0.5)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()


def get(url: str) -> Any:
    """Return what a server tells in JSON."""
    with urllib.request.urlopen(url) as response:
        return json.load(response)


def measure(
    url: str,
    server: psutil.Process,
    requests: int,
    connections: int,
    predictor: Predictor,
    files: list[bytes],
    pixels: list[Pixels],
) -> dict[str, float]:
    """Return the figures of one round."""
    limits = Settings().image_limits
    batches = range(0, len(files), BATCH)
    passes = max(1, requests // (2 * len(files)))

    def offline(load: Callable[[slice], list[Pixels]]) -> float:
        start = time.perf_counter()
        for _ in range(passes):
            for begin in batches:
                predictor(np.stack(load(slice(begin, begin + BATCH))))
        return passes * len(files) / (time.perf_counter() - start)

    def decode(where: slice) -> list[Pixels]:
        return read_images(files[where], limits, predictor.preprocess)[0]

    on_pixels, on_files = offline(lambda where: pixels[where]), offline(decode)
    processes = {"client": psutil.Process(), "HTTP side": server, "replica": replicas(server.pid)[0]}
    before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    found = asyncio.run(drive(LoadOptions(url=url, requests=requests, saturate=True, concurrency=connections)))
    after = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    require_passed(found)
    served = found["images_per_second"]
    alone = asyncio.run(drive(LoadOptions(url=url, requests=SINGLES, saturate=True, concurrency=1)))
    require_passed(alone)
    singles = []
    for image in pixels[:SINGLES]:
        start = time.perf_counter()
        predictor(image[None])
        singles.append(1000 * (time.perf_counter() - start))
    one, one_offline = alone["milliseconds"]["good"]["p50"], statistics.median(singles)
    return {
        "images/s offline, pixels in memory": on_pixels,
        "images/s offline, files decoded first": on_files,
        f"images/s served, {connections} connections": served,
        "served / offline on pixels": served / on_pixels,
        "served / offline on files": served / on_files,
        "p50 in ms": found["milliseconds"]["good"]["p50"],
        **{f"CPU ms per image, {name}": 1000 * (after[name] - before[name]) / requests for name in processes},
        "one image in ms, served": one,
        "one image in ms, offline": one_offline,
        "one image in ms, difference": one - one_offline,
    }


def require_passed(found: dict[str, Any]) -> None:
    """Stop if a request was lost, swapped or refused: speed alone is nothing."""
    if not found["passed"] or found["counts"]["refused"]:
        sys.exit(f"the load test failed: {found['counts']} {found['examples']}")


def quartiles(values: list[float]) -> list[str]:
    """Return the quartiles as text."""
    return [f"{value:.2f}" for value in np.percentile(values, (25, 50, 75))]


if __name__ == "__main__":
    sys.exit(main())
