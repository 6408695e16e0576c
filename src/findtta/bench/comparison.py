"""Comparing results: tables of runs side by side.

A table has one choice of ``FIELDS`` as rows and another as columns, and all its runs agree in the rest, which its
title says; so runs that cannot be compared are never in one table. Cells are means over seeds, and accuracies have
95% intervals clustered by image. Methods are compared sample by sample, and one is marked as the best only if all
intervals of its differences from the others exclude 0.
"""

import dataclasses
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from findtta.bench.naming import AXES, FIELDS, NamedRun, field_text, named_runs, number_ranges, ordered, told_apart
from findtta.bench.plan import CODE
from findtta.bench.result import VALUES, Field, Result
from findtta.errors import OptionError
from findtta.intervals import difference, interval
from findtta.options import require_known
from findtta.tables import BEST, Cell, Column, Row, Table

_WIDTH = 100
BASELINE = "source"
_SCORED = ("accuracy", "error")  # values that are known for each sample


@dataclass(frozen=True, kw_only=True)
class Comparison(Table):
    """A table of runs.

    The first heading of each row is what the row is; in a mixed table, the settings that differ follow.
    """

    value: str  # the name in ``VALUES`` of the number in the cells
    shared: Mapping[str, str]  # the settings that all runs agree in, in words
    over: str  # what the numbers are means over, and what follows a plus-minus sign
    differences: Table | None = None  # of accuracies from those of one method, if they can be paired

    def __str__(self) -> str:
        lines = [*_wrapped(self.title), "", self.text()]
        if any(cell and cell.best for row in self.rows for cell in row.cells):
            where = "column" if self.row_titles[0] == "method" else "row"
            within = ", within its setting" * (len(self.row_titles) > 1)
            lines.append(f"{BEST} better than every other method of its {where}{within}, by its intervals")
        if self.differences:
            lines += ["", *_wrapped(self.differences.title), "", self.differences.text(), ""]
        return "\n".join([*lines, *(line for note in self.notes for line in _wrapped(note))])

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"differences": self.differences and self.differences.to_dict()}


