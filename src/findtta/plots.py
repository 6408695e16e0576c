"""Plots: one palette and one style, and panels as data, so that what is stored of a figure is what is drawn."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from findtta._extras import require
from findtta._io import read_toml

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = Literal["lines", "bands", "bars", "points"]
Look = tuple[str, str, str]  # colour, marker, line

_STYLE = read_toml(Path(__file__).with_suffix(".toml"))
_COLOURS: Mapping[str, str] = _STYLE["colours"]
#: Colour, marker and line of each method and stream, the same in every figure.
LOOKS: Mapping[str, Look] = {
    name: (_COLOURS[colour], marker, line) for name, (colour, marker, line) in _STYLE["looks"].items()
}
CYCLE = tuple(colour for name, colour in _COLOURS.items() if name != "black")
_MARKERS = "os^Dv<>P"
_STRONG = ("find", "find-star")  # what the paper is about
_CROWDED = 6  # more names than this go beside the panels
_FEW_COLUMNS = 2


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points that belong together."""

    name: str  # what the legend calls them
    x: tuple[float, ...]  # where they are
    y: tuple[float, ...]  # how high they are
    spread: tuple[float, ...] = ()  # standard deviation of each; no error bars are drawn if it is empty or 0
    look: str | Look = ""  # a name in ``LOOKS``, or a look; others get the next colour
    right: bool = False  # whether they are measured on the axis at the right
    labels: tuple[str, ...] = ()  # what is written at each point, if anything


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str  # what it shows
    x: str  # what runs along the horizontal axis
    y: str  # what runs along the vertical axis
    series: tuple[Series, ...]  # what is drawn
    style: Style = "lines"  # as what
    right: str = ""  # what runs along the axis at the right, if there is one
    doubling: bool = False  # whether x is drawn so that doubling is a step
    # Where x has its ticks, by name; empty means that it is left to the drawing.
    ticks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    mark: float | None = None  # where a vertical line marks the paper's choice
    legend: bool = True  # whether the series are named; many points in many colours are not


def panel_grid(panels: Sequence[Panel], columns: int | None = None) -> tuple[int, tuple[float, float]]:
    """Return in how many columns panels are drawn, and the size of the figure in inches."""
    count = len(panels)
    columns = min(columns or (_FEW_COLUMNS if count != 3 else 3), count)
    beside = any(_is_crowded(panel) for panel in panels)
    wide = 1.9 if columns == 1 else 1.0
    return columns, (4.3 * wide * columns + (1.3 if beside else 0.0), 3.2 * math.ceil(count / columns))


def render(
    draw: Callable[[Figure], None],
    size: tuple[float, float],
    *,
    title: str = "",
    kinds: Sequence[str] = ("svg", "png"),
    dpi: int = 150,
) -> dict[str, bytes]:
    """Draw a figure of a size in inches, and return the content of a file for each format.

    The same numbers always give the same bytes; the title is the seed of the names inside an SVG.
    """
    matplotlib = require("matplotlib", "report", "drawing figures")
    figure = require("matplotlib.figure", "report", "drawing figures").Figure(figsize=size, layout="constrained")
    drawn = {}
    with matplotlib.rc_context(_STYLE["matplotlib"] | {"svg.hashsalt": title}):
        draw(figure)
        for kind in kinds:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else {})
            drawn[kind] = buffer.getvalue()
    return drawn


def draw_panels(figure: Figure, panels: Sequence[Panel], columns: int) -> None:
    """Draw panels on an empty figure."""
    rows = math.ceil(len(panels) / columns)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    crowded = any(map(_is_crowded, panels))
    handles: dict[str, Any] = {}  # of the legend beside or below the panels
    for axis, panel in zip(axes, panels, strict=False):
        named = draw_panel(axis, panel)
        if panel.legend and (crowded or panel.right):  # it would hide what is drawn, on either axis
            handles |= named
        elif panel.legend and len(named) > 1:
            where = "upper right" if panel.style == "bars" else "best"
            axis.legend(named.values(), named.keys(), loc=where)
    for axis in axes[len(panels) :]:
        axis.remove()
    if handles and crowded:
        figure.legend(handles.values(), handles.keys(), frameon=False, loc="outside right upper")
    elif handles:
        figure.legend(handles.values(), handles.keys(), frameon=False, loc="outside lower center", ncols=4)


