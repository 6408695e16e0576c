"""Streams drawn as text or as a figure: batches from left to right, and in each the shares of the domains."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from findtta import plots
from findtta._io import write_file
from findtta.data.dataset import CLEAN, split_domain
from findtta.errors import OptionError
from findtta.streams.order import Ints
from findtta.streams.scenarios import SCENARIOS
from findtta.streams.stream import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Shares = NDArray[np.float64]
Colour = tuple[float, float, float]

#: From none to nearly all.
SHADES = " ░▒▓█"
#: The share from which the second, third and last shade is used.
STEPS = (0.12, 0.35, 0.75)
#: What figures are written as.
FORMATS = (".png", ".svg", ".pdf")
_CLEAN_COLOUR: Colour = (0.85, 0.85, 0.85)
_COLUMNS, _ZOOMED = 240, 60  # of a figure
_LEGEND_COLUMNS = 5


@dataclass(frozen=True)
class View:
    """Part of a stream as columns of one batch or of several together.

    ``edges`` are the batches at which columns begin, and the one after the last; ``shares`` has the share of each
    domain in each column, shape (columns, domains).
    """

    title: str
    edges: Ints
    shares: Shares


def views(stream: Stream, columns: int, zoomed: int) -> list[View]:
    """Return the whole stream, batch by batch if that fits into the columns.

    Else return blocks of batches, and ``zoomed`` single batches from its middle, since blocks cannot show what
    changes from batch to batch.
    """
    batches, counts = len(stream), stream.composition()

    def view(title: str, start: int, stop: int, columns: int) -> View:
        edges = start + np.arange(columns + 1) * (stop - start) // columns
        sums = np.add.reduceat(counts[:stop], edges[:-1], axis=0)
        return View(title, edges, sums / sums.sum(axis=1, keepdims=True))

    if batches <= columns:
        return [view(f"{batches:,} batches", 0, batches, batches)]
    blocks = columns - zoomed
    start = (batches - zoomed) // 2
    return [
        view(f"all {batches:,} batches in {blocks} blocks", 0, batches, blocks),
        view(f"batches {start}-{start + zoomed - 1}", start, start + zoomed, zoomed),
    ]


def draw(stream: Stream, width: int = 80) -> str:
    """Draw a stream as text: a line per domain in five shades, and one below that says what the columns are."""
    names = [_shortened(domain, max(8, width // 4)) for domain in stream.domains]
    margin = max(map(len, names))
    room = max(8, width - margin - 4)  # two bars of the frame, one between the views, one space
    shown = views(stream, room, room // 2)
    lines = []
    for index, name in enumerate(names):
        levels = [np.digitize(view.shares[:, index], (0, *STEPS), right=True) for view in shown]
        parts = ["".join(SHADES[level] for level in part) for part in levels]
        lines.append(f"{name.rjust(margin)} |{'|'.join(parts)}|")
    first = [_shortened(view.title, len(view.shares)).ljust(len(view.shares)) for view in shown[:-1]]
    titles = " ".join([" " * (margin + 1), *first, shown[-1].title])
    return "\n".join([*lines, _shortened(titles, width)])


def legend() -> str:
    """Say what the shades mean."""
    upper = [f"{shade} up to {step:.0%}" for shade, step in zip(SHADES[1:], STEPS, strict=False)]
    return f"share of the samples: {', '.join(upper)}, {SHADES[-1]} more"


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 2)] + ".."


def save_figure(streams: Sequence[Stream], path: Path) -> None:
    """Draw streams, one panel each, into a file whose ending says the format."""
    if path.suffix.lower() not in FORMATS:
        raise OptionError(f"the figure must be a file ending in {', '.join(FORMATS)}, got {path.name!r}.")
    colours = domain_colours([domain for stream in streams for domain in stream.domains])
    legend_rows = -(-len(colours) // _LEGEND_COLUMNS)
    kind = path.suffix.lower()[1:]
    drawn = plots.render(
        lambda figure: _draw_figure(figure, streams, colours),
        (10, 1.65 * len(streams) + 0.25 * legend_rows + 0.6),
        title="streams",
        kinds=(kind,),
    )
    write_file(path, drawn[kind])


def _draw_figure(figure: Figure, streams: Sequence[Stream], colours: Mapping[str, Colour]) -> None:
    for panel, stream in zip(figure.subfigures(len(streams), 1, squeeze=False)[:, 0], streams, strict=True):
        settings = ", ".join(f"{name}={value}" for name, value in stream.settings.items())
        scenario = SCENARIOS.get(stream.scenario)  # that of another package need not be there any more
        title = f"{stream.scenario}: {scenario.summary}" if scenario else stream.scenario
        title += f" ({settings})" if settings else ""
        panel.suptitle(title, x=0.012, ha="left", fontsize=10)
        shown = views(stream, _COLUMNS, _ZOOMED)
        axes = panel.subplots(1, len(shown), width_ratios=(2, 1)[: len(shown)], squeeze=False)[0]
        for axis, view in zip(axes, shown, strict=True):
            draw_view(axis, view, [colours[domain] for domain in stream.domains])
        axes[0].set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    draw_legend(figure, colours)


def draw_legend(figure: Figure, colours: Mapping[str, Colour]) -> None:
    """Name the domains by their colours below a figure."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=colour, label=domain) for domain, colour in colours.items()],
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS,
        fontsize=8,
        frameon=False,
    )


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


def domain_colours(domains: Sequence[str]) -> dict[str, Colour]:
    """Give every kind of domain a hue, and paler shades of it to its milder severities."""
    kinds: dict[str, dict[int | None, str]] = {}
    for domain in domains:
        kind, severity = split_domain(domain)
        kinds.setdefault(kind, {})[severity] = domain
    worst = max((severity or 0 for by_severity in kinds.values() for severity in by_severity), default=0)
    colours: dict[str, Colour] = {CLEAN: _CLEAN_COLOUR} if kinds.pop(CLEAN, None) else {}
    for position, by_severity in enumerate(kinds.values()):
        hue = 0.92 * position / len(kinds)  # the last must not come back to the first
        # Neighbours in hue differ in lightness, so that fifteen kinds can be told apart.
        lightness = 0.42 if position % 2 else 0.62
        for severity in sorted(by_severity, key=lambda severity: severity or 0):
            strength = 1.0 if severity is None else 0.25 + 0.75 * severity / worst
            colours[by_severity[severity]] = colorsys.hls_to_rgb(hue, 1 - strength * (1 - lightness), 0.65)
    return colours