def compare(
    results: Iterable[Result],
    rows: str = "method",
    columns: str = "stream",
    value: str = "accuracy",
    *,
    against: str | None = None,
    mix: bool = False,
) -> list[Comparison]:
    """Put results side by side, in one table for each setting whose runs can be compared.

    Two runs can be compared if they agree in all that is neither their row, nor their column, nor their seed:
    model and weights, data (content, domains with severities, number of images), stream, batch size, reset policy
    and device. For one seed, all rows of a column saw the same samples in the same order. Failed runs count as
    missing seeds.

    Rows and columns are names in ``AXES``, and ``value``, what the cells show, is one in ``VALUES``. Where rows
    are methods, differences from one of them, ``against`` (by default the source model), have intervals of their
    own, paired by sample. With ``mix`` everything is put into one table all the same; each setting that differs
    becomes a heading of each row.
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
    if against is not None:
        if (rows, value) != ("method", "accuracy"):
            raise OptionError(f"against is for accuracies with methods as rows, got {value!r} and {rows!r}.")
        require_known("against", against, {run.fields["method"] for group in groups.values() for run in group})
    asked = rows, columns, value
    if mix and groups:
        return [_table([run for group in groups.values() for run in group], asked, held, against or BASELINE)]
    return [_table(groups[key], asked, held, against or BASELINE) for key in ordered(held, groups)]


def _table(runs: Sequence[NamedRun], asked: tuple[str, str, str], held: Sequence[str], against: str) -> Comparison:
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
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over seeds {number_ranges(seeds)}"
    if value in _SCORED:
        over += " ± half of the 95% interval (clustered by image)"
    elif len(seeds) > 1:
        over = over.replace("mean", "mean ± standard deviation")
    in_common = "; ".join(f"{field} {text}" for field, text in shared.items())
    titles = (rows.replace("-", " "), *differing)
    heads = {row: (row_titles[row[:own]], *map(field_text, differing, row[own:])) for row in row_keys}
    return Comparison(
        title=f"{VALUES[value].caption}, {over}. All rows: {in_common or 'nothing in common'}.",
        value=value,
        shared=shared,
        over=over,
        differences=_differences(cells, heads, titles, column_titles, against) if value == "accuracy" else None,
        row_titles=titles,
        columns=tuple(
            Column(title=column_titles[key], unit="", decimals=VALUES[value].decimals) for key in column_keys
        ),
        rows=tuple(Row(heads[row], tuple(cells.get((row, column)) for column in column_keys)) for row in row_keys),
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
    """Make the cells, and mark those that are better than all others they can be compared with.

    A mean over other seeds is one over other streams, so a cell that lacks a seed of the others does not compete.
    """
    seeds: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for runs in by_cell.values():
        seeds[runs[0].contest] |= {run.result.seed for run in runs}
    cells = {place: _cell(runs, value) for place, runs in by_cell.items()}
    rivals: dict[tuple[Any, ...], dict[tuple[Any, Any], float]] = defaultdict(dict)
    for place, runs in by_cell.items():
        cell = cells[place]
        if set(cell.scores) == seeds[runs[0].contest]:
            rivals[runs[0].contest][place] = interval(cell.scores.values()).mean
    for means in rivals.values():
        top, *others = sorted(means, key=means.__getitem__, reverse=True)
        ahead = (difference(cells[top].scores, cells[other].scores) for other in others)
        if others and all(by is not None and by.excludes_zero for by in ahead):
            cells[top] = dataclasses.replace(cells[top], best=True)
    return cells


def _differences(
    cells: Mapping[tuple[Any, Any], Cell],
    heads: Mapping[tuple[Any, ...], tuple[str, ...]],
    row_titles: tuple[str, ...],
    columns: Mapping[tuple[Any, ...], str],
    against: str,
) -> Table | None:
    """Return by how much the rows are ahead of one method, the first field of their keys, where that is known."""

    def cell(row: tuple[Any, ...], column: tuple[Any, ...]) -> Cell | None:
        own, other = cells.get((row, column)), cells.get(((against, *row[1:]), column))
        paired = own and other and own.scores and own.scores.keys() == other.scores.keys()
        return own.minus(other) if own and other and paired else None

    rows = [Row(heads[row], tuple(cell(row, column) for column in columns)) for row in heads if row[0] != against]
    if not any(cell for row in rows for cell in row.cells):
        return None
    return Table(
        title=f"points above {against}, and 95% intervals: paired by sample, clustered by image",
        row_titles=row_titles,
        columns=tuple(Column(title=title, kind="signed", unit="points", decimals=1) for title in columns.values()),
        rows=tuple(rows),
    )


def _cell(runs: Sequence[NamedRun], value: Field) -> Cell:
    results = sorted((run.result for run in runs), key=lambda result: result.seed)
    done = [result for result in results if result.is_done]
    scores = {result.seed: result.scores for result in done if value.value in _SCORED}
    return Cell(
        values={result.seed: value.read(result) for result in done},
        margin=interval(scores.values()).margin if scores else None,
        scores=scores,
        digests={result.seed: result.digest for result in done},
        failed=tuple(result.seed for result in results if not result.is_done),
    )


def _titles(keys: Iterable[tuple[Any, ...]], fields: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """Return a title for each key: the first field in words, and as many of the others as tell keys apart."""
    words = {key: dict(zip(fields, map(field_text, fields, key), strict=True)) for key in keys}
    firsts = [each[fields[0]] for each in words.values()]
    return dict(zip(words, told_apart(firsts, list(words.values()), fields[1:]), strict=True))


def _notes(runs: Sequence[NamedRun], replaced: int, value: Field) -> Iterable[str]:
    by_stream: dict[str, list[Result]] = defaultdict(list)
    for run in runs:
        by_stream[run.words["stream"]].append(run.result)
    yield from (f"{stream}: {describe_stream(found)}." for stream, found in by_stream.items())
    if replaced:
        yield f"{replaced} older or failed repetitions of the same runs, by other code or versions, are left out."
    done = [run.result for run in runs if run.result.is_done]
    for package in ("findtta", "torch", "numpy", "python"):
        versions = sorted({str(result.config["versions"].get(package)) for result in done})
        if len(versions) > 1:
            yield f"Runs were made with {package} {' and '.join(versions)}."
    for part in CODE[1:]:  # that of the method differs with it
        if len({result.config["code"][part] for result in done}) > 1:
            yield f"Runs were made by different code of the {part}: run the older ones again to compare them."
    if value.depends_on_machine:
        machines = sorted({_machine(result.environment) for result in done})
        yield f"Measured on {' and on '.join(machines)}, each run at another time: small differences mean nothing."


def describe_stream(results: Sequence[Result]) -> str:
    """Return how long the streams of runs are, and what a batch of them holds."""
    images = [len(np.unique(result.scores.images)) for result in results if result.is_done]
    streams = [result.config["stream"] for result in results]
    samples, batches = ([stream[name] for stream in streams] for name in ("samples", "batches"))
    domains, classes = ([stream[f"{name}_per_batch"] for stream in streams] for name in ("domains", "classes"))
    of_images = f" of {_span(images, ',')} images" if images else ""
    sizes = " or ".join(sorted({str(stream["batch_size"]) for stream in streams}, key=int))
    return (
        f"{_span(samples, ',')} samples{of_images} in {_span(batches, ',')} batches of {sizes}, "
        f"{_span(domains, '.1f')} domains and {_span(classes, '.1f')} classes per batch"
    )


def _span(values: Sequence[float], style: str) -> str:
    """Return the least and the largest value, or one where they are the same."""
    return " to ".join(dict.fromkeys(format(value, style) for value in (min(values), max(values))))


def _machine(environment: Mapping[str, Any]) -> str:
    threads = environment.get("threads")
    return f"{environment.get('system')}, {environment.get('device')}, {threads} thread{'s' * (threads != 1)}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
