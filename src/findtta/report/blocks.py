"""What a setting shows beside its leaderboard: domains, curves, layers and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from findtta.data.dataset import split_domain
from findtta.report import tables
from findtta.report.collect import Setting
from findtta.report.look import legend
from findtta.report.markup import Markup, element
from findtta.report.summaries import Layer, collapses, curve, domain_accuracies, layers
from findtta.report.svg import Point, Series, line_chart, scatter_chart

_SETTLED = 0.05  # of a stream: before that, the accuracy so far is of a few samples


@dataclass(frozen=True)
class Looks:
    """The classes that give methods and streams their colours.

    Attributes:
        methods: By method.
        streams: By stream.
    """

    methods: Mapping[str, str]
    streams: Mapping[str, str]


def domains(setting: Setting, *, is_open: bool) -> Markup | None:
    """Return the accuracy of every method in every domain, a heat map for each stream."""
    maps = [figure for stream in setting.streams if (figure := _heat_map(setting, stream))]
    explanation = "Accuracy in % within each domain, mean over seeds. The stronger the colour, the more is right."
    return _block("Domains", explanation, maps, is_open=is_open, class_="stack")


def _heat_map(setting: Setting, stream: str) -> Markup | None:
    accuracies = {
        method: found
        for method in setting.methods
        if (found := domain_accuracies(setting.runs.get((method, stream), ())))
    }
    names = list(dict.fromkeys(domain for found in accuracies.values() for domain in found))
    if len(names) < 2:
        return None
    values = [value for found in accuracies.values() for value in found.values()]
    low, high = min(values), max(values)
    rows = [
        element(
            "tr",
            tables.method_name(method),
            *(_heat(found.get(domain), low, high) for domain in names),
            data_method=method,
        )
        for method, found in accuracies.items()
    ]
    heads = [tables.heading(title, column) for column, title in enumerate(_short_domains(names), start=1)]
    head = element("tr", tables.method_heading(), *heads)
    table = tables.whole(stream, [head], rows, class_="numbers heat")
    return element("div", tables.scrolling(table, f"{stream}: accuracy by domain"), data_stream=stream)


def _heat(value: float | None, low: float, high: float) -> Markup:
    if value is None:
        return tables.number_cell(tables.ABSENT, None, class_="absent")
    strength = 100 * (value - low) / (high - low) if high > low else 50.0
    return tables.number_cell(f"{value:.1f}", value, style=f"--strength:{strength:.0f}%")


def _short_domains(names: Sequence[str]) -> list[str]:
    """Return domains in words, without a severity that is the same for all."""
    kinds, severities = zip(*map(split_domain, names), strict=True)
    shown = kinds if len(set(severities)) == 1 else names
    return [name.replace("_", " ") for name in shown]


def curves(setting: Setting, looks: Looks, *, is_open: bool) -> Markup | None:
    """Return the accuracy so far along each stream."""
    charts = [chart for stream in setting.streams if (chart := _curve_chart(setting, stream, looks))]
    explanation = "Accuracy of all samples so far, mean over seeds. A cross marks where predictions collapsed."
    key = legend(_used(looks.methods, setting.methods), kind="method")
    return _block("Along the stream", explanation, charts, is_open=is_open, legend=key)


def _curve_chart(setting: Setting, stream: str, looks: Looks) -> Markup | None:
    series = []
    for method in setting.methods:
        runs = setting.runs.get((method, stream), ())
        points = curve(runs)
        if len(points) > 1:
            events = [(min(batch, points[-1][0]), _height(points, batch), what) for batch, what in collapses(runs)]
            look = looks.methods[method]
            series.append(Series(name=method, look=look, points=points, events=events, data={"method": method}))
    if not series:
        return None
    chart = line_chart(
        series,
        label=f"Running accuracy in {stream}",
        x_title="batches",
        y_title="accuracy so far (%)",
        settled=_SETTLED,
    )
    return _figure(stream, chart, stream=stream)


def _height(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the height of a curve near x."""
    return min(points, key=lambda point: abs(point[0] - x))[1]


def layer_charts(setting: Setting, looks: Looks, *, is_open: bool) -> Markup | None:
    """Return group counts and sensitivity scores by layer, for every method that has them."""
    figures, as_tables = [], []
    for method in setting.methods:
        found = {
            stream: known
            for stream in setting.streams
            if (known := layers(setting.runs.get((method, stream), ())))
        }
        figures += [figure for figure in (_groups(method, found, looks), _scores(method, found, looks)) if figure]
        if found:
            as_tables.append(_layer_table(method, found))
    explanation = (
        "By layer, from the input to the output; mean over seeds. Bands are one standard deviation of the number "
        "of groups over batches. A filled marker is a layer that FIND* lets be split, a hollow one is not."
    )
    key = legend(_used(looks.streams, setting.streams), kind="stream")
    return _block("Layers", explanation, [*figures, *as_tables], is_open=is_open, legend=key)


def _groups(method: str, found: Mapping[str, Sequence[Layer]], looks: Looks) -> Markup | None:
    series = []
    for stream, known in found.items():
        counted = [(place, layer) for place, layer in enumerate(known, start=1) if layer.groups is not None]
        points = [(float(place), layer.groups or 0.0) for place, layer in counted]
        band = [
            (max(height - layer.deviation, 0.0), height + layer.deviation)
            for (_, height), (_, layer) in zip(points, counted, strict=True)
        ]
        if points:
            series.append(_layer_series(stream, looks, points, [True] * len(points), band))
    return _layer_figure(f"{method}: groups per batch", "groups", series, found, method)


