"""``findtta results``: list, compare, show or export stored results."""

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from findtta._extras import require
from findtta._io import atomic_write, write_parquet
from findtta.bench.comparison import BASELINE, compare
from findtta.bench.naming import AXES, NamedRun, named_runs
from findtta.bench.result import FLAT_COLUMNS, FLAT_GROUPS, VALUES, Result, flat
from findtta.bench.store import ARCHIVE, Store, archive
from findtta.cli.output import print_json, print_text
from findtta.cli.stored import add_filters, add_runs, read_runs
from findtta.errors import OptionError
from findtta.tables import render

_SHORTEST_SHOWN = 8  # characters of a digest
_TABLE_OPTIONS = ("value", "rows", "columns", "against", "mix")
_LAYER_COLUMNS = ("name", "kind", "channels", "groups_mean", "groups_std", "score", "split")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta results``."""
    add_runs(parser)
    actions = parser.add_argument_group("what to do instead of listing them").add_mutually_exclusive_group()
    actions.add_argument("--compare", action="store_true", help="tables of methods against streams")
    actions.add_argument("--show", metavar="DIGEST", help="one run in full; the first characters are enough")
    actions.add_argument("--failed", action="store_true", help="the errors of runs that failed")
    actions.add_argument(
        "--export",
        type=Path,
        metavar="FILE",
        help=f"one row per run as .csv or .parquet, or whole runs and all that 'findtta paper' "
        f"measured, which --runs reads, as {ARCHIVE}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    add_filters(parser)
    tables = parser.add_argument_group("with --compare")
    tables.add_argument("--value", choices=tuple(VALUES), help="what cells show (default: accuracy)")
    tables.add_argument("--rows", choices=tuple(AXES), help="what the rows are (default: method)")
    tables.add_argument("--columns", choices=tuple(AXES), help="what the columns are (default: stream)")
    tables.add_argument(
        "--against", metavar="METHOD", help=f"method that differences are taken from (default: {BASELINE})"
    )
    tables.add_argument(
        "--mix", action="store_true", default=None, help="one table for all; settings that differ become columns"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what is asked for."""
    table_options = {name: value for name in _TABLE_OPTIONS if (value := getattr(arguments, name)) is not None}
    if table_options and not arguments.compare:
        raise OptionError(f"--{next(iter(table_options))} belongs to --compare: give both, or neither.")
    if arguments.export:
        _require_exportable(arguments.export)
    if arguments.runs and not arguments.runs.exists():
        raise OptionError(f"--runs must be a folder of results, but {str(arguments.runs)!r} does not exist.")
    store, as_json = Store(arguments.runs), arguments.json
    if arguments.show is not None:
        result = store.find(arguments.show)
        print_json(json.loads(result.to_json())) if as_json else print_text(describe(result, full=True))
        return 0
    runs, count = read_runs(store, arguments)
    if arguments.export:
        _export([run.result for run in runs], arguments.export, store)
    elif not count and not as_json:
        print_text(
            f"There are no results in {str(store.folder)!r}: 'findtta run' and 'findtta bench' make some, --runs "
            "names another folder."
        )
    elif arguments.compare:
        _compare(runs, table_options, as_json=as_json)
    else:
        shown = [run for run in runs if not (arguments.failed and run.result.is_done)]
        if as_json:
            print_json([flat(run.result) for run in shown])
        else:
            (_list_failed if arguments.failed else _list)(shown, len(runs) if arguments.failed else count)
    return 0


def _list(runs: Sequence[NamedRun], count: int) -> None:
    if not runs:
        print_text(f"None of the {count} runs matches all filters.")
        return
    columns = ("method", "stream", "data", "model", "seed", "batch", "samples", "accuracy", "ms", "status")
    length = _SHORTEST_SHOWN  # of a digest, but enough to tell them apart
    while len({run.result.digest[:length] for run in runs}) < len(runs):
        length += 1
    rows = []
    for run in runs:
        result, word = run.result, run.words.get
        names = [word(field) for field in ("method", "stream", "data", "model")]
        samples = result.config.get("stream", {}).get("samples")
        numbers = [result.seed, word("batch size"), samples and f"{samples:,}", None, None]
        if result.is_done:
            numbers[3:] = f"{result.accuracy:.2f}", f"{VALUES['latency'].read(result):.1f}"
        state = f"{result.status}, collapsed" if result.collapse else result.status
        rows.append((result.digest[:length], *names, *numbers, state))
    print_text(render(("digest", *columns), rows))
    failed = sum(not run.result.is_done for run in runs)
    print_text(f"\n{_counted(len(runs))}" + (f", {failed} of them failed (--failed shows why)" if failed else ""))


def _list_failed(runs: Sequence[NamedRun], count: int) -> None:
    for run in runs:
        fields = ("method", "stream", "data", "model", "batch size")
        what = ", ".join(f"{name} {run.words[name]}" for name in fields if name in run.words)
        print_text(f"{run.result.digest}: {what}, seed {run.result.seed}")
        print_text(f"  {run.result.error_text}".replace("\n", "\n  "))
    print_text(f"{_counted(len(runs))} failed." if runs else f"None of the {count} runs failed.")


