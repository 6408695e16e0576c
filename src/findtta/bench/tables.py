"""Results side by side: comparison tables, and one flat row per run for other tools.

Everything about a run but its seed is one of the ``FIELDS``. A table has one choice of them as rows and another
as columns, and all its runs agree in the rest, which its caption says; so rows that cannot be compared never
stand in one table. Cells are means over seeds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from findtta._table import render
from findtta.bench.result import Result
from findtta.data.dataset import MAIN_CORRUPTIONS, split_domain
from findtta.errors import InputError, OptionError, UnknownNameError, close_matches
from findtta.registry import load_method, method_names
from findtta.streams import SCENARIOS

#: What can stand in rows or columns, and the fields that differ along with it.
AXES: dict[str, tuple[str, ...]] = {
    "method": ("method",),
    "stream": ("stream", "edition"),
    "model": ("model", "weights"),
    "data": ("data", "domains", "images", "identity"),
    "domains": ("domains", "images", "identity"),
    "images": ("images", "identity"),
    "batch-size": ("batch size",),
    "reset": ("reset",),
    "device": ("device",),
}
FIELDS = tuple(dict.fromkeys(field for fields in AXES.values() for field in fields))

BEST = "*"
_WIDTH = 100


@dataclass(frozen=True)
class Value:
    """A number that tables can show.

    Attributes:
        title: What it is, with its unit.
        read: Gets it from a result.
        higher_is_better: Which end is the good one.
        decimals: How many are shown.
        depends_on_machine: Whether the same run gives another number elsewhere.
    """

    title: str
    read: Callable[[Result], float]
    higher_is_better: bool = False
    decimals: int = 2
    depends_on_machine: bool = False


VALUES: dict[str, Value] = {
    "accuracy": Value("accuracy in %", lambda result: result.metrics["accuracy"], higher_is_better=True),
    "error": Value("error in %", lambda result: result.metrics["error"]),
    "nll": Value("negative log-likelihood", lambda result: result.metrics["nll"], decimals=3),
    "brier": Value("Brier score", lambda result: result.metrics["brier"], decimals=3),
    "ece": Value("calibration error in %", lambda result: result.metrics["ece"]),
    "latency": Value(
        "median latency of a batch in ms", lambda result: result.cost["latency_ms"]["p50"], depends_on_machine=True
    ),
    "memory": Value(
        "peak memory in MB", lambda result: result.cost["peak_memory_mb"], decimals=0, depends_on_machine=True
    ),
}


@dataclass(frozen=True)
class Cell:
    """What the runs of one row gave in one column.

    Attributes:
        values: The number for each seed that is done.
        digests: The run behind each of these numbers.
        failed: The seeds whose runs failed.
        best: Whether it is the best of the methods it can be compared with, on all seeds that any of them has.
    """

    values: Mapping[int, float]
    digests: Mapping[int, str] = dataclasses.field(default_factory=dict)
    failed: tuple[int, ...] = ()
    best: bool = False

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN if there are none."""
        return statistics.fmean(self.values.values()) if self.values else math.nan

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds (with n - 1), or None for a single one."""
        values = list(self.values.values())
        if len(values) < 2:
            return None
        return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


@dataclass(frozen=True)
class Table:
    """A comparison: what its runs share, and what their rows and columns gave.

    Attributes:
        value: The name of the number in the cells.
        shared: The fields that all runs agree in, with what they agree on.
        row_titles: What the first entries of each row are: the rows' own, then settings that differ (if mixed).
        columns: The titles of the columns.
        rows: For each row its first entries, as many as ``row_titles``.
        cells: For each row and column a cell, or None where there is no run.
        seeds: The seeds of all its runs.
        notes: What else a reader must know.
    """

    value: str
    shared: Mapping[str, str]
    row_titles: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """What is shown, and everything that the runs share."""
        shared = "; ".join(f"{field} {text}" for field, text in self.shared.items())
        return f"{VALUES[self.value].title}, {self._seed_text()}. All rows: {shared or 'nothing in common'}."

    def __str__(self) -> str:
        columns = list(zip(*self.cells, strict=True))
        printed = [_printed(cells, len(self.seeds), VALUES[self.value].decimals) for cells in columns]
        rows = [(*row, *(texts[index] for texts in printed)) for index, row in enumerate(self.rows)]
        lines = [*_wrapped(self.caption), "", render((*self.row_titles, *self.columns), rows)]
        if any(cell and cell.best for row in self.cells for cell in row):
            where = "column" if self.row_titles[0] == "method" else "row"
            lines.append(
                f"{BEST} best method of its {where}" + ", within its setting" * (len(self.row_titles) > 1)
            )
        return "\n".join([*lines, *(line for note in self.notes for line in _wrapped(note))])

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values that JSON can write."""
        rows = []
        for row, cells in zip(self.rows, self.cells, strict=True):
            filled = {column: cell for column, cell in zip(self.columns, cells, strict=True) if cell}
            rows.append(
                {
                    **dict(zip(self.row_titles, row, strict=True)),
                    "cells": {column: _plain(cell) for column, cell in filled.items()},
                }
            )
        return {
            "value": self.value,
            "shared": dict(self.shared),
            "seeds": list(self.seeds),
            "columns": list(self.columns),
            "rows": rows,
            "notes": list(self.notes),
        }

    def _seed_text(self) -> str:
        if len(self.seeds) == 1:
            return f"seed {self.seeds[0]}"
        return f"mean ± standard deviation over seeds {_numbers(self.seeds)}"


