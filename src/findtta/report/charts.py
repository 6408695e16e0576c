"""Charts of a report: drawn by ``findtta.plots``, as SVG that the style sheet and the script of the page work on.

Colours become variables of the style sheet, so that charts follow dark mode, and each series says which method or
stream it belongs to, so that filters and legends can hide it.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import TYPE_CHECKING, Any, Literal

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
    """Return a look for each name that differs from the others in colour or line; if ``plots`` has one, that."""
    known = {name: plots.LOOKS[name] for name in names if name in plots.LOOKS}
    taken = {(colour, line) for colour, _, line in known.values()}
    pairs = [(colour, line) for line in ("-", "--", ":", "-.") for colour in plots.CYCLE]
    free = [pair for pair in pairs if pair not in taken]
    for index, name in enumerate(name for name in names if name not in known):
        colour, line = free[index % len(free)]
        known[name] = colour, "o", line
    return known


def variable(look: Look) -> str:
    """Return the colour of a look in the style sheet."""
    return f"var(--{_VARIABLES[look[0]]})"


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

    panel = Panel(title="", x="batches", y="accuracy so far (%)", series=_series(curves, look))
    return _svg(panel, label, "lines", _about("method", curves, look), finish)


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
        pixels = [(x, _HEIGHT - y) for x, y in axis.transData.transform(list(places.values()))]
        for index, (name, (x, y), spot) in enumerate(
            zip(places, pixels, place_labels(pixels, list(places)), strict=True)
        ):
            if spot:
                at, offset = places[name], (spot[0] - x, y - spot[1])
                axis.annotate(clean(name), at, offset, textcoords="offset points", gid=f"series-{index}-label")

    about = [
        {"method": name, "0": f"{name}: {accuracy:.2f} %, {latency:.1f} ms per batch, {memory:.0f} MB"}
        for name, (latency, accuracy, memory) in points.items()
    ]
    series = _series({name: [place] for name, place in places.items()}, look, marker="o")
    panel = Panel(title="", x="median latency of a batch (ms)", y="accuracy (%)", style="points", series=series)
    return _svg(panel, label, "points", about, finish)


def frontier(places: Iterable[Place]) -> list[Place]:
    """Return the places with small x and large y that no other one beats in both, from left to right."""
    kept: list[Place] = []
    for x, y in sorted(set(places), key=lambda place: (place[0], -place[1])):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return kept


def place_labels(places: Sequence[Place], names: Sequence[str]) -> list[Place | None]:
    """Return where the left end of each label can be without covering a point or another label, or None."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    found: list[Place | None] = []
    for (x, y), name in zip(places, names, strict=True):
        width = 6.4 * len(name)
        spots = [
            (right, below)
            for right, below in (
                (x + 9, y + 4), (x - 9 - width, y + 4), (x - width / 2, y - 10), (x - width / 2, y + 19),
                (x + 7, y - 7), (x + 7, y + 15), (x - 7 - width, y - 7), (x - 7 - width, y + 15),
            )
            if right > _LEFT and right + width < _WIDTH and 10 < below < _BOTTOM - 3
        ]  # fmt: skip
        boxes = {spot: (spot[0], spot[1] - 10, spot[0] + width, spot[1] + 3) for spot in spots}
        free = next(
            (spot for spot, box in boxes.items() if not any(_overlap(box, other) for other in taken)), None
        )
        found.append(free)
        taken += [boxes[free]] if free else []
    return found


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def layer_chart(
    layers: Mapping[str, Sequence[Layer]], look: Mapping[str, Look], label: str, what: Literal["groups", "score"]
) -> str:
    """Draw group counts (with a band of one standard deviation) or sensitivity scores by layer, for each stream.

    The marker of a layer that is not split is hollow.
    """
    placed = {s: [(x, part) for x, part in enumerate(found, 1) if getattr(part, what) is not None]
              for s, found in layers.items()}  # fmt: skip
    points = {
        stream: [(float(x), getattr(part, what)) for x, part in found] for stream, found in placed.items() if found
    }
    if not points:
        return ""
    spreads = {stream: [part.groups_std for _, part in placed[stream]] for stream in points if what == "groups"}

    def finish(axis: Axes) -> None:
        axis.set_ylim(bottom=0)
        for index, stream in enumerate(points if what == "score" else ()):
            for split, face in ((True, look[stream][0]), (False, _HOLLOW)):
                chosen = [
                    (x, y)
                    for (x, y), (_, part) in zip(points[stream], placed[stream], strict=True)
                    if part.is_split == split
                ]
                across, up = [x for x, _ in chosen], [y for _, y in chosen]
                axis.plot(across, up, "o", color=look[stream][0], mfc=face, ms=5, gid=f"series-{index}-marks")

    names = max(([part.name for part in found] for found in layers.values()), key=len)
    series = _series(points, look, spreads)
    panel = Panel(
        title="",
        x="layer",
        y={"groups": "groups", "score": "sensitivity score"}[what],
        style="bands",
        series=series,
    )
    return _svg(panel, label, "lines", _about("stream", points, look), finish, names)


