"""Charts of a report: drawn by ``findtta.plots``, as SVG that the style sheet and the script of the page work on.

Colours become variables of the style sheet, so that charts follow dark mode, and each series says which method or
stream it belongs to, so that filters and legends can hide it.
"""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from findtta import plots
from findtta._extras import require
from findtta.bench.result import Result
from findtta.plots import Look, Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Place = tuple[float, float]

CURVE_POINTS = 100
_SETTLED = 0.05  # of a stream: before that, the accuracy so far is of a few samples
_WIDTH, _HEIGHT = 560.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 546.0, 10.0, 254.0  # of the axes
_LOG_FROM = 8  # times the smallest value, the largest one makes an axis logarithmic
_GRID, _LINE, _HOLLOW = "#ebebeb", "#6b6b6b", "#fefefe"
#: The variables of the style sheet for the colours that are drawn with.
_VARIABLES = {
    **dict(zip(plots.CYCLE, ("blue", "orange", "green", "red", "purple", "sky", "grey", "yellow"), strict=True)),
    "#000000": "text", _GRID: "line", _LINE: "muted", _HOLLOW: "card",
}  # fmt: skip
_PURPOSE = "drawing the charts of a report"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace characters that HTML does not allow, such as the colour codes of a terminal in an error message."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Return a look for each name, with a colour and line of its own; that of ``plots`` if it has one."""
    known = {name: (plots.LOOKS[name][0], "o", plots.LOOKS[name][2]) for name in names if name in plots.LOOKS}
    pairs = [(colour, "o", line) for line in ("-", "--", ":", "-.") for colour in plots.CYCLE]
    free = itertools.cycle(pair for pair in pairs if pair not in known.values())
    return known | {name: next(free) for name in names if name not in known}


def variable(colour: str) -> str:
    """Return the variable of the style sheet for a colour."""
    return f"var(--{_VARIABLES[colour]})"


def curve_chart(runs: Mapping[str, Sequence[Result]], look: Mapping[str, Look], label: str) -> str:
    """Draw the accuracy so far along a stream for each method; empty if there is nothing to draw."""
    curves = {method: points for method, results in runs.items() if len(points := curve(results)) > 1}
    if not curves:
        return ""
    begin = _SETTLED * max(points[-1][0] for points in curves.values())
    settled = [y for points in curves.values() for x, y in points if x >= begin]

    def finish(axis: Axes) -> None:
        axis.margins(x=0)
        room = 0.06 * (max(settled) - min(settled)) or 1.0
        axis.set_ylim(min(settled) - room, max(settled) + room)
        for index, (method, points) in enumerate(curves.items()):
            for batch, _ in collapses(runs[method]):
                x, y = min(points, key=lambda point: abs(point[0] - batch))
                axis.plot(x, y, "x", color=look[method][0], ms=9, mew=2, gid=f"series-{index}-event")

    series = tuple(_series(method, points, look) for method, points in curves.items())
    panel = Panel(title="", x="batches", y="accuracy so far (%)", style="bands", series=series)
    return _svg(panel, label, "method", finish)


def cost_chart(points: Mapping[str, tuple[float, float, float]], look: Mapping[str, Look], label: str) -> str:
    """Draw accuracy against latency for each method (latency, accuracy, memory); empty if there are not two.

    A dashed line joins the methods that no other one beats in both.
    """
    if len(points) < 2:
        return ""
    places = {name: (latency, accuracy) for name, (latency, accuracy, _) in points.items()}
    latencies = [latency for latency, _ in places.values()]

    def finish(axis: Axes) -> None:
        if min(latencies) > 0 and max(latencies) > _LOG_FROM * min(latencies):
            ticker = require("matplotlib.ticker", "report", _PURPOSE)
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_locator(ticker.NullLocator())
        for mark in axis.lines:
            mark.set(markersize=11, markeredgewidth=1.5, alpha=None)
        axis.margins(0.1, 0.12)
        best = frontier(places.values())
        axis.plot(*zip(*best, strict=True), color=_LINE, drawstyle="steps-post", linewidth=1.2, gid="frontier")
        axis.autoscale_view()
        label_points(axis, places)

    says = [
        f"{name}: {accuracy:.2f} %, {latency:.1f} ms per batch, {memory:.0f} MB"
        for name, (latency, accuracy, memory) in points.items()
    ]
    series = tuple(_series(name, [place], look) for name, place in places.items())
    panel = Panel(title="", x="median latency of a batch (ms)", y="accuracy (%)", style="points", series=series)
    return _svg(panel, label, "method", finish, says=says)


def frontier(places: Iterable[Place]) -> list[Place]:
    """Return the places with small x and large y that no other one beats in both, from left to right."""
    kept: list[Place] = []
    for x, y in sorted(set(places), key=lambda place: (place[0], -place[1])):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return kept


