"""Write stored results as one HTML page that opens anywhere, without a network."""

from __future__ import annotations

import argparse
from pathlib import Path

from findtta.bench.store import Store
from findtta.cli.stored import add_filters, filtered, read_runs, warn
from findtta.errors import OptionError
from findtta.report import write
from findtta.report.against_paper import DATASETS
from findtta.report.assemble import TITLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta report``."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="?",
        metavar="RUNS",
        help="folder of the results (default: $FINDTTA_RUNS, or findtta-runs here)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html"
    )
    parser.add_argument("--title", default=TITLE, help="heading of the page")
    parser.add_argument(
        "--paper",
        choices=tuple(DATASETS),
        help="show the paper's numbers for this data beside runs on data that the paper does not have, too",
    )
    add_filters(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    if arguments.runs and not arguments.runs.is_dir():
        raise OptionError(f"RUNS must be a folder of results, but {str(arguments.runs)!r} is none.")
    store = Store(arguments.runs)
    entries, problems = read_runs(store)
    warn(problems)
    if not entries:
        raise OptionError(
            f"RUNS: there are no results in {str(store.folder)!r}; 'findtta run' and 'findtta bench' make some."
        )
    chosen = filtered(entries, arguments)
    if not chosen:
        raise OptionError(f"none of the {len(entries)} runs has all that was asked for: leave out some filter.")
    path = write(
        [entry.result for entry in chosen], arguments.output, title=arguments.title, paper=arguments.paper
    )
    print(f"{len(chosen)} run{'s' * (len(chosen) != 1)} written to {path}")
    return 0
