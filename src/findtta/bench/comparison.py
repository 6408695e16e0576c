"""Comparing results: tables of runs side by side.

A table has one choice of ``FIELDS`` as rows and another as columns, and all its runs agree in the rest, which its
title says; so runs that cannot be compared are never in one table. Cells are means over seeds.
"""

import dataclasses
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.bench.naming import AXES, FIELDS, NamedRun, field_text, named_runs, number_ranges, ordered, told_apart
from findtta.bench.result import VALUES, Field, Result
from findtta.errors import OptionError
from findtta.options import require_known
from findtta.tables import BEST, Cell, Column, Row, Table

_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Comparison(Table):
    """A table of runs.

    The first heading of each row is what the row is; in a mixed table, the settings that differ follow.
    """

    value: str  # the name in ``VALUES`` of the number in the cells
    shared: Mapping[str, str]  # the settings that all runs agree in, in words

    def __str__(self) -> str:
        lines = [*_wrapped(self.title), "", self.text()]
        if any(cell and cell.best for row in self.rows for cell in row.cells):
            where = "column" if self.row_titles[0] == "method" else "row"
            within = ", within its setting" * (len(self.row_titles) > 1)
            lines.append(f"{BEST} best method of its {where}{within}")
        return "\n".join([*lines, *(line for note in self.notes for line in _wrapped(note))])


def compare(
    results: Iterable[Result],
    rows: str = "method",
    columns: str = "stream",
    value: str = "accuracy",
    *,
    mix: bool = False,
) -> list[Comparison]:
    """Put results side by side, in one table for each setting whose runs can be compared.

    Two runs can be compared if they agree in all that is neither their row, nor their column, nor their seed:
    model and weights, data (content, domains with severities, number of images), stream, batch size, reset policy
    and device. For one seed, all rows of a column saw the same samples in the same order. Failed runs count as
    missing seeds.

    Rows and columns are names in ``AXES``, and ``value``, what the cells show, is one in ``VALUES``. With ``mix``
    everything is put into one table all the same; each setting that differs becomes a heading of each row.
    """
    for name, given, known in (("rows", rows, AXES), ("columns", columns, AXES), ("value", value, VALUES)):
        require_known(name, given, known)
    if set(AXES[rows]) & set(AXES[columns]):
        raise OptionError(f"rows and columns must differ in what they show, got {rows!r} and {columns!r}.")
    held = [field for field in FIELDS if field not in {*AXES[rows], *AXES[columns]}]
    groups: dict[tuple[Any, ...], list[NamedRun]] = defaultdict(list)
    for run in named_runs(results):
        if run.result.config:
            groups[run.key(held)].append(run)
    if mix and groups:
        return [_table([run for group in groups.values() for run in group], (rows, columns, value), held)]
    return [_table(groups[key], (rows, columns, value), held) for key in ordered(held, groups)]


def _table(runs: Sequence[NamedRun], asked: tuple[str, str, str], held: Sequence[str]) -> Comparison:
    rows, columns, value = asked
    differing = [field for field in held if len({run.fields[field] for run in runs}) > 1]
    row_fields, column_fields = (*AXES[rows], *differing), AXES[columns]
    own = len(AXES[rows])  # what a row is, before the settings that differ
    newest = _newest(runs)
    row_keys = ordered(row_fields, [run.key(row_fields) for run in newest])
    column_keys = ordered(column_fields, [run.key(column_fields) for run in newest])
    by_cell: dict[tuple[Any, Any], list[NamedRun]] = defaultdict(list)
    for run in newest:
        by_cell[run.key(row_fields), run.key(column_fields)].append(run)
    cells = _cells(by_cell, VALUES[value])
    row_titles = _titles({key[:own] for key in row_keys}, AXES[rows])
    column_titles = _titles(column_keys, column_fields)
    seeds = sorted({run.result.seed for run in newest})
    shared = {field: runs[0].words[field] for field in held if field not in differing and runs[0].words[field]}
    over = (
        f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± standard deviation over seeds {number_ranges(seeds)}"
    )
    in_common = "; ".join(f"{field} {text}" for field, text in shared.items())
    return Comparison(
        title=f"{VALUES[value].caption}, {over}. All rows: {in_common or 'nothing in common'}.",
        value=value,
        shared=shared,
        row_titles=(rows.replace("-", " "), *differing),
        columns=tuple(
            Column(title=column_titles[key], unit="", decimals=VALUES[value].decimals) for key in column_keys
        ),
        rows=tuple(
            Row(
                (row_titles[row[:own]], *map(field_text, differing, row[own:])),
                tuple(cells.get((row, column)) for column in column_keys),
            )
            for row in row_keys
        ),
        seeds=tuple(seeds),
        notes=tuple(_notes(newest, len(runs) - len(newest), VALUES[value])),
    )