def _scores(method: str, found: Mapping[str, Sequence[Layer]], looks: Looks) -> Markup | None:
    series = []
    for stream, known in found.items():
        scored = [(place, layer) for place, layer in enumerate(known, start=1) if layer.score is not None]
        points = [(float(place), layer.score or 0.0) for place, layer in scored]
        filled = [layer.split is None or layer.split >= 0.5 for _, layer in scored]
        if points:
            series.append(_layer_series(stream, looks, points, filled, ()))
    return _layer_figure(f"{method}: sensitivity", "sensitivity score", series, found, method)


def _layer_series(
    stream: str,
    looks: Looks,
    points: Sequence[tuple[float, float]],
    filled: Sequence[bool],
    band: Sequence[tuple[float, float]],
) -> Series:
    return Series(
        name=stream,
        look=looks.streams[stream],
        points=points,
        filled=filled,
        band=band,
        data={"stream": stream},
    )


def _layer_figure(
    title: str, y_title: str, series: Sequence[Series], found: Mapping[str, Sequence[Layer]], method: str
) -> Markup | None:
    if not series:
        return None
    names = max(([layer.name for layer in known] for known in found.values()), key=len)
    chart = line_chart(series, label=title, x_title="layer", y_title=y_title, names=names, zero=True)
    return _figure(title, chart, method=method)


def _layer_table(method: str, found: Mapping[str, Sequence[Layer]]) -> Markup:
    """Return the numbers of the charts, for those who cannot see them and for copying."""
    names = list(dict.fromkeys(layer.name for known in found.values() for layer in known))
    by_stream = {stream: {layer.name: layer for layer in known} for stream, known in found.items()}
    heads = [element("th", "layer", scope="col", class_="name")]
    for stream in found:
        heads += [
            element("th", f"{stream}: {what}", scope="col", data_stream=stream) for what in ("groups", "score")
        ]
    rows = []
    for name in names:
        cells: list[Markup] = []
        for stream, known in by_stream.items():
            layer = known.get(name)
            cells += [element("td", shown, data_stream=stream) for shown in _layer_numbers(layer)]
        rows.append(element("tr", element("th", name, scope="row", class_="name"), *cells))
    table = tables.whole(f"{method}: layers", [element("tr", *heads)], rows, class_="numbers")
    return element(
        "details",
        element("summary", f"{method}: layers as a table"),
        tables.scrolling(table, f"{method}: layers"),
        class_="as-table",
        data_method=method,
    )


def _layer_numbers(layer: Layer | None) -> tuple[str, str]:
    groups = score = tables.ABSENT
    if layer and layer.groups is not None:
        groups = f"{layer.groups:.1f} ± {layer.deviation:.1f}"
    if layer and layer.score is not None:
        score = f"{layer.score:.3g}"
    return groups, score


def cost(setting: Setting, looks: Looks, *, is_open: bool) -> Markup | None:
    """Return accuracy against the time a batch takes."""
    charts = [chart for stream in setting.streams if (chart := _cost_chart(setting, stream, looks))]
    explanation = (
        "Up and to the left is better. The line joins the methods that no other one beats in both accuracy and "
        "time. Latency is the median of a batch; runs were made at different times, so that small "
        "differences mean nothing."
    )
    return _block("Cost against accuracy", explanation, charts, is_open=is_open)


def _cost_chart(setting: Setting, stream: str, looks: Looks) -> Markup | None:
    points = []
    for method in setting.methods:
        accuracy = setting.cell("accuracy", method, stream)
        latency = setting.cell("latency", method, stream)
        memory = setting.cell("memory", method, stream)
        if accuracy and latency and memory and accuracy.values:
            tip = f"{method}: {accuracy.mean:.2f} %, {latency.mean:.1f} ms per batch, {memory.mean:.0f} MB"
            points.append(
                Point(
                    name=method,
                    look=looks.methods[method],
                    x=latency.mean,
                    y=accuracy.mean,
                    tip=tip,
                    data={"method": method},
                )
            )
    if len(points) < 2:
        return None
    title = f"Accuracy against latency in {stream}"
    chart = scatter_chart(points, label=title, x_title="median latency of a batch (ms)", y_title="accuracy (%)")
    return _figure(stream, chart, stream=stream)


def _figure(title: str, chart: Markup, **data: str) -> Markup:
    return element("figure", element("figcaption", title), chart, **tables.filter_data(data))


def _used(looks: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: looks[name] for name in names}


def _block(
    title: str,
    explanation: str,
    figures: Sequence[Markup],
    *,
    is_open: bool,
    legend: Markup | None = None,
    class_: str = "figures",
) -> Markup | None:
    """Return a part of a setting that can be folded away, or None if there is nothing in it."""
    if not figures:
        return None
    return element(
        "details",
        element("summary", element("h3", title)),
        element("p", explanation, class_="note"),
        legend,
        element("div", *figures, class_=class_),
        class_="block",
        open=is_open,
    )
