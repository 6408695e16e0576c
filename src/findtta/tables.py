"""Tables: one model for comparisons of runs, tables of the paper and reports, and the formats it is written in."""

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tabulate import LATEX_ESCAPE_RULES, tabulate

from findtta.intervals import Interval, Scores, interval

EMPTY = "-"
BEST = "*"
_NUMBER = re.compile(r"[-+]?[\d.,]+( ± [\d.]+)?")

ColumnKind = Literal["compared", "ours", "paper", "signed", "text"]


def render(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay rows out in aligned columns for the terminal: numbers to the right, text to the left."""
    cells = [[_text(value) for value in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[column]) for row in cells) for column in range(len(header))]
    return _tabulate(header, cells, numeric)


def _tabulate(
    header: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool], style: str = "simple"
) -> str:
    align = ["right" if right else "left" for right in numeric] if cells else None
    if style == "simple" and cells:
        columns = zip(zip(*cells, strict=True), numeric, strict=True)
        cells = list(zip(*(_aligned(texts) if right else texts for texts, right in columns), strict=True))
    table = tabulate(
        cells,
        list(header),
        tablefmt=style,
        disable_numparse=True,
        colalign=align,
        headersalign=align,
        preserve_whitespace=True,
    )
    return "\n".join(line.rstrip() for line in table.splitlines())


def _aligned(texts: Sequence[str]) -> list[str]:
    """Pad what follows numbers, such as the mark of the best, to one length, so that the numbers are aligned."""
    ends = [match.end() if (match := _NUMBER.match(text)) else len(text) for text in texts]
    width = max(len(text) - end for text, end in zip(texts, ends, strict=True))
    return [text[:end] + text[end:].ljust(width) for text, end in zip(texts, ends, strict=True)]


def _text(value: object) -> str:
    if value is None:
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text == EMPTY
    return True


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place of a table."""

    values: Mapping[int, float] = field(default_factory=dict)  # our number for each seed
    paper: float | None = None  # the paper's number, if it has one here
    spread: float | None = None  # what the paper prints after a plus-minus sign
    text: str = ""  # shown in place of our number, such as ``"failed"``, or in a column of texts
    best: bool = False  # whether it is marked: it is better than all others, as far as intervals tell
    margin: float | None = None  # of our number: half of the width of its 95% interval, clustered by image
    scores: Mapping[int, Scores] = field(default_factory=dict, repr=False)  # those behind an accuracy of each seed
    failed: tuple[int, ...] = ()  # the seeds whose runs failed
    digests: Mapping[int, str] = field(default_factory=dict)  # the run behind the number of each seed

    @property
    def mean(self) -> float | None:
        """Our number: the mean over seeds, or None if there are none."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds (with n - 1), or None for fewer than two finite values."""
        values = list(self.values.values())
        return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper

    @property
    def uncertainty(self) -> float | None:
        """What is shown after a plus-minus sign: the margin, or the standard deviation of what has none."""
        shown = self.std if self.margin is None or self.mean is None else self.margin + 0 * self.mean
        return shown if shown is not None and math.isfinite(shown) else None

    def minus(self, other: "Cell") -> "Cell":
        """Return by how much this accuracy is ahead of another, paired by seed and sample, with its margin.

        A seed with which the two did not see the same samples is left out.
        """
        seeds = [seed for seed in self.values if seed in other.values]
        known = [seed for seed in seeds if seed in self.scores and seed in other.scores]
        pairs = {seed: self.scores[seed].minus(other.scores[seed]) for seed in known}
        paired = {seed: pair for seed, pair in pairs.items() if pair is not None}
        seeds = [seed for seed in seeds if seed in paired or seed not in pairs]
        return Cell(
            values={seed: self.values[seed] - other.values[seed] for seed in seeds},
            text=self.text or other.text,
            margin=interval(paired.values()).margin if paired and len(paired) == len(seeds) else None,
            scores=paired,
        )

    @classmethod
    def average(cls, cells: Iterable["Cell"], **fields: Any) -> "Cell":
        """Return the mean of several accuracies for each seed that all of them have."""
        cells = list(cells)
        seeds = sorted(set.intersection(*(set(cell.values) for cell in cells))) if cells else []
        scores = {
            seed: Scores.join([cell.scores[seed] for cell in cells])
            for seed in seeds
            if all(seed in cell.scores for cell in cells)
        }
        return cls(
            values={seed: statistics.fmean(cell.values[seed] for cell in cells) for seed in seeds},
            margin=interval(scores.values()).margin if scores else None,
            scores=scores,
            **fields,
        )

    def ours_text(self, decimals: int, seeds: int | None = None) -> str:
        """Return our number with its uncertainty; if seeds are expected, say how many are missing."""
        if self.mean is None:
            return self.text or ("failed" if self.failed else EMPTY)
        std = "" if self.uncertainty is None else f" ± {self.uncertainty:.{decimals}f}"
        missing = f" ({len(self.values)} of {seeds} seeds)" if seeds and len(self.values) < seeds else ""
        partly = f" (partly {self.text})" if self.text else ""
        return f"{self.mean:.{decimals}f}{std}{BEST if self.best else ''}{missing}{partly}"

    def signed_text(self, decimals: int) -> str:
        """Return our number as a difference with its interval, such as ``"+1.9 [0.4, 3.4]"``."""
        if self.mean is None:
            return self.text or EMPTY
        return Interval(self.mean, math.inf if self.margin is None else self.margin).text(decimals)

    def paper_text(self, decimals: int) -> str:
        """Return the paper's number."""
        if self.paper is None:
            return EMPTY
        return f"{self.paper:.{decimals}f}" + ("" if self.spread is None else f" ± {self.spread:.1f}")

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as plain values that JSON can write."""
        fields = {name: value for name, value in vars(self).items() if name not in ("digests", "scores")}
        return fields | {"mean": self.mean, "std": self.std, "difference": self.difference}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column; one that is ``"compared"`` is shown as three: paper, ours, difference.

    A ``"signed"`` one has differences, each with its interval.
    """

    title: str  # its heading
    kind: ColumnKind = "ours"  # which of a cell's numbers it shows
    unit: str = "%"  # the unit of its numbers
    decimals: int = 2  # how many decimals are shown


@dataclass(frozen=True)
class Row:
    """A row: its headings, and a cell for each column (None where there is nothing)."""

    titles: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Shown:
    """A column as it is printed; ``over`` is the heading that it shares with its neighbours, if there is one."""

    title: str
    texts: tuple[str, ...]
    numeric: bool = True
    over: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows and columns."""

    title: str  # what it shows
    row_titles: tuple[str, ...]  # what the headings of the rows are
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = ()  # the seeds that a complete cell has; empty if cells may differ in that
    notes: tuple[str, ...] = ()  # what else a reader must know

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row.titles) == len(self.row_titles), row.titles
            assert len(row.cells) == len(self.columns), f"{row.titles}: {len(row.cells)} cells"

    def shown(self) -> list[Shown]:
        """Return the columns as they are printed, those of the row headings first."""
        shown = [
            Shown(title, tuple(row.titles[index] for row in self.rows), numeric=False)
            for index, title in enumerate(self.row_titles)
        ]
        for index, column in enumerate(self.columns):
            cells = [row.cells[index] or Cell() for row in self.rows]
            paper = tuple(cell.paper_text(column.decimals) for cell in cells)
            ours = tuple(cell.ours_text(column.decimals, len(self.seeds)) for cell in cells)
            if column.kind == "compared":
                differences = (cell.difference for cell in cells)
                signed = tuple(EMPTY if by is None else f"{by:+.{column.decimals}f}" for by in differences)
                parts = {"paper": paper, "ours": ours, "difference": signed}
                shown += [Shown(title, texts, over=column.title) for title, texts in parts.items()]
            elif column.kind == "signed":
                shown.append(Shown(column.title, tuple(cell.signed_text(column.decimals) for cell in cells)))
            elif column.kind == "text":
                shown.append(Shown(column.title, tuple(cell.text or EMPTY for cell in cells), numeric=False))
            else:
                shown.append(Shown(column.title, paper if column.kind == "paper" else ours))
        return shown

    def text(self) -> str:
        """Return the table for the terminal, without its title and notes."""
        shown = self.shown()
        header = [column.title for column in shown]
        if any(column.over for column in shown):
            starts = [over if number == 0 else "" for over, count in _groups(shown) for number in range(count)]
            header = [f"{over}\n{title}" for over, title in zip(starts, header, strict=True)]
        return _tabulate(header, self._cells(shown), [column.numeric for column in shown])

    def markdown(self) -> str:
        """Return the table as Markdown."""
        shown = self.shown()
        header = [f"{column.over}: {column.title}" if column.over else column.title for column in shown]
        cells = [[escape_markdown(text.strip()) for text in row] for row in self._cells(shown)]
        numeric = [column.numeric for column in shown]
        return _tabulate([escape_markdown(title) for title in header], cells, numeric, "pipe")

    def latex(self, caption: str, label: str) -> str:
        """Return the table as LaTeX, for the package ``booktabs``."""
        shown = self.shown()
        cells = [[escape_latex(text.strip()) for text in row] for row in self._cells(shown)]
        lines = [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{escape_latex(caption)}}}",
            f"\\label{{tab:{label}}}",
        ]
        layout = "".join("r" if column.numeric else "l" for column in shown)
        lines += [f"\\begin{{tabular}}{{{layout}}}", "\\toprule", *_latex_groups(shown)]
        header = [escape_latex(column.title) for column in shown]
        lines += [_latex_row(header), "\\midrule", *map(_latex_row, cells), "\\bottomrule"]
        return "\n".join([*lines, "\\end{tabular}", "\\end{table}", ""])

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values that JSON can write."""
        rows = [
            {"titles": row.titles, "cells": [cell and cell.to_dict() for cell in row.cells]} for row in self.rows
        ]
        return vars(self) | {"columns": [asdict(column) for column in self.columns], "rows": rows}

    def _cells(self, shown: Sequence[Shown]) -> list[list[str]]:
        return [[column.texts[index] for column in shown] for index in range(len(self.rows))]


def _latex_row(texts: Iterable[str]) -> str:
    return f"{' & '.join(texts)} \\\\"


def _groups(shown: Sequence[Shown]) -> list[tuple[str, int]]:
    """Return the headings that several columns share ("" for none), and how many columns each covers."""
    return [
        (over, len(list(columns))) for over, columns in itertools.groupby(shown, key=lambda column: column.over)
    ]


def _latex_groups(shown: Sequence[Shown]) -> list[str]:
    """Return the line of headings that several columns share, if there are any."""
    groups = _groups(shown)
    if not any(over for over, _ in groups):
        return []
    heads = [f"\\multicolumn{{{count}}}{{c}}{{{escape_latex(over)}}}" for over, count in groups]
    ends = itertools.accumulate(count for _, count in groups)
    rules = [
        f"\\cmidrule(lr){{{end - count + 1}-{end}}}"
        for (over, count), end in zip(groups, ends, strict=True)
        if over
    ]
    return [_latex_row(heads), " ".join(rules)]


def escape_markdown(text: str) -> str:
    """Return text in which no character has a meaning in Markdown."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|#" else character for character in text)


_LATEX = {**LATEX_ESCAPE_RULES, "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$", "±": r"$\pm$"}


def escape_latex(text: str) -> str:
    """Return text in which no character has a meaning in LaTeX; signs of numbers are set as mathematics."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    is_signed = text[:1] in ("+", "-") and text[1:2].isdigit()
    return f"${escaped[0]}${escaped[1:]}" if is_signed else escaped
