"""The figures of the paper, in words: its source holds none of their points."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from findtta.paper.numbers._files import read, unknown


@dataclass(frozen=True)
class Panel:
    """One part of a figure.

    Attributes:
        name: Its letter.
        title: What it shows, in our words.
        x: What runs along the horizontal axis.
        y: What runs along the vertical axis.
        label: Its label in the paper's source; empty if it has none.
    """

    name: str
    title: str
    x: str
    y: str
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        id: What it is called here.
        number: Its number in the paper.
        title: What it shows, in our words.
        label: Its label in the paper's source; empty if it has none.
        kind: ``"measurement"``, or ``"drawing"`` or ``"gallery"``, which have no axes.
        claim: What the paper concludes from it, in our words.
        panels: Its parts.
        notes: What is remarkable about it.
    """

    id: str
    number: int
    title: str
    label: str
    kind: Literal["measurement", "drawing", "gallery"]
    claim: str
    panels: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()


def figures() -> dict[str, PaperFigure]:
    """Return the figures by their ids, in the order of the paper."""
    return {figure.id: figure for figure in _all()}


def figure(id: str) -> PaperFigure:
    """Return a figure by its id or its number.

    >>> figure("figure12").id
    'group-counts'
    """
    for found in _all():
        if id in (found.id, f"figure{found.number}"):
            return found
    numbered = [f"figure{found.number}" for found in _all()]
    raise unknown("the paper's figure", id, [*figures(), *numbered])


@functools.cache
def _all() -> tuple[PaperFigure, ...]:
    return tuple(
        PaperFigure(
            id=name,
            number=number,
            title=fields["title"],
            label=fields["label"],
            kind=fields["kind"],
            claim=fields["claim"],
            panels=tuple(Panel(**panel) for panel in fields.get("panels", [])),
            notes=tuple(fields.get("notes", [])),
        )
        for number, (name, fields) in enumerate(read("figures").items(), start=1)
    )
