"""Charts as SVG: pure functions of their data, readable without any script.

Colours, dashes and dark mode are left to the style sheet. The script of the page reads the points and the two
axes back from the attributes to say what is under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from findtta.report.markup import Markup, element, join
from findtta.report.scales import Scale, linear, number, spread

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 14.0, 46.0
_CHARACTER, _LINE = 6.4, 13.0  # the size of a label's letters, about

Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart.

    Attributes:
        name: What it is called.
        look: The class that gives it its colour and dashes.
        points: Its x and y values; those that are not finite are left out.
        band: For each point the lower and the upper end of a band around it.
        filled: For each point whether its marker is filled; empty for a line without markers.
        events: Things that happened on the way: x, y and what it was.
        data: Attributes for filters, without their ``data-``.
    """

    name: str
    look: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    filled: Sequence[bool] = ()
    events: Sequence[tuple[float, float, str]] = ()
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a scatter chart.

    Attributes:
        name: What it is called.
        look: The class that gives it its colour.
        x: How far to the right; the smaller, the better.
        y: How far up; the greater, the better.
        tip: What it says when pointed at.
        data: Attributes for filters, without their ``data-``.
    """

    name: str
    look: str
    x: float
    y: float
    tip: str
    data: Mapping[str, str] = field(default_factory=dict)


def line_chart(
    series: Sequence[Series],
    *,
    label: str,
    x_title: str,
    y_title: str,
    names: Sequence[str] = (),
    zero: bool = False,
    settled: float = 0.0,
) -> Markup:
    """Draw lines.

    Args:
        series: The lines.
        label: What the chart shows, for those who cannot see it.
        x_title: What runs along the horizontal axis.
        y_title: What runs along the vertical axis.
        names: What the x values 1, 2, ... are called.
        zero: Whether the vertical axis begins at zero.
        settled: The share of the horizontal axis before which lines may run out of the chart.

    Returns:
        The chart.
    """
    across = [x for line in series for x, _ in line.points]
    across += [1.0, float(len(names))] if names else []
    x = _tight(linear(across, LEFT, WIDTH - RIGHT, count=6), across)
    begin = x.low + settled * (x.high - x.low)
    heights = [y for line in series for place, y in line.points if place >= begin]
    heights += [end for line in series for ends in line.band for end in ends]
    y = linear(heights, HEIGHT - BOTTOM, TOP, zero=zero)
    lines = [_line(line, x, y) for line in series]
    if settled:
        lines = [_cut_off(lines)]
    return _chart([_axes(x, y, x_title, y_title), *lines], x, y, label, kind="lines", names=names)


def scatter_chart(points: Sequence[Point], *, label: str, x_title: str, y_title: str) -> Markup:
    """Draw points, with the frontier of those that no other one beats in both directions.

    Args:
        points: The points; small x and great y are good.
        label: What the chart shows, for those who cannot see it.
        x_title: What runs along the horizontal axis.
        y_title: What runs along the vertical axis.

    Returns:
        The chart.
    """
    known = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y) and point.x > 0]
    x = spread([point.x for point in known], LEFT, WIDTH - RIGHT - 8)
    y = linear([point.y for point in known], HEIGHT - BOTTOM, TOP)
    places = [(x(point.x), y(point.y)) for point in known]
    edge = frontier(places)
    labels = place_labels(places, [point.name for point in known])
    marks = [
        element(
            "g",
            element("circle", cx=_at(place[0]), cy=_at(place[1]), r=5.5),
            spot and element("text", point.name, x=_at(spot[0]), y=_at(spot[1]), class_="label"),
            element("title", point.tip),
            class_=f"point {point.look}" + " on-frontier" * (place in edge),
            **_data(point.data),
        )
        for point, place, spot in zip(known, places, labels, strict=True)
    ]
    path = element("path", d=_steps(edge), class_="frontier") if edge else None
    return _chart([_axes(x, y, x_title, y_title), path, *marks], x, y, label, kind="points")


def frontier(places: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the places, in pixels from the top left, to the left of and above which there is no other."""
    best, kept = math.inf, []
    for place in sorted(set(places)):
        if place[1] < best:
            best = place[1]
            kept.append(place)
    return kept


def place_labels(places: Sequence[tuple[float, float]], names: Sequence[str]) -> list[tuple[float, float] | None]:
    """Return where the left end of each label can be without covering a point or another label, or None."""
    taken: list[Box] = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    found: list[tuple[float, float] | None] = []
    for (x, y), name in zip(places, names, strict=True):
        width = _CHARACTER * len(name)
        spots = [(x + 9, y + 4), (x - 9 - width, y + 4), (x - width / 2, y - 10), (x - width / 2, y + 19),
                 (x + 7, y - 7), (x + 7, y + 15), (x - 7 - width, y - 7), (x - 7 - width, y + 15)]  # fmt: skip
        free = next((spot for spot in spots if _is_free(_box(spot, width), taken)), None)
        found.append(free)
        if free:
            taken.append(_box(free, width))
    return found


