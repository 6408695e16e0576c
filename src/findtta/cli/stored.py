"""Arguments that name the folder of results and choose among them, and reading what they choose."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from findtta.bench.naming import NamedRun, named_runs
from findtta.bench.store import Store
from findtta.cli.output import tell
from findtta.errors import UnknownNameError, close_matches

#: Help of the argument that names the folder of results.
RUNS = "folder of the results (default: $FINDTTA_RUNS, or findtta-runs here)"
_FILTERS = {
    "method": "such as find",
    "stream": "such as wild or wild:delta=0.01",
    "data": "such as shapes",
    "model": "such as shapes-resnet26",
    "seed": "seed of the run",
    "batch_size": "samples per batch",
}


def add_runs(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare ``--runs``."""
    parser.add_argument("--runs", type=Path, metavar="DIR", help=RUNS)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that choose among stored runs."""
    filters = parser.add_argument_group("which runs; each may be repeated")
    for name, meaning in _FILTERS.items():
        kind = {"type": int, "metavar": "N"} if name in ("seed", "batch_size") else {"metavar": "NAME"}
        filters.add_argument(f"--{name.replace('_', '-')}", action="append", help=meaning, **kind)
    filters.add_argument("--status", action="append", choices=("done", "failed"))


def read_runs(store: Store, arguments: argparse.Namespace) -> tuple[list[NamedRun], int]:
    """Read the stored runs, and return those that the filters let through and how many there are.

    The runs come in the order in which they began. Files that cannot be used are named on standard error; a filter
    for a name that no run has is an error.
    """
    results = list(store.all())
    if problems := store.problems:
        tell("\n  ".join([f"findtta: {len(problems)} of the files hold no result that can be used:", *problems]))
    runs = named_runs(results)
    return _filtered(runs, arguments), len(runs)


def _filtered(runs: Sequence[NamedRun], arguments: argparse.Namespace) -> list[NamedRun]:
    chosen = list(runs)
    for name in (*_FILTERS, "status"):
        wanted = set(getattr(arguments, name) or ())
        known = {value for run in runs for value in run.filter_values(name)}
        missing = sorted(wanted - known) if name != "status" and runs else []
        if missing:
            words = sorted(map(str, known))
            raise UnknownNameError(
                f"--{name.replace('_', '-')}: no run has {missing[0]!r}.{close_matches(str(missing[0]), words)} "
                f"There are {', '.join(words[:20])}{', ...' * (len(words) > 20)}."
            )
        if wanted:
            chosen = [run for run in chosen if wanted & run.filter_values(name)]
    return chosen
