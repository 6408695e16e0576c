"""How what is compared is drawn: everything keeps its colour throughout a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from findtta.report.markup import Markup, element

COLOURS = 8  # of the style sheet: classes c0, c1, ...
DASHES = 4  # classes d0, d1, ...
BASELINE = "source"  # the model that nothing is done to; grey
OWN = "find"


def looks(names: Iterable[str]) -> dict[str, str]:
    """Return the class that gives each name its colour, and dashes where there are more names than colours."""
    known = list(names)
    # This package's own methods get the full lines, however many others there are.
    coloured = sorted((name for name in known if name != BASELINE), key=lambda name: not name.startswith(OWN))
    given = {name: f"c{place % COLOURS} d{place // COLOURS % DASHES}" for place, name in enumerate(coloured)}
    return {name: given.get(name, "baseline") for name in known}


def legend(looks: Mapping[str, str], *, kind: str) -> Markup:
    """Return a legend; the script lets its entries switch lines off and on.

    Args:
        looks: The class of each name.
        kind: What the names are: ``"method"`` or ``"stream"``.

    Returns:
        The legend.
    """
    swatch = '<svg viewBox="0 0 26 10" aria-hidden="true"><path d="M1 5H25"/></svg>'
    entries = [
        element(
            "li",
            element("button", Markup(swatch), name, type="button", class_=f"key {look}", aria_pressed="true"),
            **{f"data_{kind}": name},
        )
        for name, look in looks.items()
    ]
    return element("ul", *entries, class_="legend", data_kind=kind)
