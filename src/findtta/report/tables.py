"""Tables that can be sorted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from findtta.report.markup import Attribute, Markup, element

Data = Mapping[str, str]

ABSENT = "\N{EN DASH}"  # what a cell says that has no number


def heading(
    title: object, column: int, *, first: str = "descending", data: Data | None = None, **attributes: Attribute
) -> Markup:
    """Return the head of a column that the script lets readers sort by.

    Args:
        title: What it says.
        column: The number of the column, from 0.
        first: How the first click sorts.
        data: Attributes for filters, without their ``data-``.
        attributes: Others.

    Returns:
        The head.
    """
    return element(
        "th", title, scope="col", data_column=column, data_first=first, **filter_data(data), **attributes
    )


def method_heading() -> Markup:
    """Return the head of the column of methods."""
    return heading("method", 0, first="ascending", class_="name")


def method_name(name: str) -> Markup:
    """Return the head of the row of a method."""
    return element("th", name, scope="row", class_="name")


def number_cell(
    shown: object, value: float | None, *, data: Data | None = None, **attributes: Attribute
) -> Markup:
    """Return a cell that is sorted by a number, or comes last if it has none."""
    return element("td", shown, data_value=value, **filter_data(data), **attributes)


def scrolling(table: Markup, label: str) -> Markup:
    """Return a table in a box of its own that scrolls where the page is narrow."""
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def whole(caption: object, head: Iterable[Markup], body: Iterable[Markup], **attributes: Attribute) -> Markup:
    """Return a table.

    Args:
        caption: What it shows.
        head: Its rows of heads.
        body: Its other rows.
        attributes: Of the table.

    Returns:
        The table.
    """
    return element(
        "table",
        element("caption", element("span", caption)),
        element("thead", *head),
        element("tbody", *body),
        **attributes,
    )


def filter_data(data: Data | None) -> dict[str, str]:
    """Return attributes for filters."""
    return {f"data_{name}": value for name, value in (data or {}).items()}