def _box(spot: tuple[float, float], width: float) -> Box:
    return spot[0], spot[1] - _LINE + 3, spot[0] + width, spot[1] + 3


def _is_free(box: Box, taken: Iterable[Box]) -> bool:
    if box[0] < LEFT + 2 or box[2] > WIDTH or box[1] < 0 or box[3] > HEIGHT - BOTTOM:
        return False
    return all(
        box[0] >= other[2] or other[0] >= box[2] or box[1] >= other[3] or other[1] >= box[3] for other in taken
    )


def _cut_off(lines: Iterable[Markup]) -> Markup:
    """Show lines within the axes only."""
    width, height = WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP
    box = f"{LEFT:g} {TOP:g} {width:g} {height:g}"
    return element("svg", *lines, x=LEFT, y=TOP, width=width, height=height, viewBox=box)


def _tight(x: Scale, values: Sequence[float]) -> Scale:
    """Let the horizontal axis begin and end with the data."""
    known = [value for value in values if math.isfinite(value)]
    if not known or min(known) == max(known):
        return x
    low, high = min(known), max(known)
    return Scale(low, high, x.start, x.end, tuple(tick for tick in x.ticks if low <= tick <= high))


def _line(line: Series, x: Scale, y: Scale) -> Markup:
    known = [index for index, point in enumerate(line.points) if all(map(math.isfinite, point))]
    places = [(x(line.points[index][0]), y(line.points[index][1])) for index in known]
    band = None
    if line.band:
        upper = [(place[0], y(line.band[index][1])) for index, place in zip(known, places, strict=True)]
        lower = [(place[0], y(line.band[index][0])) for index, place in zip(known, places, strict=True)]
        band = element("polygon", points=_points([*upper, *reversed(lower)]), class_="band")
    markers = [
        element(
            "circle", cx=_at(place[0]), cy=_at(place[1]), r=3.2, class_=None if line.filled[index] else "hollow"
        )
        for index, place in zip(known, places, strict=True)
        if line.filled
    ]
    events = [
        element("path", element("title", what), d=_cross(x(where), y(height)), class_="event")
        for where, height, what in line.events
        if math.isfinite(where) and math.isfinite(height)
    ]
    drawn = element("polyline", points=_points(places))
    return element(
        "g", band, drawn, *markers, *events, class_=f"series {line.look}", data_name=line.name, **_data(line.data)
    )


def _axes(x: Scale, y: Scale, x_title: str, y_title: str) -> Markup:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    grid = "".join(f"M{LEFT:g} {_at(y(tick))}H{right:g}" for tick in y.ticks)
    ticks = "".join(f"M{_at(x(tick))} {bottom:g}v4" for tick in x.ticks)
    y_labels = [
        element("text", number(tick), x=LEFT - 8, y=_at(y(tick) + 4), text_anchor="end") for tick in y.ticks
    ]
    x_labels = [
        element("text", number(tick), x=_at(x(tick)), y=bottom + 18, text_anchor="middle") for tick in x.ticks
    ]
    centre, middle = (LEFT + right) / 2, (TOP + bottom) / 2
    return join(
        [
            element("path", d=grid, class_="grid"),
            element("path", d=f"M{LEFT:g} {bottom:g}H{right:g}{ticks}", class_="axis"),
            *y_labels,
            *x_labels,
            element("text", x_title, x=centre, y=HEIGHT - 6, text_anchor="middle", class_="axis-title"),
            element(
                "text", y_title, transform=f"translate(13 {middle:g}) rotate(-90)", text_anchor="middle",
                class_="axis-title",
            ),
        ]
    )  # fmt: skip


def _chart(
    content: Iterable[object], x: Scale, y: Scale, label: str, *, kind: str, names: Sequence[str] = ()
) -> Markup:
    return element(
        "svg",
        *content,
        class_=f"chart {kind}",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=label,
        data_x=_ends(x),
        data_y=_ends(y),
        data_names=json.dumps(list(names), ensure_ascii=False) if names else None,
    )


def _ends(scale: Scale) -> str:
    """Write an axis for the script: the pixels of its ends, then their values."""
    return f"{scale.start:g} {scale.end:g} {scale.low:.6g} {scale.high:.6g}"


def _steps(edge: Sequence[tuple[float, float]]) -> str:
    (first_x, first_y), *others = edge
    return f"M{_at(first_x)} {_at(first_y)}" + "".join(f"H{_at(x)}V{_at(y)}" for x, y in others)


def _cross(x: float, y: float) -> str:
    return f"M{_at(x - 5)} {_at(y - 5)}l10 10m0 -10l-10 10"


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_at(x)},{_at(y)}" for x, y in places)


def _at(pixel: float) -> str:
    """Write a place to a hundredth of a pixel, which is as exact as the page says anything."""
    return f"{pixel:.2f}".rstrip("0").rstrip(".")


def _data(data: Mapping[str, str]) -> dict[str, str]:
    return {f"data_{name}": value for name, value in data.items()}
