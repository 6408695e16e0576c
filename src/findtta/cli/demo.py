"""``findtta demo``: compare nine methods on three streams of corrupted images, in about a minute."""

import argparse
from pathlib import Path

from findtta import demo
from findtta._progress import progress_bar
from findtta.bench.executors import Task
from findtta.bench.store import Store
from findtta.cli.output import print_text
from findtta.errors import MissingExtraError
from findtta.report import write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta demo``."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the streams (default: 0)")
    parser.add_argument(
        "--images",
        type=int,
        default=demo.IMAGES,
        metavar="N",
        help=f"images per corruption (default: {demo.IMAGES})",
    )
    folder = Path("findtta-runs/demo")
    parser.add_argument(
        "--runs", type=Path, default=folder, metavar="DIR", help=f"folder of the results (default: {folder})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print what it shows."""
    store = Store(arguments.runs)
    store.require_writable()
    print(
        f"A ResNet-26 that was trained on clean images of ten shapes now gets corrupted ones: fifteen kinds of\n"
        f"noise, blur, weather and compression at severity 5, {arguments.images} images each.\n"
    )
    for name, meaning in demo.STREAMS.items():
        print(f"  {name:<9} {meaning}")
    print(flush=True)
    with progress_bar(len(demo.METHODS) * len(demo.STREAMS), "run") as bar:

        def watch(task: Task, done: float, accuracy: float) -> None:
            bar.set_description(f"{task.spec.method} on {task.spec.stream}: accuracy {accuracy:.1f} %")
            bar.update(int(done == 0))

        outcome = demo.run(store, seed=arguments.seed, images=arguments.images, watch=watch)
    print_text(f"{outcome.table()}\n\n{outcome.sentences()}")
    print(f"On clean images the source model has {outcome.source:.1f}%.\n")
    try:
        page = write(outcome.results.values(), arguments.runs / "report.html", title="findtta demo")
        print(f"The results are in {arguments.runs}/, and as a page to open in a browser: {page}")
    except MissingExtraError as error:
        print(f"The results are in {arguments.runs}/; {error} for them as a page.")
    print(f"To list them: findtta results --runs {arguments.runs}")
    return 0