def draw_panel(axis: Axes, panel: Panel) -> dict[str, Any]:
    """Draw one panel, and return what the legend is made of; in an SVG, ids say what belongs to which series."""
    from matplotlib.ticker import NullLocator

    axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axis.grid(visible=True)
    if panel.style == "bars":
        axis.margins(y=0.4)  # bars leave no other room for their names
    if panel.doubling:
        axis.set_xscale("log", base=2)
    right = None
    if panel.right:
        right = axis.twinx()
        right.set_ylabel(panel.right)
        right.spines["right"].set_visible(True)
    handles = {}
    for index, series in enumerate(panel.series):
        on = right if right is not None and series.right else axis
        before = on.get_children()
        handles[series.name] = _DRAWN[panel.style](on, panel, series, index)
        new = [artist for artist in on.get_children() if artist not in before]
        for number, artist in enumerate(new):
            artist.set_gid(f"series-{index}-{number}")
    if panel.ticks:
        axis.set_xticks([*panel.ticks.values()], [*panel.ticks.keys()])
        axis.xaxis.set_minor_locator(NullLocator())
    if panel.mark is not None:
        axis.axvline(panel.mark, color="0.6", linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    return handles


def _draw_line(axis: Axes, panel: Panel, series: Series, index: int) -> Any:
    colour, marker, line = _look(series, index)
    many = len(series.x) > 60
    (drawn,) = axis.plot(
        series.x,
        series.y,
        color=colour,
        marker="" if many else marker,
        linestyle=line,
        linewidth=1.0 if many else 2.2 if series.look in _STRONG else 1.4,
        markersize=4.5,
        zorder=3 if series.look in _STRONG else 2,
    )
    _draw_spread(axis, series.x, series, colour)
    return drawn


def _draw_band(axis: Axes, panel: Panel, series: Series, index: int) -> Any:
    colour, _, line = _look(series, index)
    (drawn,) = axis.plot(series.x, series.y, color=colour, linestyle=line, linewidth=1.5)
    if any(series.spread):
        pairs = list(zip(series.y, series.spread, strict=True))
        low, high = [y - spread for y, spread in pairs], [y + spread for y, spread in pairs]
        axis.fill_between(series.x, low, high, color=colour, alpha=0.18, linewidth=0)
    return drawn


def _draw_bar(axis: Axes, panel: Panel, series: Series, index: int) -> Any:
    colour, _, _ = _look(series, index)
    count = len(panel.series)
    width = 0.8 / count
    places = [x + (index - (count - 1) / 2) * width for x in series.x]
    drawn = axis.bar(places, series.y, width * 0.94, color=colour)
    _draw_spread(axis, places, series, "0.2")
    axis.bar_label(drawn, fmt="%.1f", fontsize=7, padding=2)
    return drawn


def _draw_points(axis: Axes, panel: Panel, series: Series, index: int) -> Any:
    colour, marker, _ = _look(series, index)
    many = len(series.x) > 12 or len(panel.series) > len(CYCLE)
    (drawn,) = axis.plot(
        series.x,
        series.y,
        color=colour,
        marker=marker,
        linestyle="none" if many or not series.labels else "-",
        linewidth=0.8,
        alpha=0.8,
        markersize=4 if many else 6,
        markeredgewidth=0,
    )
    for x, y, text in zip(series.x, series.y, series.labels, strict=False):
        axis.annotate(text, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7, color=colour)
    return drawn


def _draw_spread(axis: Axes, places: Sequence[float], series: Series, colour: str) -> None:
    if any(series.spread):
        axis.errorbar(places, series.y, series.spread, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2)


_DRAWN = {"lines": _draw_line, "bands": _draw_band, "bars": _draw_bar, "points": _draw_points}


def _look(series: Series, index: int) -> Look:
    if isinstance(series.look, tuple):
        return series.look
    if series.look in LOOKS:
        return LOOKS[series.look]
    colour, marker = CYCLE[index % len(CYCLE)], _MARKERS[(index + index // len(CYCLE)) % len(_MARKERS)]
    return colour, marker, ("-", "--", ":")[index // len(CYCLE) % 3]


def _is_crowded(panel: Panel) -> bool:
    return panel.legend and len(panel.series) > _CROWDED