def _newest(runs: Sequence[NamedRun]) -> list[NamedRun]:
    """Keep one run for each setting, method and seed: one that is done rather than failed, then the newest.

    With another version of findtta, torch or numpy the same run has another digest; counted twice, it would look
    like a second seed.
    """
    kept: dict[tuple[Any, ...], NamedRun] = {}
    for run in sorted(runs, key=lambda run: (run.result.is_done, run.result.started, run.result.digest)):
        kept[(*run.key(FIELDS), run.result.seed)] = run
    return list(kept.values())


def _cells(by_cell: Mapping[tuple[Any, Any], Sequence[NamedRun]], value: Field) -> dict[tuple[Any, Any], Cell]:
    """Make the cells, and mark the best of those that can be compared, unless all are equal.

    A mean over other seeds is one over other streams, so a cell that lacks a seed of the others does not compete.
    """
    seeds: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for runs in by_cell.values():
        seeds[runs[0].contest] |= {run.result.seed for run in runs}
    cells = {place: _cell(runs, value) for place, runs in by_cell.items()}
    rivals: dict[tuple[Any, ...], dict[tuple[Any, Any], float]] = defaultdict(dict)
    for place, runs in by_cell.items():
        mean = cells[place].mean
        if set(cells[place].values) == seeds[runs[0].contest] and mean is not None and math.isfinite(mean):
            rivals[runs[0].contest][place] = round(mean, value.decimals)
    for means in rivals.values():
        top = (max if value.higher_is_better else min)(means.values())
        winners = [place for place, mean in means.items() if mean == top]
        if len(winners) < len(means):
            cells |= {place: dataclasses.replace(cells[place], best=True) for place in winners}
    return cells


def _cell(runs: Sequence[NamedRun], value: Field) -> Cell:
    results = sorted((run.result for run in runs), key=lambda result: result.seed)
    done = [result for result in results if result.is_done]
    return Cell(
        values={result.seed: value.read(result) for result in done},
        digests={result.seed: result.digest for result in done},
        failed=tuple(result.seed for result in results if not result.is_done),
    )


def _titles(keys: Iterable[tuple[Any, ...]], fields: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """Return a title for each key: the first field in words, and as many of the others as tell keys apart."""
    words = {key: dict(zip(fields, map(field_text, fields, key), strict=True)) for key in keys}
    firsts = [each[fields[0]] for each in words.values()]
    return dict(zip(words, told_apart(firsts, list(words.values()), fields[1:]), strict=True))


def _notes(runs: Sequence[NamedRun], replaced: int, value: Field) -> Iterable[str]:
    samples: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        samples[run.fields["stream"]].add(int(run.result.config["stream"]["samples"]))
    images = {run.fields["images"] for run in runs}
    counts = [
        f"{stream} {' to '.join(f'{count:,}' for count in sorted({min(found), max(found)}))}"
        for stream, found in sorted(samples.items())
        if not found <= images  # these streams do not show each image once
    ]
    if counts:
        yield f"Samples per run: {', '.join(counts)}."
    if replaced:
        yield f"{replaced} older or failed repetitions of the same runs, with other versions, are left out."
    done = [run.result for run in runs if run.result.is_done]
    for package in ("findtta", "torch", "numpy"):
        versions = sorted({str(result.config["versions"].get(package)) for result in done})
        if len(versions) > 1:
            yield f"Runs were made with {package} {' and '.join(versions)}."
    if value.depends_on_machine:
        machines = sorted({_machine(result.environment) for result in done})
        yield f"Measured on {' and on '.join(machines)}, each run at another time: small differences mean nothing."


def _machine(environment: Mapping[str, Any]) -> str:
    threads = environment.get("threads")
    return f"{environment.get('system')}, {environment.get('device')}, {threads} thread{'s' * (threads != 1)}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