def label_points(axis: Axes, places: Mapping[str, Place]) -> None:
    """Write names beside their points where they cover no point and no other name, or else not at all."""
    box = require("matplotlib.transforms", "report", _PURPOSE).Bbox.from_extents
    room = box(_LEFT, _HEIGHT - _BOTTOM, _WIDTH, _HEIGHT)
    taken = [box(x - 6, y - 6, x + 6, y + 6) for x, y in axis.transData.transform([*places.values()])]
    sides = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
    for index, (name, place) in enumerate(places.items()):
        for right, up in sides:
            label = axis.annotate(
                clean(name),
                place,
                (9 * right, 8 * up),
                textcoords="offset points",
                fontsize=11.5,
                ha=("center", "left", "right")[right],
                va=("center_baseline", "bottom", "top")[up],
                gid=f"series-{index}-label",
            )
            covered = label.get_window_extent()
            if room.contains(*covered.min) and room.contains(*covered.max) and not covered.count_overlaps(taken):
                taken.append(covered)
                break
            label.remove()


def layer_chart(
    layers: Mapping[str, Sequence[Layer]], look: Mapping[str, Look], label: str, what: Literal["groups", "score"]
) -> str:
    """Draw group counts (with a band of one standard deviation) or sensitivity scores by layer, for each stream.

    The marker of a layer that is not split is hollow.
    """
    placed = {
        stream: [(x, layer) for x, layer in enumerate(found, 1) if getattr(layer, what) is not None]
        for stream, found in layers.items()
    }
    series = []
    for stream, found in placed.items():
        points = [(x, getattr(layer, what)) for x, layer in found]
        spread = tuple(layer.groups_std for _, layer in found if what == "groups")
        series += [_series(stream, points, look, spread)] if points else []
    if not series:
        return ""

    def finish(axis: Axes) -> None:
        axis.set_ylim(bottom=0)
        for index, line in enumerate(series if what == "score" else ()):
            colour = look[line.name][0]
            faces = [colour if layer.is_split else _HOLLOW for _, layer in placed[line.name]]
            marks = axis.scatter(line.x, line.y, 25, faces, edgecolors=colour, linewidths=1, zorder=3)
            marks.set(gid=f"series-{index}-marks", clip_on=True)

    names = max(([layer.name for layer in found] for found in layers.values()), key=len)
    y = {"groups": "groups", "score": "sensitivity score"}[what]
    panel = Panel(title="", x="layer", y=y, style="bands", series=tuple(series))
    return _svg(panel, label, "stream", finish, names=names)


def _series(
    name: str, points: Iterable[Place], look: Mapping[str, Look], spread: tuple[float, ...] = ()
) -> Series:
    x, y = zip(*points, strict=True)
    return Series(name=name, x=x, y=y, spread=spread, look=look[name])


