"""``findtta leaderboard``: write all methods on all streams as one page, from stored results."""

import argparse
import shlex
from pathlib import Path

from findtta._io import write_file
from findtta.bench.store import Store
from findtta.cli.stored import RUNS, add_filters, read_runs
from findtta.errors import OptionError
from findtta.report.leaderboard import LEADERBOARD, NO_COSTS, Costs, html, markdown

_WRITERS = {".md": markdown, ".html": html}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta leaderboard``."""
    parser.add_argument("runs", type=Path, nargs="?", metavar="RUNS", help=RUNS)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        nargs="+",
        default=[Path("leaderboard.md"), Path("leaderboard.html")],
        metavar="FILE",
        help="files to write, .md or .html (default: leaderboard.md leaderboard.html)",
    )
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="times and memory that benchmarks/method_costs.py has measured"
    )
    parser.add_argument("--title", default=LEADERBOARD, help="heading of the page")
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="what else a reader must know, such as the commit"
    )
    add_filters(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the pages."""
    for path in arguments.output:
        if path.suffix.lower() not in _WRITERS:
            raise OptionError(f"--output must be files ending in {' or '.join(_WRITERS)}, got {path.name!r}.")
    if arguments.runs and not arguments.runs.exists():
        raise OptionError(f"RUNS must be a folder of results or an archive, got {str(arguments.runs)!r}.")
    costs = Costs.read(arguments.costs) if arguments.costs else NO_COSTS
    runs, count = read_runs(Store(arguments.runs), arguments)
    if not runs:
        raise OptionError(
            f"none of the {count} runs matches all filters: leave out some of them."
            if count
            else "RUNS: there are no results; 'findtta bench leaderboard' makes some."
        )
    command = ["findtta", "leaderboard", *map(_public, [arguments.runs] if arguments.runs else [])]
    command += ["--costs", _public(arguments.costs)] if arguments.costs else []
    command += ["--note", arguments.note] if arguments.note else []
    command += ["-o", *map(_public, arguments.output)]
    said = {"title": arguments.title, "note": arguments.note, "command": shlex.join(command)}
    for path in arguments.output:
        text = _WRITERS[path.suffix.lower()]([run.result for run in runs], costs, **said)
        write_file(path, text.encode())
        print(f"{len(runs)} run{'s' * (len(runs) != 1)} written to {path}")
    return 0


def _public(path: Path) -> str:
    """Return a path as the page may show it: one from the root says where this machine keeps its files."""
    return path.name if path.is_absolute() else path.as_posix()
