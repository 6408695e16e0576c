"""Look at stored results: list, compare, show or export them."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from findtta._extras import require
from findtta._io import atomic_write, finite, write_parquet
from findtta.bench.flat import FLAT_COLUMNS, flat
from findtta.bench.result import Result
from findtta.bench.store import Store
from findtta.bench.tables import VALUES, compare
from findtta.bench.wording import AXES
from findtta.cli.stored import Entry, add_filters, filtered, read_runs, warn
from findtta.errors import OptionError
from findtta.tables import render

_SHORTEST_SHOWN = 8  # characters of a digest
_COLUMNS = tuple(FLAT_COLUMNS)
_SETTINGS = _COLUMNS[_COLUMNS.index("method") : _COLUMNS.index("samples")]
_MEASURES = tuple(name for name in _COLUMNS[_COLUMNS.index("samples") :] if not name.startswith("failure"))
_LAYER_COLUMNS = ("name", "kind", "channels", "groups_mean", "groups_std", "score", "split")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta results``."""
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="DIR",
        help="folder of the results (default: $FINDTTA_RUNS, or findtta-runs here)",
    )
    actions = parser.add_argument_group("what to do instead of listing them").add_mutually_exclusive_group()
    actions.add_argument("--compare", action="store_true", help="tables of methods against streams")
    actions.add_argument("--show", metavar="DIGEST", help="one run in full; the first characters will do")
    actions.add_argument("--failed", action="store_true", help="the errors of runs that failed")
    actions.add_argument("--export", type=Path, metavar="FILE", help="one row per run, as .csv or .parquet")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    add_filters(parser)
    tables = parser.add_argument_group("with --compare")
    tables.add_argument("--value", choices=tuple(VALUES), help="what cells show (default: accuracy)")
    tables.add_argument("--rows", choices=tuple(AXES), help="default: method")
    tables.add_argument("--columns", choices=tuple(AXES), help="default: stream")
    tables.add_argument(
        "--mix",
        action="store_true",
        default=None,
        help="one table for all; settings that differ become columns of their own",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what is asked for."""
    table_options = ("value", "rows", "columns", "mix")
    unused = [name for name in table_options if getattr(arguments, name) is not None and not arguments.compare]
    if unused:
        raise OptionError(f"--{unused[0]} belongs to --compare: give both, or neither.")
    if arguments.export:
        _require_exportable(arguments.export)
    if arguments.runs and not arguments.runs.exists():
        raise OptionError(f"--runs must be a folder of results, but {str(arguments.runs)!r} does not exist.")
    store = Store(arguments.runs)
    if arguments.show is not None:
        _show(store.find(arguments.show), as_json=arguments.json)
        return 0
    entries, problems = read_runs(store)
    warn(problems)
    chosen = filtered(entries, arguments)
    if not entries and not arguments.json and not arguments.export:
        _print(
            f"There are no results in {str(store.folder)!r}: 'findtta run' and 'findtta bench' make some, --runs "
            "names another folder."
        )
    elif arguments.export:
        _export([entry.result for entry in chosen], arguments.export)
    elif arguments.compare:
        _compare(chosen, arguments)
    elif arguments.failed:
        _list_failed(chosen, as_json=arguments.json)
    else:
        _list(chosen, len(entries), as_json=arguments.json)
    return 0


def _list(entries: Sequence[Entry], count: int, *, as_json: bool) -> None:
    if as_json:
        _print_json(flat(entry.result for entry in entries))
        return
    if not entries:
        _print(f"None of the {count} runs has all that was asked for.")
        return
    header = ("digest", "method", "stream", "data", "model", "seed", "batch", "images", "accuracy", "ms", "status")
    length = _telling_length([entry.result.digest for entry in entries])
    _print(render(header, [_list_row(entry, length) for entry in entries]))
    failed = sum(entry.result.status == "failed" for entry in entries)
    _print(f"\n{_counted(len(entries))}" + (f", {failed} of them failed (--failed shows why)" if failed else ""))


def _list_row(entry: Entry, length: int) -> tuple[object, ...]:
    words, result = entry.words, entry.result
    is_done = result.status == "done"
    return (
        result.digest[:length],
        words.get("method"),
        words.get("stream"),
        words.get("data"),
        words.get("model"),
        entry.seed,
        words.get("batch size"),
        words.get("images"),
        f"{result.metrics['accuracy']:.2f}" if is_done else None,
        f"{VALUES['latency'].read(result):.1f}" if is_done else None,
        f"{result.status}, collapsed" if result.collapse else result.status,
    )


def _telling_length(digests: Sequence[str]) -> int:
    """Return how much of the digests must be shown to tell them apart."""
    length = _SHORTEST_SHOWN
    while len({digest[:length] for digest in digests}) < len(digests):
        length += 1
    return length


def _list_failed(entries: Sequence[Entry], *, as_json: bool) -> None:
    failed = [entry for entry in entries if entry.result.status == "failed"]
    if as_json:
        _print_json(flat(entry.result for entry in failed))
        return
    for entry in failed:
        error, fields = entry.result.error or {}, ("method", "stream", "data", "model", "batch size")
        what = ", ".join(f"{name} {entry.words[name]}" for name in fields if name in entry.words)
        _print(f"{entry.result.digest}: {what}, seed {entry.seed}")
        _print(f"  {error.get('type')}: {error.get('message')}".replace("\n", "\n  "))
    _print(f"{_counted(len(failed))} failed." if failed else f"None of the {len(entries)} runs failed.")


def _compare(entries: Sequence[Entry], arguments: argparse.Namespace) -> None:
    tables = compare(
        [entry.result for entry in entries],
        rows=arguments.rows or "method",
        columns=arguments.columns or "stream",
        value=arguments.value or "accuracy",
        mix=bool(arguments.mix),
    )
    if arguments.json:
        _print_json([table.to_dict() for table in tables])
        return
    _print("\n\n".join(map(str, tables)) if tables else "There is no run to compare.")
    unplaced = sum(not entry.result.config for entry in entries)
    if unplaced:
        _print(f"\n{_counted(unplaced)} failed too early to have a place in a table: see --failed.")


def _show(result: Result, *, as_json: bool) -> None:
    if as_json:
        _print_json(json.loads(result.to_json()))
        return
    _print("\n\n".join(_sections(result)))


def _sections(result: Result) -> Iterable[str]:
    """Yield all there is about a run, whatever of it there is."""
    (row,) = flat([result])
    yield f"{result.digest}: {result.status}"
    if result.error:
        yield f"{result.error.get('type')}: {result.error.get('message')}"
    for title, names in (("setting", _SETTINGS), ("measure", _MEASURES)):
        facts = [(name.replace("_", " "), _fact(row[name])) for name in names if row[name] is not None]
        if facts:
            yield render((title, "value"), facts)
    for title, parts in (("domain", result.per_domain), ("class", result.per_class)):
        whole = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
        if whole:
            rows = [(name, part.get("samples"), _percent(part.get("accuracy"))) for name, part in whole.items()]
            yield render((title, "samples", "accuracy %"), rows)
    if len(result.per_round) > 1:
        rounds = [(number, _percent(value)) for number, value in enumerate(result.per_round, 1)]
        yield render(("round", "accuracy %"), rounds)
    layers = [layer for layer in result.layers if isinstance(layer, Mapping)]
    filled = [name for name in _LAYER_COLUMNS if any(layer.get(name) is not None for layer in layers)]
    if filled:
        header = ["layer" if name == "name" else name.replace("_", " ") for name in filled]
        yield render(header, [[layer.get(name) for name in filled] for layer in layers])


def _fact(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _percent(value: object) -> str | None:
    number = _number(value)
    return None if number is None else f"{number:.2f}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _counted(runs: int) -> str:
    return f"{runs} run" if runs == 1 else f"{runs} runs"


def _require_exportable(path: Path) -> None:
    """Raise before anything is read if the file cannot be what was asked for."""
    if path.suffix.lower() not in _WRITERS:
        raise OptionError(f"--export must be a file ending in {' or '.join(_WRITERS)}, got {path.name!r}.")
    if path.suffix.lower() == ".parquet":
        require("pyarrow", "results", "writing Parquet files")


def _export(results: Sequence[Result], path: Path) -> None:
    if not results:
        raise OptionError("--export: there is no run to export, so no file is written.")
    try:
        with atomic_write(path) as partial:
            _WRITERS[path.suffix.lower()](flat(results), partial)
    except OSError as error:
        raise OptionError(f"--export: {str(path)!r} cannot be written ({error.strerror or error}).") from error
    _print(f"{_counted(len(results))} written to {path}")


def _write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FLAT_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    path.touch(exist_ok=False)  # reports what is wrong with the path as the system does
    write_parquet(path, FLAT_COLUMNS, rows)


_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}


def _print(text: str) -> None:
    """Print what the terminal may not have all characters for."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("±", "+-").encode(encoding, "replace").decode(encoding)
    print(text)


def _print_json(value: Any) -> None:
    print(json.dumps(finite(value), indent=1))
