"""Putting a page together."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import os
from collections.abc import Iterable
from pathlib import Path
from string import Template

import findtta
from findtta._io import atomic_write
from findtta.bench.result import Result
from findtta.bench.wording import AXES
from findtta.errors import InputError, OptionError
from findtta.report import blocks
from findtta.report.against_paper import require_dataset
from findtta.report.collect import Collection, Setting, collect
from findtta.report.leaderboard import against_paper, leaderboard
from findtta.report.look import looks
from findtta.report.markup import Markup, element, text
from findtta.report.runs import all_runs, failures

TITLE = "Test-time adaptation results"
FILTERS = ("method", "stream", "data", "model")

_OPEN_SETTINGS = 2  # with more, a page would be too long to see what there is


def write(
    results: Iterable[Result],
    path: str | os.PathLike[str],
    *,
    title: str = TITLE,
    paper: str | None = None,
) -> Path:
    """Write results as one page of HTML that needs nothing else.

    Args:
        results: What runs gave, done or failed.
        path: The file to write; it is there as a whole or not at all.
        title: The heading of the page.
        paper: The paper's data (``"cifar10-c"``, ``"cifar100-c"`` or ``"imagenet-c"``) whose numbers to show
            beside runs on data that the paper does not have.

    Returns:
        The path of the file.

    Raises:
        InputError: If there is no result.
        OptionError: If the file cannot be written.
    """
    content = page(results, title=title, paper=paper).encode()
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise OptionError(
            f"path must be a file that can be written, but {str(target)!r} is not ({error.strerror or error})."
        ) from error
    return target


def page(results: Iterable[Result], *, title: str = TITLE, paper: str | None = None) -> str:
    """Return the page as text; the same results give the same page, in whatever order they come.

    Args:
        results: What runs gave, done or failed.
        title: As for :func:`write`.
        paper: As for :func:`write`.

    Returns:
        The page.
    """
    require_dataset(paper)
    collection = collect(results)
    if not collection.runs and not collection.left_out:
        raise InputError("results: there is none to report on; 'findtta run' and 'findtta bench' make some.")
    script = _file("report.js")
    return Template(_file("template.html")).substitute(
        title=text(title),
        style=_file("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        summary=_summary(collection),
        filters=_filters(collection),
        contents=_contents(collection),
        body=_body(collection, paper),
        version=text(findtta.__version__),
    )


def _file(name: str) -> str:
    return importlib.resources.files("findtta.report").joinpath(name).read_text(encoding="utf-8")


def _summary(collection: Collection) -> Markup:
    facts = [
        (len(collection.runs), "run", ""),
        (len(collection.words("method")), "method", ""),
        (len(collection.words("stream")), "stream", ""),
        (len(collection.settings), "setting", ""),
    ]
    if collection.failed:
        facts.append((len(collection.failed), "failed run", "failed"))
    entries = [
        element("li", element("strong", count), f" {name}{'s' * (count != 1)}", class_=class_ or None)
        for count, name, class_ in facts
    ]
    return element("ul", *entries, class_="summary")


def _filters(collection: Collection) -> Markup:
    """Return the filters; the script shows them, since they need it."""
    menus = []
    for name in FILTERS:
        boxes = [
            element("label", element("input", type="checkbox", checked=True, value=word, name=name), " ", word)
            for word in collection.words(name)
        ]
        menu = element(
            "div",
            element("div", *(element("button", word, type="button", class_=word) for word in ("all", "none"))),
            *boxes,
            class_="menu",
        )
        menus.append(
            element(
                "details",
                element("summary", name, " ", element("span", "all", class_="chosen")),
                menu,
                class_="filter",
                data_filter=name,
            )
        )
    count = element("output", f"{len(collection.runs)} runs", id="shown", aria_live="polite")
    reset = element("button", "Show all", type="button", id="show-all", hidden=True)
    return element("form", *menus, count, reset, id="filters", hidden=True, aria_label="Filters")


def _contents(collection: Collection) -> Markup:
    links = [(setting.id, setting.title) for setting in collection.settings]
    if collection.failed:
        links.append(("failed", f"Failed runs ({len(collection.failed)})"))
    if collection.left_out:
        links.append(("left-out", f"Left out ({len(collection.left_out)})"))
    links.append(("runs", f"All runs ({len(collection.runs)})"))
    entries = [element("li", element("a", name, href=f"#{target}")) for target, name in links]
    return element("nav", element("ul", *entries), class_="contents", aria_label="Contents")


def _body(collection: Collection, paper: str | None) -> Markup:
    given = blocks.Looks(looks(collection.methods), looks(collection.streams))
    is_open = len(collection.settings) <= _OPEN_SETTINGS
    parts: list[Markup | None] = [
        _setting(setting, given, paper, is_open=is_open) for setting in collection.settings
    ]
    parts += [failures(collection.failed), _left_out(collection), all_runs(collection)]
    return Markup("\n".join(part for part in parts if part))


def _setting(setting: Setting, looks: blocks.Looks, paper: str | None, *, is_open: bool) -> Markup:
    facts = [
        element("div", element("dt", field), element("dd", setting.shared[field]))
        for field in (*AXES["data"], *AXES["model"], "batch size", "reset", "device")
        if field in setting.shared
    ]
    return element(
        "section",
        element("h2", setting.title),
        element("dl", *facts, class_="shared"),
        leaderboard(setting),
        against_paper(setting, paper),
        blocks.cost(setting, looks, is_open=is_open),
        blocks.curves(setting, looks, is_open=is_open),
        blocks.domains(setting, is_open=is_open),
        blocks.layer_charts(setting, looks, is_open=is_open),
        id=setting.id,
        class_="card setting",
        data_data=setting.shared.get("data"),
        data_model=setting.shared.get("model"),
    )


def _left_out(collection: Collection) -> Markup | None:
    if not collection.left_out:
        return None
    entries = [element("li", element("code", digest), f": {why}") for digest, why in collection.left_out]
    return element(
        "section",
        element("h2", f"Left out ({len(collection.left_out)})"),
        element("p", "These results lack something that tables need.", class_="note"),
        element("ul", *entries),
        id="left-out",
        class_="card",
    )
