"""Results side by side: comparison tables.

A table has one choice of ``FIELDS`` as rows and another as columns, and all its runs agree in the rest, which its
caption says; so rows that cannot be compared never stand in one table. Cells are means over seeds.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.bench.result import Result
from findtta.bench.wording import AXES, FIELDS, NamedRun, Names, field_text, number_ranges
from findtta.errors import OptionError, UnknownNameError, close_matches
from findtta.tables import render

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
        return f"mean ± standard deviation over seeds {number_ranges(self.seeds)}"


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
        raise OptionError(f"rows and columns must differ in what they show, got {rows!r} and {columns!r}.")
    names = Names()
    runs = names.runs(results)
    free = {*AXES[rows], *AXES[columns]}
    held = [field for field in FIELDS if field not in free]
    groups: dict[tuple[Any, ...], list[NamedRun]] = defaultdict(list)
    for run in runs:
        groups[() if mix else run.key(held)].append(run)
    ordered = sorted(groups.values(), key=lambda group: names.order(held, group[0].key(held)))
    return [_table(names, group, (rows, columns, value), held) for group in ordered]


def _table(names: Names, runs: Sequence[NamedRun], asked: tuple[str, str, str], held: Sequence[str]) -> Table:
    rows, columns, value = asked
    differing = [field for field in held if len({run.fields[field] for run in runs}) > 1]
    row_fields, column_fields = (*AXES[rows], *differing), AXES[columns]
    own = len(AXES[rows])  # what a row is, before the settings that differ
    kept, replaced = _newest(runs)
    row_keys = sorted({run.key(row_fields) for run in kept}, key=lambda key: names.order(row_fields, key))
    column_keys = sorted({run.key(column_fields) for run in kept}, key=lambda key: names.order(column_fields, key))
    by_cell: dict[tuple[Any, Any], list[NamedRun]] = defaultdict(list)
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
        rows=tuple((row_titles[key[:own]], *map(field_text, differing, key[own:])) for key in row_keys),
        cells=tuple(tuple(cells.get((row, column)) for column in column_keys) for row in row_keys),
        seeds=tuple(sorted({run.seed for run in kept})),
        notes=tuple(_notes(kept, replaced, VALUES[value])),
    )


def _newest(runs: Sequence[NamedRun]) -> tuple[list[NamedRun], int]:
    """Keep one run for each setting, method and seed: one that is done rather than failed, then the newest.

    Releases of findtta, torch or numpy make the same run another one, and counting it twice would pass it off as
    a second seed.
    """
    kept: dict[tuple[Any, ...], NamedRun] = {}
    for run in sorted(runs, key=lambda run: (run.is_done, run.started, run.result.digest)):
        kept[(*run.key(FIELDS), run.seed)] = run
    return list(kept.values()), len(runs) - len(kept)


def _cells(by_cell: Mapping[tuple[Any, Any], Sequence[NamedRun]], value: Value) -> dict[tuple[Any, Any], Cell]:
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


def _cell(runs: Sequence[NamedRun], value: Value) -> Cell:
    done = sorted((run for run in runs if run.is_done), key=lambda run: run.seed)
    return Cell(
        values={run.seed: float(value.read(run.result)) for run in done},
        digests={run.seed: run.result.digest for run in done},
        failed=tuple(sorted(run.seed for run in runs if not run.is_done)),
    )


def _titles(keys: Iterable[tuple[Any, ...]], fields: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """Return a title for each key: the first field in words, and as many of the others as tell keys apart."""
    titles = {key: field_text(fields[0], key[0]) for key in keys}
    for index, field in enumerate(fields[1:], 1):
        shown = list(titles.values())
        titles = {
            key: f"{title}, {field} {field_text(field, key[index])}".replace(", edition ", ", ")
            if shown.count(title) > 1 and key[index] != ""
            else title
            for key, title in titles.items()
        }
    return titles


def _shared(runs: Sequence[NamedRun], fields: Sequence[str]) -> dict[str, str]:
    return {field: text for field in fields if (text := field_text(field, runs[0].fields[field]))}


def _notes(runs: Sequence[NamedRun], replaced: int, value: Value) -> Iterable[str]:
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


def _samples(runs: Sequence[NamedRun]) -> dict[str, str]:
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
            f"{argument} must be one of {', '.join(known)}, got {name!r}.{close_matches(name, known)}"
        )
