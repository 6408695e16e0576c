"""The leaderboard of a setting, and the paper's numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from findtta.bench.tables import VALUES, Cell, Table
from findtta.report import tables
from findtta.report.against_paper import Counterpart, Printed, counterpart, dataset_of
from findtta.report.collect import Setting
from findtta.report.markup import Markup, element, join
from findtta.report.summaries import collapses

MEASURES = {
    "accuracy": "Accuracy",
    "ece": "Calibration",
    "nll": "Likelihood",
    "brier": "Brier score",
    "latency": "Latency",
    "memory": "Memory",
}
_FULL_COLOUR = 10.0  # points of difference
_TINT = 40.0  # per cent of the colour of heat maps, for the best of a column


def leaderboard(setting: Setting) -> Markup:
    """Return the tables of a setting, one per measure; the script shows one at a time."""
    panels = [
        element(
            "div",
            tables.scrolling(_table(setting, value), f"{title}, {setting.title}"),
            *(element("p", note, class_="note") for note in _own_notes(setting, value)),
            class_="panel",
            data_title=title,
        )
        for value, title in MEASURES.items()
    ]
    return element("div", *panels, class_="panels")


def _own_notes(setting: Setting, value: str) -> list[str]:
    """Return what there is to say about a table that the first one does not say already."""
    said = setting.tables["accuracy"].notes if value != "accuracy" else ()
    return [note for note in setting.tables[value].notes if note not in said]


def _table(setting: Setting, value: str) -> Markup:
    table, measure = setting.tables[value], VALUES[value]
    first = "descending" if measure.higher_is_better else "ascending"
    with_mean = len(table.columns) > 1
    heads = [
        tables.heading(stream, column, first=first, data={"stream": stream})
        for column, stream in enumerate(table.columns, start=1)
    ]
    if with_mean:
        heads.append(tables.heading("mean", len(heads) + 1, first=first, class_="mean"))
    strengths = dict(zip(setting.methods, _strengths(table), strict=True))
    rows = []
    for (method, *_), cells in zip(table.rows, table.cells, strict=True):
        shown = [
            _cell(cell, setting, value, method, stream, strength)
            for stream, cell, strength in zip(table.columns, cells, strengths[method], strict=True)
        ]
        if with_mean:
            shown.append(_mean(cells, len(table.seeds), measure.decimals))
        rows.append(element("tr", tables.method_name(method), *shown, data_method=method))
    head = element("tr", tables.method_heading(), *heads)
    return tables.whole(_caption(table), [head], rows, class_="numbers", data_decimals=measure.decimals)


def _caption(table: Table) -> str:
    measure = VALUES[table.value]
    better = "higher" if measure.higher_is_better else "lower"
    return f"{measure.title[0].upper()}{measure.title[1:]}, {_seeds(table)}; {better} is better"


def _seeds(table: Table) -> str:
    if len(table.seeds) == 1:
        return f"seed {table.seeds[0]}"
    return f"mean ± standard deviation over {len(table.seeds)} seeds"


def _strengths(table: Table) -> list[list[float]]:
    """Return how strong the colour of each cell is, row by row: from the worst to the best of its column."""
    columns = []
    for cells in zip(*table.cells, strict=True):
        means = [cell.mean if cell else math.nan for cell in cells]
        known = [mean for mean in means if math.isfinite(mean)] or [0.0]
        worst, best = (min, max) if VALUES[table.value].higher_is_better else (max, min)
        low, high = worst(known), best(known)
        columns.append([(mean - low) / (high - low) if high != low else 0.0 for mean in means])
    return [list(row) for row in zip(*columns, strict=True)]


def _cell(cell: Cell | None, setting: Setting, value: str, method: str, stream: str, strength: float) -> Markup:
    data = {"stream": stream}
    if cell is None:
        return tables.number_cell(tables.ABSENT, None, data=data, class_="absent")
    if not cell.values:
        return tables.number_cell("failed", None, data=data, class_="absent")
    decimals, seeds = VALUES[value].decimals, len(setting.tables[value].seeds)
    is_known = math.isfinite(cell.mean)
    parts: list[Markup | str | None] = [f"{cell.mean:.{decimals}f}", _deviation(cell, decimals)]
    if cell.best:
        parts.append(element("span", " best", class_="hidden-text"))
    if len(cell.values) < seeds:
        parts.append(element("small", f" {len(cell.values)} of {seeds} seeds", class_="flag"))
    fallen = collapses(setting.runs.get((method, stream), ())) if value == "accuracy" else []
    if fallen:
        parts.append(element("small", " collapsed", class_="flag", title="; ".join(what for _, what in fallen)))
    return tables.number_cell(
        join(parts),
        cell.mean if is_known else None,
        data=data,
        class_="tint best" if cell.best else "tint",
        data_partial=len(cell.values) < seeds,
        style=f"--strength:{_TINT * strength:.0f}%" if is_known else "--strength:0%",
    )


def _deviation(cell: Cell, decimals: int) -> Markup | None:
    if cell.deviation is None:
        return None
    return element("small", f" ±\N{NO-BREAK SPACE}{cell.deviation:.{decimals}f}", class_="deviation")


def _mean(cells: tuple[Cell | None, ...], seeds: int, decimals: int) -> Markup:
    """Return the mean over the streams; there is none if a run is missing, whose stream may be a harder one."""
    known = [cell.mean for cell in cells if cell and len(cell.values) == seeds and math.isfinite(cell.mean)]
    if len(known) < len(cells):
        return tables.number_cell(tables.ABSENT, None, class_="mean")
    return tables.number_cell(f"{fmean(known):.{decimals}f}", fmean(known), class_="mean")


def against_paper(setting: Setting, paper: str | None) -> Markup | None:
    """Return the paper's numbers beside ours.

    Args:
        setting: The setting.
        paper: The paper's data to compare runs with whose own data the paper does not have; None for none.

    Returns:
        The table, or None if there is nothing to compare.
    """
    found = _counterparts(setting, paper)
    shown = [method for method in setting.methods if any(method in part.printed for part in found.values())]
    if not shown:
        return None
    groups, heads = [], []
    for number, (stream, part) in enumerate(found.items()):
        title = f"{stream} (paper: {part.dataset}, {part.network})"
        groups.append(element("th", title, scope="colgroup", colspan=3, data_stream=stream, class_="group"))
        for offset, name in enumerate((f"paper ({part.dataset})", "ours", "difference"), start=1):
            classes = "group" if offset == 1 else None
            heads.append(tables.heading(name, 3 * number + offset, data={"stream": stream}, class_=classes))
    corner = tables.heading("method", 0, first="ascending", class_="name", rowspan=2)
    rows = [_paper_row(setting, found, method) for method in shown]
    table = tables.whole(
        "Accuracy in %: the paper's, ours, and the difference in points",
        [element("tr", corner, *groups), element("tr", *heads)],
        rows,
        class_="numbers paper",
    )
    notes = [
        element("li", element("strong", stream), f": {'; '.join(part.differences)}.", data_stream=stream)
        for stream, part in found.items()
        if part.differences
    ]
    images = setting.shared.get("images")
    return element(
        "section",
        element("h3", "Against the paper"),
        tables.scrolling(table, f"Against the paper, {setting.title}"),
        element(
            "div",
            element("p", f"Ours were measured on {images} images. Not as in the paper:"),
            element("ul", *notes),
            class_="note",
        )
        if notes
        else element("p", f"Ours were measured on {images} images.", class_="note"),
        class_="block",
    )


def _counterparts(setting: Setting, paper: str | None) -> dict[str, Counterpart]:
    """Return what corresponds to the streams; they all have the same data."""
    found = {}
    for (_, stream), runs in setting.runs.items():
        if runs and stream not in found:
            dataset = dataset_of(runs[0].config) or paper
            part = counterpart(runs[0].config, dataset) if dataset else None
            if part:
                found[stream] = part
    return {stream: found[stream] for stream in setting.streams if stream in found}


def _paper_row(setting: Setting, found: Mapping[str, Counterpart], method: str) -> Markup:
    cells: list[Markup] = []
    for stream, part in found.items():
        cells += _paper_cells(part.printed.get(method), setting.cell("accuracy", method, stream), stream)
    return element("tr", tables.method_name(method), *cells, data_method=method)


def _paper_cells(printed: Printed | None, ours: Cell | None, stream: str) -> list[Markup]:
    data = {"stream": stream}
    theirs = tables.number_cell(tables.ABSENT, None, data=data, class_="absent group")
    if printed:
        spread = (
            None if printed.spread is None else element("small", f" ± {printed.spread:.2f}", class_="deviation")
        )
        theirs = tables.number_cell(
            join([f"{printed.value:.2f}", spread]), printed.value, data=data, class_="group",
            title=f"Table {printed.table}",
        )  # fmt: skip
    if ours is None or not ours.values or not math.isfinite(ours.mean):
        nothing = tables.number_cell(tables.ABSENT, None, data=data, class_="absent")
        return [theirs, nothing, nothing]
    own = tables.number_cell(join([f"{ours.mean:.2f}", _deviation(ours, 2)]), ours.mean, data=data)
    if not printed:
        return [theirs, own, tables.number_cell(tables.ABSENT, None, data=data, class_="absent")]
    gap = round(ours.mean, 2) - printed.value
    return [theirs, own, _difference(gap, data)]


def _difference(gap: float, data: Mapping[str, str]) -> Markup:
    shown = f"{gap:+.2f}".replace("-", "\N{MINUS SIGN}")
    side = "above" if gap > 0.005 else "below" if gap < -0.005 else "same"
    strength = min(abs(gap) / _FULL_COLOUR, 1.0)
    return tables.number_cell(
        shown, gap, data=data, class_=f"gap {side}", style=f"--strength:{100 * strength:.0f}%"
    )