def _series(
    points: Mapping[str, Sequence[Place]],
    look: Mapping[str, Look],
    spreads: Mapping[str, Sequence[float]] | None = None,
    marker: str = "",
) -> tuple[Series, ...]:
    return tuple(
        Series(
            name=name,
            x=tuple(x for x, _ in line),
            y=tuple(y for _, y in line),
            spread=tuple((spreads or {}).get(name, ())),
            look=(look[name][0], marker, look[name][2]),
        )
        for name, line in points.items()
    )


def _about(kind: str, names: Iterable[str], look: Mapping[str, Look]) -> list[dict[str, str]]:
    return [{kind: name, "name": name, "color": variable(look[name])} for name in names]


def _svg(
    panel: Panel,
    label: str,
    kind: str,
    about: Sequence[Mapping[str, str]],
    finish: Callable[[Axes], None],
    names: Sequence[str] = (),
) -> str:
    """Draw a panel as an element of a page, labelled for readers who cannot see it.

    The script works on it according to its kind, ``"lines"`` or ``"points"``, reads values back by the ends of the
    axes in ``data-x`` and ``data-y``, and finds in ``about`` the data attributes of each series. ``finish`` draws
    what a panel cannot have, with ids that name the series; ``names`` are those of the values 1, 2, ... of x.
    """
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
    content = clean(_content(drawn, kind, about))
    # Ids must be unique on the page.
    unique = hashlib.sha256(f"{label}{content}".encode()).hexdigest()[:8]
    content = re.sub(r'(<(?:path|clipPath) id="|url\(#|href="#)', rf"\g<1>c{unique}-", content)
    attributes = {"viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}", "role": "img", "aria-label": label}
    if names:
        attributes["data-names"] = json.dumps(list(names), ensure_ascii=False)
    attributes |= {"class": f"chart {kind}", **ends}
    return f"<svg{_attributes(attributes)}>{content}</svg>"


def _content(svg: str, kind: str, about: Sequence[Mapping[str, str]]) -> str:
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
        known = about[int(index)]
        classes = {
            "class": f"series {'line' if part == '0' else part}" if kind == "lines" else part.replace("0", "point")
        }
        title = known.get(part, "")  # what a cross or a point says when it is pointed at
        data = {
            f"data-{key}": value for key, value in known.items() if key in ("method", "stream", "name", "color")
        }
        return f"<g{_attributes(classes | data)}>" + (f"<title>{html.escape(title)}</title>" if title else "")

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
    split: float | None  # the fraction of the runs in which it was split

    @property
    def is_split(self) -> bool:
        """Whether it was split in most runs, or always is."""
        return self.split is None or self.split >= 0.5


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
        split=fmean(split) if split else None,
    )


def curve(runs: Sequence[Result]) -> list[Place]:
    """Return the accuracy so far by batch, as the mean over runs, with at most ``CURVE_POINTS`` points."""
    curves = [dict(zip(run.running["batch"], run.running["accuracy"], strict=True)) for run in runs]
    shared = sorted(set.intersection(*(set(points) for points in curves))) if curves else []
    if len(shared) > CURVE_POINTS:  # evenly spaced, with the first and the last
        step = (len(shared) - 1) / (CURVE_POINTS - 1)
        shared = [shared[round(index * step)] for index in range(CURVE_POINTS)]
    return [(batch, fmean(points[batch] for points in curves)) for batch in shared]


def collapses(runs: Iterable[Result]) -> list[tuple[float, str]]:
    """Return the batches at which predictions collapsed, each with a description."""
    return sorted(
        (run.collapse["batch"], f"seed {run.seed}, batch {run.collapse['batch']}: {run.collapse['reason']}")
        for run in runs
        if run.collapse
    )
