"""``findtta report``: write stored results as one HTML page that opens without a network."""

import argparse
from pathlib import Path

from findtta.bench.store import Store
from findtta.cli.stored import RUNS, add_filters, read_runs
from findtta.errors import OptionError
from findtta.report import DATASETS, TITLE, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta report``."""
    parser.add_argument("runs", type=Path, nargs="?", metavar="RUNS", help=RUNS)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="file to write (default: report.html)",
    )
    parser.add_argument("--title", default=TITLE, help="heading of the page")
    parser.add_argument(
        "--paper",
        choices=tuple(DATASETS),
        help="show the paper's numbers for this dataset also beside runs on data that the paper does not have",
    )
    add_filters(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    if arguments.runs and not arguments.runs.exists():
        raise OptionError(f"RUNS must be a folder or an archive of results, got {str(arguments.runs)!r}.")
    store = Store(arguments.runs)
    runs, count = read_runs(store, arguments)
    if not count:
        raise OptionError(
            f"RUNS: there are no results in {str(store.folder)!r}; 'findtta run' and 'findtta bench' make some."
        )
    if not runs:
        raise OptionError(f"none of the {count} runs matches all filters: leave out some of them.")
    results = [run.result for run in runs]
    path = write(results, arguments.output, title=arguments.title, paper=arguments.paper)
    print(f"{len(runs)} run{'s' * (len(runs) != 1)} written to {path}")
    return 0