def compare(
    results: Iterable[Result],
    rows: str = "method",
    columns: str = "stream",
    value: str = "accuracy",
    *,
    mix: bool = False,
) -> list[Table]:
    """Put results side by side, in one table for each setting whose runs can be compared.

    Two runs can be compared if they agree in all that is neither their row, nor their column, nor their seed:
    model and weights, data (content, domains with severities, number of images), stream, batch size, reset policy
    and device. For one seed, all rows of a column saw the same samples in the same order.

    Args:
        results: What runs gave. Failed ones count as missing seeds.
        rows: What stands in rows: a name in ``AXES``.
        columns: What stands in columns: a name in ``AXES``.
        value: What stands in the cells: a name in ``VALUES``.
        mix: Put everything into one table all the same; each setting that differs becomes an entry of every row.

    Returns:
        The tables.
    """
    for name, given, known in (("rows", rows, AXES), ("columns", columns, AXES), ("value", value, VALUES)):
        _require_known(name, given, known)
    if set(AXES[rows]) & set(AXES[columns]):
        raise OptionError(f"rows and columns must differ in what they show, but are {rows!r} and {columns!r}.")
    names = _Names()
    runs = names.runs(results)
    free = {*AXES[rows], *AXES[columns]}
    held = [field for field in FIELDS if field not in free]
    groups: dict[tuple[Any, ...], list[_Run]] = defaultdict(list)
    for run in runs:
        groups[() if mix else run.key(held)].append(run)
    ordered = sorted(groups.values(), key=lambda group: names.order(held, group[0].key(held)))
    return [_table(names, group, (rows, columns, value), held) for group in ordered]


def settings(results: Iterable[Result]) -> list[dict[str, str]]:
    """Return the fields of each run in words, as tables show them; if it failed early, those asked for."""
    names = _Names()
    fields = [names.fields(result) if result.config else _asked_fields(result) for result in results]
    return [{field: _text(field, value) for field, value in known.items()} for known in fields]


def what_is_missing(result: Result) -> str | None:
    """Return what keeps a result out of tables, such as metrics of another release, or None if nothing does."""
    parts = ("config",) if result.status != "done" else ("config", "metrics", "cost")
    if result.status != "done" and not result.config:
        return None
    for part in parts:
        missing = _missing(getattr(result, part), _NEEDED[part], part)
        if missing:
            return missing
    return None


