"""Figures of accuracy against a setting: alpha, threshold, batch size, number of domains, stream."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper.accuracy_tables import STREAM_TITLES, mean_values, stream_of
from findtta.paper.context import Context, Setup
from findtta.paper.cost_tables import timed, timing_notes
from findtta.paper.items import FigureItem
from findtta.paper.notes import display
from findtta.paper.numbers import METHODS
from findtta.paper.results import Results, Study
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


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A panel of accuracy against a setting."""

    title: str
    x: str  # what the setting is
    lines: Mapping[str, tuple[str, Settings]]  # for each name in the legend its look and the settings of its runs
    points: Mapping[float, Sequence[Settings]]  # for each value the settings of the runs that are averaged
    more: Mapping[str, Any] = field(default_factory=dict)  # further attributes of the panel

    def panel(self, study: Study, setup: Setup) -> Panel:
        """Return the panel; points without results are left out, and lines without points."""
        series = []
        for name, (look, line) in self.lines.items():
            found = []
            for x, variants in self.points.items():
                cells = [study.cell(setup, **line, **variant) for variant in variants]
                cell = Cell(values=mean_values(cell.values for cell in cells))
                if cell.mean is not None and math.isfinite(cell.mean):
                    found.append((float(x), cell.mean, cell.std or 0.0))
            if found:
                x_values, y_values, spread = zip(*found, strict=True)
                series.append(Series(name=name, look=look, x=x_values, y=y_values, spread=spread))
        return Panel(title=self.title, x=self.x, y="accuracy (%)", series=tuple(series), **self.more)


class SweepFigure(FigureItem):
    """A figure of one or several sweeps for each setup."""

    def sweeps(self, context: Context, setup: Setup, network: str) -> list[Sweep]:
        """Return the sweeps of a setup that stands for a network of the paper."""
        raise NotImplementedError

    def panels(self, study: Study) -> list[Panel]:
        return [
            panel
            for (_, network), setup in self.available(study.context)
            for panel in self.panels_of(study, setup, network)
        ]

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        """Return the panels of a setup: those of its sweeps, and others."""
        return [sweep.panel(study, setup) for sweep in self.sweeps(study.context, setup, network)]


class Alpha(SweepFigure):
    """Accuracy of FIND against alpha, the weight of the source statistics; the paper announces it."""

    def sweeps(self, context: Context, setup: Setup, network: str) -> list[Sweep]:
        alphas = ALPHAS_QUICK if context.quick else ALPHAS
        return [
            Sweep(
                title=setup.title,
                x="alpha",
                lines={
                    title: (title, {"method": "find", "stream": stream_of(scenario)})
                    for scenario, title in STREAM_TITLES.items()
                },
                points={alpha: [{"options": {"alpha": alpha}}] for alpha in alphas},
                more={"mark": _PAPER_ALPHA},
            )
        ]


class BatchSize(SweepFigure):
    """Accuracy of every method against the batch size."""

    def sweeps(self, context: Context, setup: Setup, network: str) -> list[Sweep]:
        methods = {display(method): method for method in METHODS if context.wants(method)}
        return [_size_sweep(context, setup, methods)]


def _size_sweep(context: Context, setup: Setup, methods: Mapping[str, str]) -> Sweep:
    sizes = BATCH_SIZES_QUICK if context.quick else BATCH_SIZES
    return Sweep(
        title=f"{setup.title}, CrossMix",
        x="batch size",
        lines={title: (method, {"method": method, "stream": "crossmix"}) for title, method in methods.items()},
        points={size: [{"batch_size": size}] for size in sizes},
        more={"doubling": True, "ticks": {str(size): float(size) for size in sizes}},
    )