def _svg(
    panel: Panel,
    label: str,
    by: Literal["method", "stream"],
    finish: Callable[[Axes], None],
    names: Sequence[str] = (),
    says: Sequence[str] = (),
) -> str:
    """Draw a panel as an element of a page, labelled for readers who cannot see it.

    The script works on it according to its class, ``lines`` or ``points``, reads values back by the ends of the
    axes in ``data-x`` and ``data-y``, and finds the name and colour of each series in its data attributes; ``by``
    says what a series is. ``finish`` draws what a panel cannot have, with ids that name the series; ``names`` are
    those of the values 1, 2, ... of x, and ``says`` what points say when they are pointed at.
    """
    kind = "points" if panel.style == "points" else "lines"
    matplotlib, ticker = (require(name, "report", _PURPOSE) for name in ("matplotlib", "matplotlib.ticker"))
    label = clean(label)
    ends: dict[str, str] = {}

    def draw(figure: Any) -> None:
        figure.set_layout_engine("none")
        figure.set_dpi(72)  # a pixel is a point
        figure.patch.set_visible(False)
        sides = _LEFT / _WIDTH, 1 - _BOTTOM / _HEIGHT, (_RIGHT - _LEFT) / _WIDTH, (_BOTTOM - _TOP) / _HEIGHT
        axis = figure.add_axes(sides, frameon=True)
        axis.patch.set_visible(False)
        plots.draw_panel(axis, panel)
        axis.grid(visible=False, axis="x")
        axis.spines["left"].set_visible(False)
        axis.spines["bottom"].set_color(_LINE)
        axis.tick_params(left=False, color=_LINE, labelsize=12)
        axis.set_xlabel(panel.x, fontsize=12)
        axis.set_ylabel(panel.y, fontsize=12)
        axis.yaxis.set_major_locator(ticker.MaxNLocator(7, steps=[1, 2, 5, 10]))
        axis.xaxis.set_major_locator(ticker.MaxNLocator(7, steps=[1, 2, 5, 10], integer=kind == "lines"))
        finish(axis)
        if names:
            axis.set_xlim(1, max(len(names), 2))
        (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
        ends["data-x"] = f"{_LEFT:g} {_RIGHT:g} {left:.6g} {right:.6g}"
        ends["data-y"] = f"{_BOTTOM:g} {_TOP:g} {low:.6g} {high:.6g}"

    settings = {"svg.fonttype": "none", "path.simplify": False, "text.parse_math": False}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about glyphs that its fonts lack: the browser has others
        size = _WIDTH / 72, _HEIGHT / 72
        drawn = plots.render(draw, size, title=label, kinds=("svg",), dpi=72)["svg"].decode()
    content = clean(_content(drawn, panel, by, says))
    # Ids must be unique on the page.
    unique = hashlib.sha256(f"{label}{content}".encode()).hexdigest()[:8]
    content = re.sub(r'(<(?:path|clipPath) id="|url\(#|href="#)', rf"\g<1>c{unique}-", content)
    attributes = {"viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}", "role": "img", "aria-label": label}
    if names:
        attributes["data-names"] = json.dumps(list(names), ensure_ascii=False)
    attributes |= {"class": f"chart {kind}", **ends}
    return f"<svg{_attributes(attributes)}>{content}</svg>"


def _content(svg: str, panel: Panel, by: str, says: Sequence[str]) -> str:
    """Return the content of an SVG file for the page: short numbers, variables for colours, data for ids."""
    content = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    for useless in (
        r"<metadata>.*?</metadata>",
        r"<defs>\s*<style.*?</style>\s*</defs>",
        r"<!--.*?-->",
        r"<g id=\"[^\"]*\"/>",
        r"font(?:-\w+)?: [^;\"]*;? ?",
    ):
        content = re.sub(useless, "", content, flags=re.DOTALL)
    content = re.sub(r'="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found.group()), content)
    colours = {colour.lower(): f"var(--{name})" for colour, name in _VARIABLES.items()}
    content = re.sub(r"#[0-9a-f]{6}\b", lambda found: colours.get(found.group(), found.group()), content)
    content = content.replace("xlink:href", "href")

    def group(found: re.Match[str]) -> str:
        name, _, rest = found.group(1).partition("-")
        if name != "series":
            return '<g class="frontier">' if name == "frontier" else "<g>"
        index, _, part = rest.partition("-")
        series, is_main = panel.series[int(index)], part == "0"
        attributes = {
            "class": ("point" if is_main else part) if says else f"series {'line' if is_main else part}",
            f"data-{by}": series.name,
            "data-name": series.name,
            "data-color": variable(series.look[0]),
        }
        title = f"<title>{html.escape(says[int(index)])}</title>" if says and is_main else ""
        return f"<g{_attributes(attributes)}>{title}"

    return re.sub(r"\s*\n\s*", "\n", re.sub(r'<g id="([^"]*)">', group, content))


def _attributes(values: Mapping[str, str]) -> str:
    return "".join(f' {name}="{html.escape(value)}"' for name, value in values.items())


# What runs with several seeds gave together


@dataclass(frozen=True)
class Layer:
    """What an adapted layer did, as the mean over seeds; None for what it does not have."""

    name: str
    groups: float | None
    groups_std: float  # over batches and seeds
    score: float | None
    is_split: bool  # in most runs, or always


def layers_of(runs: Sequence[Result]) -> list[Layer]:
    """Return what the layers did, in the order of the model; empty if none has groups or a score."""
    by_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        for layer in run.layers:
            by_name[layer["name"]].append(layer)
    found = [_layer(name, parts) for name, parts in by_name.items()]
    return found if any(layer.groups is not None or layer.score is not None for layer in found) else []


def _layer(name: str, parts: Sequence[Mapping[str, Any]]) -> Layer:
    groups, stds, scores = (
        [found for part in parts if (found := part.get(key)) is not None and math.isfinite(found)]
        for key in ("groups_mean", "groups_std", "score")
    )
    split = [bool(part["split"]) for part in parts if part.get("split") is not None]
    # The variance over all batches of all seeds: within the seeds, and between them.
    variance = fmean(value**2 for value in stds) if stds else 0.0
    return Layer(
        name=name,
        groups=fmean(groups) if groups else None,
        groups_std=math.sqrt(variance + (pvariance(groups) if len(groups) > 1 else 0.0)),
        score=fmean(scores) if scores else None,
        is_split=not split or fmean(split) >= 0.5,
    )


def curve(runs: Sequence[Result]) -> list[Place]:
    """Return the accuracy so far by batch, as the mean over runs, with at most ``CURVE_POINTS`` points."""
    curves = [dict(zip(run.running["batch"], run.running["accuracy"], strict=True)) for run in runs]
    shared = sorted(set.intersection(*(set(points) for points in curves))) if curves else []
    chosen = np.linspace(0, len(shared) - 1, min(len(shared), CURVE_POINTS)).round().astype(int)
    return [(batch, fmean(points[batch] for points in curves)) for batch in (shared[place] for place in chosen)]


def collapses(runs: Iterable[Result]) -> list[tuple[float, str]]:
    """Return the batches at which predictions collapsed, each with a description."""
    return sorted(
        (run.collapse["batch"], f"seed {run.seed}, batch {run.collapse['batch']}: {run.collapse['reason']}")
        for run in runs
        if run.collapse
    )
