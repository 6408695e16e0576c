"""HTML and SVG in which text is always escaped.

Whatever is not ``Markup`` already is text, so nothing that a result says can become an element.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable

# Characters that HTML has no place for, such as the colour codes of a terminal in an error message.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_WITHOUT_CONTENT = frozenset({"input", "meta", "br", "hr"})

Attribute = str | int | float | bool | None


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Return a value as HTML: markup as it is, all else escaped."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def join(parts: Iterable[object]) -> Markup:
    """Return parts one after the other; None is left out."""
    return Markup("".join(text(part) for part in parts if part is not None))


def element(name: str, /, *children: object, **attributes: Attribute) -> Markup:
    """Return an element.

    Args:
        name: Of the element.
        children: What is in it; None is left out.
        attributes: Its attributes. Underscores become hyphens, ``class_`` is ``class``; None and False are left
            out, True has no value.

    Returns:
        The element.

    Example:
        >>> element("td", "a < b", class_="number", data_value=0.5)
        '<td class="number" data-value="0.5">a &lt; b</td>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _WITHOUT_CONTENT:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{text(_short(value))}"'


def _short(value: Attribute) -> Attribute:
    """Keep what the eye can tell apart of a number."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return value