_NUMBER = (int, float)
_NEEDED: dict[str, dict[str, Any]] = {
    "config": {
        "method": str,
        "options": dict,
        "model": {"name": str, "weights": str},
        "data": {"name": str, "identity": str, "generated": bool, "domains": list, "images": int},
        "stream": {"scenario": str, "settings": dict, "batch_size": int, "samples": int, "digest": str},
        "seed": int,
        "reset": str,
        "device": str,
        "versions": dict,
    },
    "metrics": dict.fromkeys(("accuracy", "error", "nll", "brier", "ece"), _NUMBER),
    "cost": {"latency_ms": {"p50": _NUMBER}, "peak_memory_mb": _NUMBER},
}


def _missing(found: Any, needed: Any, path: str) -> str | None:
    if isinstance(needed, dict):
        if not isinstance(found, Mapping):
            return f"{path} is no object"
        inside = (
            _missing(found[key], part, f"{path}.{key}") if key in found else f"{path}.{key} is missing"
            for key, part in needed.items()
        )
        return next((problem for problem in inside if problem), None)
    if needed is list:
        is_right = isinstance(found, list | tuple) and all(isinstance(item, str) for item in found)
    elif needed is dict:
        is_right = isinstance(found, Mapping)
    else:
        is_right = isinstance(found, needed) and (needed is bool or not isinstance(found, bool))
    return None if is_right else f"{path} is {found!r}"


@dataclass(frozen=True)
class _Run:
    """A result with its fields, as keys that can be compared."""

    result: Result
    fields: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return int(self.result.config["seed"])

    @property
    def is_done(self) -> bool:
        return self.result.status == "done"

    @property
    def started(self) -> float:
        started = self.result.environment.get("started")
        return float(started) if isinstance(started, int | float) else 0.0

    def key(self, fields: Iterable[str]) -> tuple[Any, ...]:
        return tuple(self.fields[field] for field in fields)

    @property
    def contest(self) -> tuple[Any, ...]:
        """All that runs of other methods must share to compete with this one."""
        return self.key(field for field in FIELDS if field != "method")


