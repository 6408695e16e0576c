"""See what adaptation does: seven methods, three streams of drifted images, about a minute."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta demo``."""
    parser.add_argument("--seed", type=int, default=0, help="seed of the streams (default: 0)")
    parser.add_argument("--images", type=int, help="images per kind of drift (default: 160)")
    parser.add_argument(
        "--runs", metavar="DIR", type=Path, default=Path("findtta-runs/demo"), help="where the results are kept"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print what it shows."""
    from tqdm.auto import tqdm

    from findtta import demo, report
    from findtta.bench.store import Store

    store = Store(arguments.runs)
    store.require_writable()
    images = arguments.images or demo.IMAGES
    print(
        f"A ResNet-26 that has learned ten shapes from clean images now gets drifted ones: fifteen kinds of\n"
        f"noise, blur, weather and compression at severity 5, {images} images each.\n"
    )
    for name, meaning in demo.STREAMS.items():
        print(f"  {name:<9} {meaning}")
    print(flush=True)
    total = len(demo.METHODS) * len(demo.STREAMS)
    with tqdm(total=total, unit="run", leave=False, disable=not sys.stderr.isatty()) as bar:
        finished: set[str] = set()

        def show(name: str, done: float, accuracy: float) -> None:
            bar.set_description(f"{name:<22} {accuracy:5.1f}% right")
            if done == 1 and name not in finished:
                finished.add(name)
                bar.update()

        outcome = demo.run(store, seed=arguments.seed, images=images, progress=show)
    print(f"Per cent right (the plain model, source, has {outcome.source:.1f} on clean images; * is the best)\n")
    print(outcome.table())
    print(f"\n{outcome.sentences()}\n")
    page = report.write(outcome.results.values(), arguments.runs / "report.html", title="findtta demo")
    print(f"The results are in {arguments.runs}/, and as a page to open in a browser: {page}")
    print(f"To list them: findtta results --runs {arguments.runs}")
    return 0
