"""Streams drawn as a figure: a panel per stream, batches from left to right, shares of the domains stacked."""

from __future__ import annotations

import colorsys
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from findtta.data.dataset import CLEAN, split_domain
from findtta.errors import MissingExtraError, OptionError
from findtta.streams.drawing import View, views
from findtta.streams.make import SCENARIOS
from findtta.streams.stream import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Colour = tuple[float, float, float]

FORMATS = (".png", ".svg", ".pdf")
_CLEAN_COLOUR: Colour = (0.85, 0.85, 0.85)
_COLUMNS, _ZOOMED = 240, 60
_LEGEND_COLUMNS = 5


def save_figure(streams: Sequence[Stream], path: Path) -> None:
    """Draw streams into one picture.

    Args:
        streams: The streams, one panel each.
        path: Where to write; the ending says the format.
    """
    if path.suffix.lower() not in FORMATS:
        raise OptionError(f"the picture must be a file ending in {', '.join(FORMATS)}, got {path.name!r}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("pictures need the 'report' extra: pip install \"findtta[report]\"")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colours = domain_colours([domain for stream in streams for domain in stream.domains])
    legend_rows = -(-len(colours) // _LEGEND_COLUMNS)
    figure = Figure(figsize=(10, 1.65 * len(streams) + 0.25 * legend_rows + 0.6), layout="constrained")
    for panel, stream in zip(figure.subfigures(len(streams), 1, squeeze=False)[:, 0], streams, strict=True):
        panel.suptitle(_title(stream), x=0.012, ha="left", fontsize=10)
        shown = views(stream, _COLUMNS, _ZOOMED)
        axes = panel.subplots(1, len(shown), width_ratios=(2, 1)[: len(shown)], squeeze=False)[0]
        for axis, view in zip(axes, shown, strict=True):
            draw_view(axis, view, [colours[domain] for domain in stream.domains])
        axes[0].set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    figure.legend(
        handles=[Patch(color=colour, label=domain) for domain, colour in colours.items()],
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS,
        fontsize=8,
        frameon=False,
    )
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise OptionError(f"the picture cannot be written to {str(path)!r}: {error.strerror}.") from error


def draw_view(axis: Axes, view: View, colours: Sequence[Colour]) -> None:
    """Draw the share of every domain over the batches of one view of a stream."""
    from matplotlib.ticker import MaxNLocator

    tops = view.shares.cumsum(axis=1)
    for index, colour in enumerate(colours):
        baseline = tops[:, index] - view.shares[:, index]
        axis.stairs(tops[:, index], view.edges, baseline=baseline, fill=True, color=colour, linewidth=0)
    axis.set_xlim(view.edges[0], view.edges[-1])
    axis.set_ylim(0, 1)
    axis.set_yticks([])
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axis.tick_params(labelsize=8, length=2)
    axis.set_xlabel(view.title, fontsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _title(stream: Stream) -> str:
    summary = SCENARIOS[stream.scenario].summary if stream.scenario in SCENARIOS else ""
    settings = ", ".join(f"{name}={value}" for name, value in stream.settings.items())
    return f"{stream.scenario}: {summary}" + (f" ({settings})" if settings else "")


def domain_colours(domains: Sequence[str]) -> dict[str, Colour]:
    """Give every kind of domain a hue, and paler shades of it to its milder severities."""
    kinds = list(dict.fromkeys(split_domain(domain)[0] for domain in domains if domain != CLEAN))
    worst = max((split_domain(domain)[1] or 0 for domain in domains), default=0)
    colours: dict[str, Colour] = {}
    for domain in sorted(set(domains), key=lambda domain: _place(domain, kinds)):
        if domain == CLEAN:
            colours[domain] = _CLEAN_COLOUR
            continue
        kind, severity = split_domain(domain)
        position = kinds.index(kind)
        hue = 0.92 * position / len(kinds)  # the last must not come back to the first
        strength = 1.0 if severity is None else 0.25 + 0.75 * severity / worst
        # Neighbours in hue differ in lightness, so that fifteen kinds can be told apart.
        lightness = 0.42 if position % 2 else 0.62
        red, green, blue = colorsys.hls_to_rgb(hue, 1 - strength * (1 - lightness), 0.65)
        colours[domain] = (red, green, blue)
    return colours


def _place(domain: str, kinds: Sequence[str]) -> tuple[int, int]:
    kind, severity = split_domain(domain)
    return (-1 if domain == CLEAN else kinds.index(kind), severity or 0)