def _compare(runs: Sequence[NamedRun], options: Mapping[str, Any], *, as_json: bool) -> None:
    tables = compare([run.result for run in runs], **options)
    if as_json:
        print_json([table.to_dict() for table in tables])
        return
    print_text("\n\n".join(map(str, tables)) if tables else "There is no run to compare.")
    unplanned = sum(not run.result.config for run in runs)
    if unplanned:
        print_text(f"\n{_counted(unplanned)} failed before the run was planned, so no table has it: see --failed.")


def describe(result: Result, *, full: bool = False) -> str:
    """Return a result for the terminal: measurements and domains, and if it is to be full, all else there is."""
    return "\n\n".join(_sections(result, full))


def _sections(result: Result, full: bool) -> Iterable[str]:
    row = flat(result)
    (named,) = named_runs([result])
    if full:
        yield f"{result.digest}: {result.status}"
    elif result.config:
        method, model, data, stream = (named.words[field] for field in ("method", "model", "data", "stream"))
        batches = f"{row['batches']} batches of {row['batch_size']}"
        yield f"{method}: {model} on {data}, {stream}, {batches}, seed {result.seed}"
    if result.error:
        yield result.error_text
    if full:
        yield render(("setting", "value"), _known(row, "settings"))
    if result.is_done:
        yield render(("measurement", "value"), [*_known(row, "measurements"), *_further(result)])
    order = result.config.get("data", {}).get("domains", ())  # that of the stream, which the file does not keep
    domains = {name: result.per_domain[name] for name in (*order, *result.per_domain) if name in result.per_domain}
    for title, parts in (("domain", domains), ("class", result.per_class if full else {})):
        if parts:
            rows = [(name, part["samples"], f"{part['accuracy']:.2f}") for name, part in parts.items()]
            yield render((title, "samples", "accuracy %"), rows)
    layers = result.layers if full else []
    filled = [name for name in _LAYER_COLUMNS if any(layer.get(name) is not None for layer in layers)]
    if filled:
        header = ["layer" if name == "name" else name.replace("_", " ") for name in filled]
        yield render(header, [[layer.get(name) for name in filled] for layer in layers])
    if full:
        yield render(("environment", "value"), _known(row, "environment"))


def _known(row: Mapping[str, Any], group: str) -> list[tuple[str, Any]]:
    return [
        (field.title, field.shown(row[name]))
        for name, field in FLAT_GROUPS[group].items()
        if row[name] is not None
    ]


def _further(result: Result) -> Iterable[tuple[str, str]]:
    """Yield what no single column of the flat row holds."""
    if len(result.per_round) > 1:
        yield "accuracy by round", ", ".join(f"{value:.2f}" for value in result.per_round)
    classes = result.per_class
    ranked = sorted(classes, key=lambda name: (classes[name]["accuracy"], name))
    for title, name in (("worst class", ranked[0]), ("best class", ranked[-1])) if ranked else ():
        yield title, f"{name}, {classes[name]['accuracy']:.2f} %"
    groups = [groups for layer in result.layers if (groups := layer.get("groups_mean")) is not None]
    if groups:
        mean, layers = sum(groups) / len(groups), len(groups)
        yield "groups per layer", f"{mean:.1f} ({min(groups):.1f} to {max(groups):.1f} over {layers} layers)"
    if not result.collapse:
        yield "collapse", "none"


def _counted(runs: int) -> str:
    return f"{runs} run" if runs == 1 else f"{runs} runs"


def _require_exportable(path: Path) -> None:
    """Raise before anything is read if the file cannot be what was asked for."""
    if path.suffix.lower() not in (".csv", ".parquet") and not path.name.endswith(ARCHIVE):
        raise OptionError(f"--export must be a file ending in .csv, .parquet or {ARCHIVE}, got {path.name!r}.")
    if path.suffix.lower() == ".parquet":
        require("pyarrow", "results", "writing Parquet files")


def _export(results: Sequence[Result], path: Path, store: Store) -> None:
    if not results:
        raise OptionError("--export: there is no run to export, so no file is written.")
    if path.name.endswith(ARCHIVE):
        archive(results, path, store.measurements())
    else:
        _export_flat(results, path)
    print_text(f"{_counted(len(results))} written to {path}")


def _export_flat(results: Sequence[Result], path: Path) -> None:
    rows = [flat(result) for result in results]
    try:
        with atomic_write(path) as partial, partial.open("x", encoding="utf-8", newline="") as file:
            if path.suffix.lower() == ".parquet":
                write_parquet(partial, FLAT_COLUMNS, rows)
            else:
                writer = csv.DictWriter(file, FLAT_COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
    except OSError as error:
        raise OptionError(f"--export: {str(path)!r} cannot be written ({error.strerror or error}).") from error