class _Names:
    """What runs are called; the registries are looked at once."""

    def __init__(self) -> None:
        self._methods = method_names()
        self._known_defaults: dict[str, Mapping[str, Any] | None] = {}

    def runs(self, results: Iterable[Result]) -> list[_Run]:
        """Return the results that can be placed in tables, with their fields."""
        runs = []
        for result in results:
            missing = what_is_missing(result)
            if missing:
                raise InputError(f"the result {result.digest!r} cannot be compared: {missing}.")
            if result.config:
                runs.append(_Run(result, self.fields(result)))
        editions = _editions(runs)
        return [
            _Run(run.result, {**run.fields, "edition": edition})
            for run, edition in zip(runs, editions, strict=True)
        ]

    def fields(self, result: Result) -> dict[str, Any]:
        """Return the fields of a run that was planned."""
        config = result.config
        data, stream, model = config["data"], config["stream"], config["model"]
        says_so = "(generated)" in data["name"] or not data["generated"]
        return {
            "method": _with_options(config["method"], self._unusual_options(result)),
            "stream": _with_settings(stream["scenario"], stream["settings"]),
            "edition": "",
            "model": model["name"],
            "weights": model["weights"],
            "data": data["name"] if says_so else f"{data['name']} (generated)",
            "domains": tuple(data["domains"]),
            "images": data["images"],
            "identity": data["identity"],
            "batch size": stream["batch_size"],
            "reset": config["reset"],
            "device": config["device"],
        }

    def order(self, fields: Sequence[str], key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return where a key comes: as the registries have it, numbers by size, else by the alphabet."""
        return tuple(self._order(field, value) for field, value in zip(fields, key, strict=True))

    def _order(self, field: str, value: Any) -> tuple[Any, ...]:
        if field == "method":
            return _place(value.partition(" (")[0], self._methods), value
        return (_place(value.partition(":")[0], list(SCENARIOS)), value) if field == "stream" else (value,)

    def _unusual_options(self, result: Result) -> dict[str, Any]:
        """Return the options that are not the method's defaults, without a seed that is just the run's."""
        asked = result.spec.get("options")
        asked = asked if isinstance(asked, Mapping) else {}
        defaults = self._defaults(result.config["method"])
        if defaults is None:  # a method of a package that is not installed here
            return dict(asked)
        return {
            name: value
            for name, value in _as_json_has_it(result.config["options"]).items()
            if (name != "seed" or "seed" in asked) and (name not in defaults or value != defaults[name])
        }

    def _defaults(self, method: str) -> Mapping[str, Any] | None:
        if method not in self._known_defaults:
            self._known_defaults[method] = _option_defaults(method) if method in self._methods else None
        return self._known_defaults[method]


def _option_defaults(method: str) -> Mapping[str, Any] | None:
    try:
        options = dataclasses.fields(load_method(method).options_type)
    except Exception:  # somebody else's broken package must not hide results
        return None
    return _as_json_has_it({field.name: field.default for field in options})


def _as_json_has_it(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are after a result was stored, where a tuple is a list."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return plain


def _asked_fields(result: Result) -> dict[str, Any]:
    """Return what a run that failed before it was planned had been asked to be."""
    spec, options = result.spec, result.spec.get("options")
    fields = {
        "method": _with_options(str(spec.get("method")), options if isinstance(options, Mapping) else {}),
        "stream": spec.get("stream"),
        "model": spec.get("model"),
        "data": spec.get("data"),
        "batch size": spec.get("batch_size"),
        "reset": spec.get("reset"),
        "device": spec.get("device"),
    }
    return {field: value for field, value in fields.items() if value is not None}


def _editions(runs: Sequence[_Run]) -> list[str]:
    """Tell apart streams that have the same name, settings and seed, but not the same samples.

    Releases may differ in the streams they make, in spite of equal settings. Where nothing differs, which is
    the rule, the edition is empty.
    """
    held = [field for field in FIELDS if field != "method"]
    digests: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    by_release: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    torn: set[tuple[Any, ...]] = set()
    torn_within_release: set[tuple[Any, ...]] = set()
    for run in runs:
        column, digest, release = run.key(held), run.result.config["stream"]["digest"], _release(run)
        digests[(*column, run.seed)].add(digest)
        by_release[(*column, run.seed, release)].add(digest)
        if len(digests[(*column, run.seed)]) > 1:
            torn.add(column)
        if len(by_release[(*column, run.seed, release)]) > 1:
            torn_within_release.add(column)
    editions = []
    for run in runs:
        column = run.key(held)
        if column in torn_within_release:
            editions.append(f"digest {run.result.config['stream']['digest'][:8]}")
        else:
            editions.append(f"findtta {_release(run)}" if column in torn else "")
    return editions


def _release(run: _Run) -> str:
    return str(run.result.config["versions"].get("findtta", "unknown"))


def _with_options(method: str, options: Mapping[str, Any]) -> str:
    return f"{method} ({', '.join(_assignments(options))})" if options else method


def _with_settings(scenario: str, settings: Mapping[str, Any]) -> str:
    kind = SCENARIOS.get(scenario)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)} if kind else {}
    unusual = {name: value for name, value in settings.items() if name not in defaults or value != defaults[name]}
    return f"{scenario}:{','.join(_assignments(unusual))}" if unusual else scenario


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in sorted(values.items())
    ]


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names)


def _text(field: str, value: Any) -> str:
    """Return a value of a field in words."""
    if field == "domains":
        return _domains_text(value)
    if field == "images":
        return f"{value:,}"
    return str(value)[:8] if field in ("weights", "identity") else str(value)


def _domains_text(domains: Sequence[str]) -> str:
    """Return which domains there are: the usual fifteen by their number, others by name."""
    kinds: dict[int | None, list[str]] = defaultdict(list)
    for domain in domains:
        kind, severity = split_domain(domain)
        kinds[severity].append(kind)
    by_kinds: dict[tuple[str, ...], list[int | None]] = defaultdict(list)
    for severity, names in kinds.items():
        by_kinds[tuple(names)].append(severity)
    return " and ".join(_kinds_text(names, severities) for names, severities in by_kinds.items())


def _kinds_text(names: tuple[str, ...], severities: Sequence[int | None]) -> str:
    text = f"the {len(names)} corruptions" if names == MAIN_CORRUPTIONS else ", ".join(names)
    levels = sorted(level for level in severities if level is not None)
    if not levels:
        return text
    return f"{text} at {'severity' if len(levels) == 1 else 'severities'} {_numbers(levels)}"


def _numbers(values: Sequence[int]) -> str:
    """Write whole numbers in order, a run of three or more as first-last."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}-{values[-1]}"
    return ", ".join(map(str, values))


def _table(names: _Names, runs: Sequence[_Run], asked: tuple[str, str, str], held: Sequence[str]) -> Table:
    rows, columns, value = asked
    differing = [field for field in held if len({run.fields[field] for run in runs}) > 1]
    row_fields, column_fields = (*AXES[rows], *differing), AXES[columns]
    own = len(AXES[rows])  # what a row is, before the settings that differ
    kept, replaced = _newest(runs)
    row_keys = sorted({run.key(row_fields) for run in kept}, key=lambda key: names.order(row_fields, key))
    column_keys = sorted({run.key(column_fields) for run in kept}, key=lambda key: names.order(column_fields, key))
    by_cell: dict[tuple[Any, Any], list[_Run]] = defaultdict(list)
    for run in kept:
        by_cell[run.key(row_fields), run.key(column_fields)].append(run)
    cells = _cells(by_cell, VALUES[value])
    row_titles = _titles({key[:own] for key in row_keys}, AXES[rows])
    column_titles = _titles(column_keys, column_fields)
    return Table(
        value=value,
        shared=_shared(runs, [field for field in held if field not in differing]),
        row_titles=(rows.replace("-", " "), *differing),
        columns=tuple(column_titles[key] for key in column_keys),
        rows=tuple((row_titles[key[:own]], *map(_text, differing, key[own:])) for key in row_keys),
        cells=tuple(tuple(cells.get((row, column)) for column in column_keys) for row in row_keys),
        seeds=tuple(sorted({run.seed for run in kept})),
        notes=tuple(_notes(kept, replaced, VALUES[value])),
    )


def _newest(runs: Sequence[_Run]) -> tuple[list[_Run], int]:
    """Keep one run for each setting, method and seed: one that is done rather than failed, then the newest.

    Releases of findtta, torch or numpy make the same run another one, and counting it twice would pass it off as
    a second seed.
    """
    kept: dict[tuple[Any, ...], _Run] = {}
    for run in sorted(runs, key=lambda run: (run.is_done, run.started, run.result.digest)):
        kept[(*run.key(FIELDS), run.seed)] = run
    return list(kept.values()), len(runs) - len(kept)


def _cells(by_cell: Mapping[tuple[Any, Any], Sequence[_Run]], value: Value) -> dict[tuple[Any, Any], Cell]:
    """Make the cells and mark the best of those that compete, if there are others among them.

    A mean over other seeds is one over other streams, so a cell that lacks a seed of its rivals does not compete.
    """
    seeds: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for runs in by_cell.values():
        seeds[runs[0].contest] |= {run.seed for run in runs}
    cells = {place: _cell(runs, value) for place, runs in by_cell.items()}
    rivals: dict[tuple[Any, ...], dict[tuple[Any, Any], float]] = defaultdict(dict)
    for place, runs in by_cell.items():
        if set(cells[place].values) == seeds[runs[0].contest] and math.isfinite(cells[place].mean):
            rivals[runs[0].contest][place] = round(cells[place].mean, value.decimals)
    for means in rivals.values():
        top = (max if value.higher_is_better else min)(means.values())
        winners = [place for place, mean in means.items() if mean == top]
        if len(winners) < len(means):
            cells |= {place: dataclasses.replace(cells[place], best=True) for place in winners}
    return cells


def _cell(runs: Sequence[_Run], value: Value) -> Cell:
    done = sorted((run for run in runs if run.is_done), key=lambda run: run.seed)
    return Cell(
        values={run.seed: float(value.read(run.result)) for run in done},
        digests={run.seed: run.result.digest for run in done},
        failed=tuple(sorted(run.seed for run in runs if not run.is_done)),
    )


def _titles(keys: Iterable[tuple[Any, ...]], fields: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """Return a title for each key: the first field in words, and as many of the others as tell keys apart."""
    titles = {key: _text(fields[0], key[0]) for key in keys}
    for index, field in enumerate(fields[1:], 1):
        shown = list(titles.values())
        titles = {
            key: f"{title}, {field} {_text(field, key[index])}".replace(", edition ", ", ")
            if shown.count(title) > 1 and key[index] != ""
            else title
            for key, title in titles.items()
        }
    return titles


def _shared(runs: Sequence[_Run], fields: Sequence[str]) -> dict[str, str]:
    return {field: text for field in fields if (text := _text(field, runs[0].fields[field]))}


def _notes(runs: Sequence[_Run], replaced: int, value: Value) -> Iterable[str]:
    samples = _samples(runs)
    if samples:
        yield f"Samples per run: {', '.join(f'{stream} {count}' for stream, count in samples.items())}."
    if replaced:
        yield f"{replaced} older or failed repetitions of the same runs, with other versions, are left out."
    for package in ("findtta", "torch", "numpy"):
        versions = sorted({str(run.result.config["versions"].get(package)) for run in runs if run.is_done})
        if len(versions) > 1:
            yield f"Runs were made with {package} {' and '.join(versions)}."
    if value.depends_on_machine:
        machines = sorted({_machine(run.result) for run in runs if run.is_done})
        yield (
            f"Measured on {' and on '.join(machines)}, each run at another time: small differences mean nothing."
        )


def _samples(runs: Sequence[_Run]) -> dict[str, str]:
    """Return how many samples the streams have that do not show every image once."""
    counts: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        counts[run.fields["stream"]].add(int(run.result.config["stream"]["samples"]))
    usual = {run.fields["images"] for run in runs}
    return {
        stream: " to ".join(f"{count:,}" for count in sorted({min(counts[stream]), max(counts[stream])}))
        for stream in sorted(counts)
        if not counts[stream] <= usual
    }


def _machine(result: Result) -> str:
    environment = result.environment
    threads = environment.get("threads")
    return f"{environment.get('system')}, {environment.get('device')}, {threads} thread{'s' * (threads != 1)}"


def _printed(cells: Sequence[Cell | None], seeds: int, decimals: int) -> list[str]:
    """Write a column's cells with their means right-aligned."""
    means = [f"{cell.mean:.{decimals}f}" if cell and cell.values else "" for cell in cells]
    width = max(map(len, means), default=0)
    return [_cell_text(cell, mean.rjust(width), seeds, decimals) for cell, mean in zip(cells, means, strict=True)]


def _cell_text(cell: Cell | None, mean: str, seeds: int, decimals: int) -> str:
    if cell is None:
        return "-"
    if not cell.values:
        return "failed"
    deviation = "" if cell.deviation is None else f" ±{cell.deviation:.{decimals}f}"
    missing = f" ({len(cell.values)} of {seeds} seeds)" if len(cell.values) < seeds else ""
    return f"{mean}{deviation}{BEST if cell.best else ''}{missing}"


def _plain(cell: Cell) -> dict[str, Any]:
    return {
        "mean": cell.mean if cell.values else None,
        "deviation": cell.deviation,
        "seeds": {str(seed): value for seed, value in cell.values.items()},
        "failed": list(cell.failed),
        "best": cell.best,
    }


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _require_known(argument: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise UnknownNameError(
            f"{argument} must be one of {', '.join(known)}, but got {name!r}.{close_matches(name, known)}"
        )


#: The columns of :func:`flat`, each with the type of its values; any of them may be None.
FLAT_COLUMNS: dict[str, type] = {
    "digest": str, "status": str,
    "method": str, "options": str,
    "model": str, "weights": str,
    "data": str, "data_identity": str, "generated": bool, "domains": str, "images": int,
    "stream": str, "stream_settings": str, "stream_digest": str, "batch_size": int, "batches": int,
    "seed": int, "reset": str, "device": str,
    "samples": int, "accuracy": float, "error": float, "mean_domain_accuracy": float,
    "nll": float, "brier": float, "ece": float, "not_finite": int,
    "latency_p50_ms": float, "latency_p95_ms": float, "latency_mean_ms": float, "images_per_second": float,
    "peak_memory_mb": float, "forward_passes": int, "backward_passes": int,
    "collapse_batch": int, "collapse_reason": str,
    "failure_type": str, "failure_message": str,
    "started": str, "seconds": float, "threads": int, "system": str,
    "findtta": str, "torch": str, "numpy": str, "python": str,
}  # fmt: skip


def flat(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return one flat row per run, with a value or None for each of ``FLAT_COLUMNS``.

    Args:
        results: What runs gave, done or failed.

    Returns:
        The rows; options and settings are JSON texts, the time of the start is ISO 8601 in UTC.
    """
    return [_flat_row(result) for result in results]


def _flat_row(result: Result) -> dict[str, Any]:
    config, spec, environment = result.config, result.spec, result.environment
    model, data, stream = (_mapping(config.get(part)) for part in ("model", "data", "stream"))
    latency, collapse, failure = map(_mapping, (result.cost.get("latency_ms"), result.collapse, result.error))
    row = {
        "digest": result.digest,
        "status": result.status,
        "method": config.get("method", spec.get("method")),
        "options": _json(config.get("options", spec.get("options"))),
        "model": model.get("name", spec.get("model")),
        "weights": model.get("weights"),
        "data": data.get("name", spec.get("data")),
        "data_identity": data.get("identity"),
        "generated": data.get("generated"),
        "domains": _json(data.get("domains", spec.get("domains"))),
        "images": data.get("images"),
        "stream": stream.get("scenario", spec.get("stream")),
        "stream_settings": _json(stream.get("settings")),
        "stream_digest": stream.get("digest"),
        "batch_size": stream.get("batch_size", spec.get("batch_size")),
        "batches": stream.get("batches"),
        "latency_p50_ms": latency.get("p50"),
        "latency_p95_ms": latency.get("p95"),
        "latency_mean_ms": latency.get("mean"),
        "collapse_batch": collapse.get("batch"),
        "collapse_reason": collapse.get("reason"),
        "failure_type": failure.get("type"),
        "failure_message": failure.get("message"),
        "started": _iso_time(environment.get("started")),
    }
    row |= {name: config.get(name, spec.get(name)) for name in ("seed", "reset", "device")}
    named = {**environment, **result.metrics, **result.cost}
    return {
        name: _typed(row[name] if name in row else named.get(name), kind) for name, kind in FLAT_COLUMNS.items()
    }


def _typed(value: Any, kind: type) -> Any:
    """Return a value if it is of the kind that its column holds, else None."""
    if isinstance(value, bool) and kind is not bool:
        return None
    if kind is float and isinstance(value, int):
        return float(value)
    return value if isinstance(value, kind) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


def _iso_time(seconds: Any) -> str | None:
    if not isinstance(seconds, int | float):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