class DomainsAndBatch(SweepFigure):
    """Source and batch statistics against the number of domains in a batch, and against the batch size."""

    def sweeps(self, context: Context, setup: Setup, network: str) -> list[Sweep]:
        methods = {"SBN": "source", "TBN": "tbn"}
        by_count = Sweep(
            title=setup.title,
            x="domains in a batch",
            lines={title: (method, {"method": method, "stream": "crossmix"}) for title, method in methods.items()},
            points={
                count: [{"domains": None if count == len(MAIN_CORRUPTIONS) else part} for part in mixtures(count)]
                for count in DOMAIN_COUNTS
            },
            more={"ticks": {str(count): count for count in DOMAIN_COUNTS}},
        )
        return [by_count, _size_sweep(context, setup, methods)]


def mixtures(count: int) -> list[tuple[str, ...]]:
    """Divide the fifteen corruptions into mixtures of ``count``, each of different kinds.

    >>> mixtures(5)[0]
    ('gaussian_noise', 'defocus_blur', 'zoom_blur', 'fog', 'elastic_transform')
    """
    parts = len(MAIN_CORRUPTIONS) // count
    return [MAIN_CORRUPTIONS[first::parts] for first in range(parts)]


class Threshold(SweepFigure):
    """Accuracy and time of FIND* against its threshold."""

    def sweeps(self, context: Context, setup: Setup, network: str) -> list[Sweep]:
        return [
            Sweep(
                title=panel_title(setup, network),
                x="threshold gamma",
                lines={"accuracy": ("find-star", {"method": "find-star", "stream": "crossmix"})},
                points={value: [{"options": {"threshold": value}}] for value in self._values(context)},
                more={"mark": _PAPER_THRESHOLD, "right": "time per batch (times Source)"},
            )
        ]

    def notes(self, context: Context, results: Results) -> list[str]:
        return [
            "At 0 every layer is split, as in FIND; at 1 only the most sensitive one. The dotted line is the "
            f"paper's choice, {_PAPER_THRESHOLD:g}.",
            *timing_notes(results),
        ]

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        (panel,) = super().panels_of(study, setup, network)
        names = {value: f"threshold {value:g}" for value in self._values(study.context)}
        found = (
            timed(study, setup, {name: ("find-star", {"threshold": value}) for value, name in names.items()}) or {}
        )
        ratios = {value: found[name]["ratio"] for value, name in names.items() if "ratio" in found.get(name, {})}
        time = Series(name="time", look="time", x=(*ratios,), y=(*ratios.values(),), right=True)
        return [dataclasses.replace(panel, series=(*panel.series, *([time] if ratios else [])))]

    def _values(self, context: Context) -> tuple[float, ...]:
        return THRESHOLDS_QUICK if context.quick else THRESHOLDS


def panel_title(setup: Setup, network: str) -> str:
    """Return the dataset and network of the paper, with what stands for them."""
    return f"{setup.title}, {network} ({setup.model})"


class GainAndGradient(SweepFigure):
    """What batch statistics add, what fine-tuning adds on top of them, and the gradient at every step."""

    streams: ClassVar = {"static": "Static", "crossmix": "CrossMix"}
    methods: ClassVar = {"source": "Source", "tbn": "+ batch statistics (TBN)", "sar": "+ fine-tuning (SAR)"}

    def sweeps(self, context: Context, setup: Setup, network: str) -> list[Sweep]:
        return [
            Sweep(
                title=setup.title,
                x="stream",
                lines={title: (method, {"method": method}) for method, title in self.methods.items()},
                points={place: [{"stream": stream}] for place, stream in enumerate(self.streams)},
                more={
                    "style": "bars",
                    "ticks": {title: float(place) for place, title in enumerate(self.streams.values())},
                },
            )
        ]

    def panels_of(self, study: Study, setup: Setup, network: str) -> list[Panel]:
        series = []
        for stream, title in self.streams.items():
            settings = {"batches": STEPS_QUICK if study.context.quick else STEPS}
            reading = study.reading("gradients", setup, settings, method="sar", stream=stream)
            found = reading.value if reading else {}
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
        return [*super().panels_of(study, setup, network), steps]
