"""Streams drawn as text: a row per domain, time from left to right, and shades for its share of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from findtta.streams.scenario import Ints
from findtta.streams.stream import Stream

Shares = NDArray[np.float64]

#: From none to nearly all; the second for terminals that know ASCII only.
BLOCKS = " ░▒▓█"
ASCII = " .:#@"
#: The share from which the second, third and last shade is used.
STEPS = (0.12, 0.35, 0.75)


@dataclass(frozen=True)
class View:
    """Part of a stream as columns of one batch or of several together.

    Attributes:
        title: What part it is.
        edges: The batches at which columns begin, and the one after the last, shape (columns + 1,).
        shares: The share of each domain in each column, shape (columns, domains).
    """

    title: str
    edges: Ints
    shares: Shares


def views(stream: Stream, columns: int, zoomed: int) -> list[View]:
    """Show a stream in so many columns.

    Args:
        stream: The stream.
        columns: Columns there is room for.
        zoomed: How many of them to use for single batches if the whole stream does not fit.

    Returns:
        The whole stream, batch by batch if there is room; else blocks of batches, and single batches from its
        middle, since blocks cannot show what changes from batch to batch.
    """
    batches, counts = len(stream), stream.composition()
    if batches <= columns:
        return [View(f"{batches:,} batches", *_columns(counts, 0, batches, batches))]
    blocks = columns - zoomed
    start = (batches - zoomed) // 2
    return [
        View(f"all {batches:,} batches in {blocks} blocks", *_columns(counts, 0, batches, blocks)),
        View(f"batches {start}-{start + zoomed - 1}", *_columns(counts, start, start + zoomed, zoomed)),
    ]


def draw(stream: Stream, width: int = 80, shades: str = BLOCKS) -> str:
    """Draw a stream as text.

    Args:
        stream: The stream.
        width: Characters per line.
        shades: Five characters, from none to nearly all.

    Returns:
        A line per domain, and one below that says what the columns are.
    """
    names = [_shortened(domain, max(8, width // 4)) for domain in stream.domains]
    margin = max(map(len, names))
    room = max(8, width - margin - 4)  # two bars of the frame, one between the views, one space
    shown = views(stream, room, room // 2)
    lines = []
    for index, name in enumerate(names):
        parts = ["".join(shades[_level(share)] for share in view.shares[:, index]) for view in shown]
        lines.append(f"{name.rjust(margin)} |{'|'.join(parts)}|")
    first = [_shortened(view.title, len(view.shares)).ljust(len(view.shares)) for view in shown[:-1]]
    titles = " ".join([" " * (margin + 1), *first, shown[-1].title])
    return "\n".join([*lines, _shortened(titles, width)])


def legend(shades: str = BLOCKS) -> str:
    """Say what the shades mean."""
    limits = [f"{100 * step:.0f}" for step in STEPS]
    return (
        f"share of the samples: {shades[1]} up to {limits[0]} %, {shades[2]} up to {limits[1]} %, "
        f"{shades[3]} up to {limits[2]} %, {shades[4]} more"
    )


def _columns(counts: Ints, start: int, stop: int, columns: int) -> tuple[Ints, Shares]:
    edges = start + np.arange(columns + 1) * (stop - start) // columns
    sums = np.add.reduceat(counts[:stop], edges[:-1], axis=0)
    return edges, sums / sums.sum(axis=1, keepdims=True)


def _level(share: float) -> int:
    return 0 if share == 0 else 1 + int(np.searchsorted(STEPS, share, side="left"))


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 2)] + ".."


def can_show(shades: Sequence[str], encoding: str | None) -> bool:
    """Whether a terminal of this encoding knows the characters."""
    try:
        "".join(shades).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
