"""Figures of accuracy against a setting: alpha, threshold, batch size, number of domains, stream."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper.accuracy_tables import STREAM_TITLES, stream_of
from findtta.paper.context import Context, Setup
from findtta.paper.cost_tables import timed, timing_notes
from findtta.paper.items import Item
from findtta.paper.notes import display
from findtta.paper.study import Results, Study
from findtta.plots import Panel, Series
from findtta.tables import Cell

ALPHAS, ALPHAS_QUICK = tuple(step / 10 for step in range(11)), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
THRESHOLDS, THRESHOLDS_QUICK = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0), (0.0, 0.1, 0.3, 1.0)
BATCH_SIZES, BATCH_SIZES_QUICK = (1, 4, 16, 64, 256), (1, 8, 64)
STEPS, STEPS_QUICK = 1000, 100
#: Numbers of domains that divide the fifteen evenly.
DOMAIN_COUNTS = (1, 3, 5, 15)
_PAPER_ALPHA, _PAPER_THRESHOLD = 0.8, 0.1

Settings = Mapping[str, Any]


def sweep(
    study: Study,
    setup: Setup,
    lines: Mapping[str, tuple[str, Settings]],
    points: Mapping[Any, Sequence[Settings]],
    **panel: Any,
) -> Panel:
    """Return a panel of accuracy against a setting; points without results are left out, and lines without points.

    ``lines`` has for each name in the legend its look and the settings of its runs, ``points`` for each value of
    the setting the settings of the runs that are averaged.
    """
    series = []
    for name, (look, line) in lines.items():
        found = []
        for x, variants in points.items():
            cells = [study.cell(setup, **line, **variant) for variant in variants]
            cell = Cell.average(cells)
            if cell.mean is not None and math.isfinite(cell.mean):
                found.append((float(x), cell.mean, cell.uncertainty or 0.0))
        if found:
            x_values, y_values, spread = zip(*found, strict=True)
            series.append(Series(name=name, look=look, x=x_values, y=y_values, spread=spread))
    if len(series) == 1 < len(lines):  # a legend would have told it from the others
        panel["title"] = f"{panel['title']}, {series[0].name}"
    return Panel(y="accuracy (%)", series=tuple(series), **panel)


class Alpha(Item):
    """Accuracy of FIND against alpha, the weight of the source statistics; the paper announces it."""

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        alphas = ALPHAS_QUICK if study.context.quick else ALPHAS
        lines = {
            title: (title, {"method": "find", "stream": stream_of(scenario)})
            for scenario, title in STREAM_TITLES.items()
        }
        points = {alpha: [{"options": {"alpha": alpha}}] for alpha in alphas}
        return [sweep(study, setup, lines, points, title=setup.title, x="alpha", mark=_PAPER_ALPHA)]


class BatchSize(Item):
    """Accuracy of every method against the batch size."""

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        methods = {display(method): method for method in study.context.compared}
        return [_size_panel(study, setup, _crossmix(methods))]


def _crossmix(methods: Mapping[str, str]) -> dict[str, tuple[str, Settings]]:
    return {title: (method, {"method": method, "stream": "crossmix"}) for title, method in methods.items()}


def _size_panel(study: Study, setup: Setup, lines: Mapping[str, tuple[str, Settings]]) -> Panel:
    sizes = BATCH_SIZES_QUICK if study.context.quick else BATCH_SIZES
    points = {size: [{"batch_size": size}] for size in sizes}
    ticks = {str(size): float(size) for size in sizes}
    title = f"{setup.title}, CrossMix"
    return sweep(study, setup, lines, points, title=title, x="batch size", doubling=True, ticks=ticks)


class DomainsAndBatch(Item):
    """Source and batch statistics against the number of domains in a batch, and against the batch size."""

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        lines = _crossmix({"SBN": "source", "TBN": "tbn"})
        points = {
            count: [{"domains": None if count == len(MAIN_CORRUPTIONS) else part} for part in mixtures(count)]
            for count in DOMAIN_COUNTS
        }
        ticks = {str(count): count for count in DOMAIN_COUNTS}
        by_count = sweep(study, setup, lines, points, title=setup.title, x="domains in a batch", ticks=ticks)
        return [by_count, _size_panel(study, setup, lines)]


def mixtures(count: int) -> list[tuple[str, ...]]:
    """Divide the fifteen corruptions into mixtures of ``count``, each of different kinds.

    >>> mixtures(5)[0]
    ('gaussian_noise', 'defocus_blur', 'zoom_blur', 'fog', 'elastic_transform')
    """
    parts = len(MAIN_CORRUPTIONS) // count
    return [MAIN_CORRUPTIONS[first::parts] for first in range(parts)]


class Threshold(Item):
    """Accuracy and time of FIND* against its threshold."""

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        values = THRESHOLDS_QUICK if study.context.quick else THRESHOLDS
        panel = sweep(
            study,
            setup,
            {"accuracy": ("find-star", {"method": "find-star", "stream": "crossmix"})},
            {value: [{"options": {"threshold": value}}] for value in values},
            title=panel_title(setup, network),
            x="threshold gamma",
            mark=_PAPER_THRESHOLD,
            right="time per batch (times Source)",
        )
        names = {value: f"threshold {value:g}" for value in values}
        candidates = {
            name: {"method": "find-star", "options": {"threshold": value}} for value, name in names.items()
        }
        found = timed(study, setup, candidates).value.get("candidates", {})
        ratios = {value: found[name]["ratio"] for value, name in names.items() if "ratio" in found.get(name, {})}
        time = Series(name="time", look="time", x=(*ratios,), y=(*ratios.values(),), right=True)
        return [dataclasses.replace(panel, series=(*panel.series, *([time] if ratios else [])))]

    def notes(self, context: Context, results: Results) -> list[str]:
        return timing_notes(results)


def panel_title(setup: Setup, network: str) -> str:
    """Return the dataset and network of the paper, with what stands for them."""
    return f"{setup.title}, {network} ({setup.model})"


@dataclass(kw_only=True, eq=False)
class GainAndGradient(Item):
    """What batch statistics add, what fine-tuning adds on top of them, and the gradient at every step."""

    streams: Mapping[str, str]  # their titles
    methods: Mapping[str, str]  # their titles

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        lines = {title: (method, {"method": method}) for method, title in self.methods.items()}
        points = {place: [{"stream": stream}] for place, stream in enumerate(self.streams)}
        ticks = {title: float(place) for place, title in enumerate(self.streams.values())}
        gains = sweep(study, setup, lines, points, title=setup.title, x="stream", style="bars", ticks=ticks)
        series = []
        for stream, title in self.streams.items():
            settings = {"batches": STEPS_QUICK if study.context.quick else STEPS}
            found = study.reading("gradients", setup, settings, method="sar", stream=stream).value
            if found.get("steps"):
                x, y = (tuple(map(float, found[name])) for name in ("steps", "norms"))
                series.append(Series(name=title, look=title, x=x, y=y))
        steps = Panel(
            title=f"{setup.title}, SAR",
            x="adaptation step",
            y="norm of the gradient",
            series=tuple(series),
            style="bands",
        )
        return [gains, steps]
