"""Figures of what happens inside models, of the data and of the streams: one value per layer, maps, galleries."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from findtta.bench import Result
from findtta.data.dataset import MAIN_CORRUPTIONS, SEVERITIES, domain_name
from findtta.paper.accuracy_tables import STREAM_TITLES, stream_of
from findtta.paper.context import RESNET, Context, Setup
from findtta.paper.document import Picture, picture
from findtta.paper.items import Item
from findtta.paper.study import Reading, Results, Study
from findtta.paper.sweep_figures import panel_title
from findtta.plots import Panel, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUP_BATCHES, GROUP_BATCHES_QUICK = 40, 6
COLD_STARTS, COLD_STARTS_QUICK = (3, 5, 10, 20, 50, 100), (3, 10, 20)
SAMPLES, SAMPLES_QUICK = 600, 300
#: One corruption of each family: the paper shows four and does not name them.
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")
_DEEP = 1 / 3
_USUAL_COLD_START = 10
_SHARE_COLUMNS = 120
_INCHES = 9.0


def measured_groups(study: Study, setup: Setup, stream: str, batch_size: int) -> Reading:
    """Return the measurement of groups in a stream."""
    settings = {"batches": GROUP_BATCHES_QUICK if study.context.quick else GROUP_BATCHES}
    return study.reading("groups", setup, settings, method="find", stream=stream, batch_size=batch_size)


def mean_over_runs(runs: Sequence[Result], field: str) -> dict[int, float]:
    """Return for each layer, by its place, the mean over runs of a number of it, where all of them have it."""
    found = {}
    for place, layers in enumerate(zip(*(run.layers for run in runs), strict=False)):
        values = [layer.get(field) for layer in layers]
        if all(value is not None for value in values):
            found[place] = statistics.fmean(values)
    return found


class GroupCounts(Item):
    """How many groups every layer has in the dynamic streams, with the number in noise beside it."""

    streams = ("crossmix", "random", "shuffle")

    def notes(self, context: Context, results: Results) -> list[str]:
        batches = sorted({run.config["stream"]["batches"] for run in results.runs if run.config})
        counted = " or ".join(f"{count:,}" for count in batches)
        return [f"Bands are one standard deviation over {counted} batches; the paper: 1,000."] if batches else []

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        series = []
        for stream in self.streams:
            runs = study.done(setup, method="find", stream=stream_of(stream))
            means, stds = (mean_over_runs(runs, field) for field in ("groups_mean", "groups_std"))
            spread = tuple(stds.get(place, 0.0) for place in means)
            series.append(_layer_series(STREAM_TITLES[stream], means, STREAM_TITLES[stream], spread))
        layers = measured_groups(study, setup, "crossmix", study.context.batch_size).value.get("layers", [])
        counts = [layer["groups_noise"]["mean"] for layer in layers]
        noise = dict(enumerate(count for count in counts if math.isfinite(count)))
        shown = tuple(one for one in (*series, _layer_series("noise", noise, "noise")) if one.x)
        return [Panel(title=setup.title, x="BatchNorm layer", y="groups in a batch", series=shown, style="bands")]


def _layer_series(
    name: str, values: Mapping[int, float], look: str = "", spread: tuple[float, ...] = ()
) -> Series:
    return Series(name=name, look=look, x=tuple(map(float, values)), y=(*values.values(),), spread=spread)


class Sensitivity(Item):
    """The sensitivity score of every layer, and how it depends on the length of the cold start."""

    def notes(self, context: Context, results: Results) -> list[str]:
        lengths = {
            "the default cold start": _USUAL_COLD_START,
            **{f"{length} batches": length for length in self._lengths(context)},
        }
        unfinished = {_cold_start(run) for run in results.runs if run.status == "done" and not _is_scored(run)}
        left_out = [name for name, length in lengths.items() if length in unfinished]
        return [f"Left out, since a stream ends before: {', '.join(left_out)}."] if left_out else []

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        runs = study.done(setup, method="find-star")
        return [_score_panel(panel_title(setup, network), {"score": runs}, "find-star")]

    def panels(self, study: Study) -> list[Panel]:
        panels = super().panels(study)
        setup = study.context.find("cifar10-c")
        if setup is None:
            return panels
        lengths = self._lengths(study.context)
        # All cold starts have the same stream, long enough for the longest.
        images = study.context.spec(setup).images
        needed = math.ceil(max(lengths) * study.context.batch_size / len(MAIN_CORRUPTIONS)) + 1
        run = {"method": "find-star", "images": None if images is None else max(images, needed)}
        cold = {f"{one} batches": study.done(setup, **run, options={"cold_start": one}) for one in lengths}
        return [*panels, _score_panel(f"cold starts of several lengths, {panel_title(setup, RESNET)}", cold)]

    def pictures(self, study: Study) -> list[Picture]:
        return picture(self.title, self.panels(study), columns=1)

    def _lengths(self, context: Context) -> tuple[int, ...]:
        return COLD_STARTS_QUICK if context.quick else COLD_STARTS


def _score_panel(title: str, lines: Mapping[str, list[Result]], look: str = "") -> Panel:
    scores = {
        name: mean_over_runs([run for run in runs if _is_scored(run)], "score") for name, runs in lines.items()
    }
    series = tuple(_layer_series(name, values, look) for name, values in scores.items() if values)
    return Panel(title=title, x="BatchNorm layer", y="score", series=series)


def _cold_start(run: Result) -> int:
    return int(run.config["options"]["cold_start"])


def _is_scored(run: Result) -> bool:
    """Return whether the cold start ended; before that the scores are not yet comparable."""
    return int(run.config["stream"]["batches"]) >= _cold_start(run)


@dataclass(kw_only=True, eq=False)
class TSNE(Item):
    """Maps of features at a BatchNorm layer, by domain and by class."""

    #: For each panel its title, the kind of truth that colours it, the depth of the layer, whether it is mixed.
    shown: Sequence[Mapping[str, Any]]

    def pictures(self, study: Study) -> list[Picture]:
        # Separately, since domains and classes have a legend each.
        panels: dict[str, list[Panel]] = {"domain": [], "class": []}
        samples = SAMPLES_QUICK if study.context.quick else SAMPLES
        for setup in self.setups(study):
            images = study.context.spec(setup).images
            for one in self.shown:
                run: dict[str, Any] = {"stream": "crossmix"}
                if not one["mixed"]:
                    # As many images as in the mixture: neighbours are nearer among more of them.
                    enough = None if images is None else max(images, samples)
                    run = {"stream": "static", "domains": MAIN_CORRUPTIONS[:1], "images": enough}
                settings = {"samples": samples, "depth": one["depth"]}
                found = study.reading("map", setup, settings, method="source", **run).value
                if found:
                    title, kind = f"{setup.title}, {one['title']}", one["kind"]
                    panels[kind].append(_map_panel(title, found, kind))
        return [
            drawn
            for kind, shown in panels.items()
            for drawn in picture(f"{self.title}, by {kind}", shown, name=kind)
        ]


def _map_panel(title: str, found: Mapping[str, Any], kind: str) -> Panel:
    agreement = found["agreement"][kind]
    series = []
    for name in sorted(set(found[kind])):
        places = [place for place, one in enumerate(found[kind]) if one == name]
        x, y = (tuple(found[axis][place] for place in places) for axis in ("x", "y"))
        series.append(Series(name=_plain(name), x=x, y=y))
    title = (
        f"{title}\nlayer {found['index'] + 1} of {found['layers']}; same as the neighbour: "
        f"{agreement['same']:.0f} % (chance {agreement['chance']:.0f} %)"
    )
    return Panel(title=title, x="t-SNE 1", y="t-SNE 2", series=tuple(series), style="points")


@dataclass(kw_only=True, eq=False)
class Distance(Item):
    """How far instance statistics are from batch statistics, against accuracy, over severities."""

    measures: Mapping[str, str]  # their titles

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        run = {"method": "tbn", "stream": "static", "domains": CORRUPTIONS, "severity": SEVERITIES}
        domains = study.reading("distances", setup, {"part": _DEEP}, **run).value.get("domains", {})
        return [
            Panel(
                title=f"{setup.title}, severities 1 to 5",
                x=f"{name} of instance and batch mean",
                y="accuracy of TBN (%)",
                series=tuple(_severity_series(domains, measure)),
                style="points",
            )
            for measure, name in self.measures.items()
        ]


def _severity_series(domains: Mapping[str, Mapping[str, float]], measure: str) -> list[Series]:
    series = []
    for corruption in CORRUPTIONS:
        found = {level: domains.get(domain_name(corruption, level)) for level in SEVERITIES}
        points = {level: point for level, point in found.items() if point is not None}
        x, y = (tuple(point[name] for point in points.values()) for name in (measure, "accuracy"))
        if points:
            series.append(Series(name=_plain(corruption), x=x, y=y, labels=tuple(map(str, points))))
    return series


@dataclass(kw_only=True, eq=False)
class Gallery(Item):
    """Images under corruptions."""

    images: int  # how many images each corruption shows
    severities: bool = False  # a few corruptions at all severities, in place of all of them at the usual one

    def pictures(self, study: Study) -> list[Picture]:
        run: dict[str, Any] = {"method": "source", "stream": "crossmix"}
        if self.severities:
            run |= {"stream": "static", "domains": CORRUPTIONS, "severity": SEVERITIES}
        setups = self.setups(study)
        found = [study.reading("sheet", setup, {"images": self.images}, **run).value for setup in setups]
        return [self._picture(setup, value) for setup, value in zip(setups, found, strict=True) if value]

    def _picture(self, setup: Setup, value: Mapping[str, Any]) -> Picture:
        from PIL import Image

        content = base64.b64decode(value["png"])
        sheet = Image.open(io.BytesIO(content)).convert("RGB")

        def draw(figure: Figure) -> None:
            figure.set_layout_engine("none")  # the sheet has its own margins
            axis = figure.add_axes((0, 0, 1, 1))
            axis.imshow(sheet, interpolation="antialiased")
            axis.set_axis_off()

        return Picture(
            name=setup.stands_for,
            title=f"{self.title}: {setup.title}",
            draw=draw,
            size=(_INCHES, _INCHES * sheet.height / sheet.width),
            data={"domains": value["domains"], "png_sha256": hashlib.sha256(content).hexdigest()},
        )


class Scenarios(Item):
    """The streams, drawn from the streams themselves: the shares of the domains along them."""

    def pictures(self, study: Study) -> list[Picture]:
        shown = {}
        for setup in self.setups(study)[:1]:
            for stream in sorted(STREAM_TITLES, key=lambda stream: stream != "static"):
                settings = {"columns": _SHARE_COLUMNS}
                run = {"method": "source", "stream": stream_of(stream)}
                if found := study.reading("shares", setup, settings, **run).value:
                    shown[STREAM_TITLES[stream]] = dict(found)
        draw = functools.partial(_draw_streams, streams=shown)
        size = (9.0, 1.5 * len(shown) + 1.0)
        return [Picture(title=self.title, draw=draw, size=size, data={"streams": shown})] if shown else []


def _draw_streams(figure: Figure, streams: Mapping[str, Mapping[str, Any]]) -> None:
    import numpy as np

    from findtta.streams.plot import View, domain_colours, draw_legend, draw_view

    colours = domain_colours([domain for stream in streams.values() for domain in stream["domains"]])
    axes = figure.subplots(len(streams), 1, squeeze=False)[:, 0]
    for axis, (title, stream) in zip(axes, streams.items(), strict=True):
        view = View(stream["title"], np.asarray(stream["edges"]), np.asarray(stream["shares"], dtype=float))
        draw_view(axis, view, [colours[domain] for domain in stream["domains"]])
        axis.set_title(title, loc="left", fontsize=10)
    draw_legend(figure, {_plain(domain): colour for domain, colour in colours.items()})


def _plain(domain: str) -> str:
    return domain.partition("@")[0].replace("_", " ")
