"""Every run of a page: what it was asked to be, what it gave, where it ran, and why it failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from findtta.bench.flat import FLAT_COLUMNS, flat
from findtta.report import tables
from findtta.report.collect import Collection, Run
from findtta.report.markup import Markup, element

_COLUMNS = tuple(FLAT_COLUMNS)
_MEASURED = _COLUMNS.index("samples")
_AROUND = _COLUMNS.index("started")
_SETTINGS = _COLUMNS[_COLUMNS.index("method") : _MEASURED]
_MEASURES = tuple(name for name in _COLUMNS[_MEASURED:_AROUND] if not name.startswith("failure"))
_ENVIRONMENT = _COLUMNS[_AROUND:]
_NAMED = ("method", "stream", "data", "model")


def failures(runs: Sequence[Run]) -> Markup | None:
    """Return the runs that failed, with their errors."""
    if not runs:
        return None
    rows = [
        element(
            "tr",
            element("th", _digest_link(run), scope="row", class_="name"),
            *(element("td", run.words.get(field, tables.ABSENT)) for field in _NAMED),
            element("td", tables.ABSENT if run.seed is None else run.seed),
            element("td", *_error(run), class_="error"),
            **filter_data(run, run.words.get("stream", "")),
        )
        for run in runs
    ]
    heads = [
        element("th", title, scope="col")
        for title in ("run", "method", "stream", "data", "model", "seed", "error")
    ]
    table = tables.whole("Runs that failed", [element("tr", *heads)], rows)
    return element(
        "section",
        element("h2", f"Failed runs ({len(runs)})"),
        tables.scrolling(table, "Failed runs"),
        id="failed",
        class_="card",
    )


def _error(run: Run) -> list[Markup]:
    error = run.result.error or {}
    return [
        element("strong", error.get("type", "unknown error")),
        element("pre", error.get("message", "")),
    ]


def _digest_link(run: Run) -> Markup:
    return element("a", run.result.digest[:8], href=f"#run-{run.result.digest}")


def all_runs(collection: Collection) -> Markup:
    """Return every run with its settings and its environment, folded away."""
    columns = _column_of(collection)
    entries = [_entry(run, columns.get(run.result.digest, run.words.get("stream", ""))) for run in collection.runs]
    return element(
        "section",
        element("h2", f"All runs ({len(collection.runs)})"),
        element("p", "Settings, measurements and environment of every run.", class_="note"),
        element("div", *entries, id="run-list"),
        id="runs",
        class_="card",
    )


def _column_of(collection: Collection) -> dict[str, str]:
    """Return the columns in which runs stand, by digest: what filters by stream must call them."""
    return {
        run.digest: stream
        for setting in collection.settings
        for (_, stream), runs in setting.runs.items()
        for run in runs
    }


def _entry(run: Run, stream: str) -> Markup:
    result, (row,) = run.result, flat([run.result])
    is_done = result.status == "done"
    state = f"{result.accuracy:.2f} %" if is_done else "failed"
    head = (run.words.get("method"), stream, run.words.get("data"), run.words.get("model"))
    parts = [element("span", word or tables.ABSENT) for word in head]
    return element(
        "details",
        element(
            "summary",
            element("code", result.digest[:8]),
            *parts,
            element("span", f"seed {run.seed}"),
            element("span", state, class_="state" if is_done else "state failed"),
        ),
        element(
            "div",
            *_error(run) if not is_done else (),
            _facts("Settings", ((name, row[name]) for name in _SETTINGS)),
            _facts("Measurements", [*((name, row[name]) for name in _MEASURES), *_rounds(result.per_round)]),
            _facts("Environment", _environment(row, result.environment)),
            element("p", element("code", result.digest), class_="note"),
        ),
        id=f"run-{result.digest}",
        class_="run",
        **filter_data(run, stream),
    )


def _environment(row: Mapping[str, Any], environment: Mapping[str, Any]) -> list[tuple[str, Any]]:
    known = [(name, row[name]) for name in _ENVIRONMENT]
    others = [(name, value) for name, value in sorted(environment.items()) if name not in row]
    return [*known, *others]


def _rounds(accuracies: Sequence[float]) -> list[tuple[str, Any]]:
    numbers = [value for value in accuracies if isinstance(value, int | float)]
    return [("accuracy per round", ", ".join(f"{value:.2f}" for value in numbers))] if len(numbers) > 1 else []


def _facts(title: str, facts: Iterable[tuple[str, Any]]) -> Markup | None:
    known = [(name, value) for name, value in facts if value is not None]
    if not known:
        return None
    entries = [
        element("div", element("dt", name.replace("_", " ")), element("dd", _word(value))) for name, value in known
    ]
    return element("section", element("h4", title), element("dl", *entries), class_="facts")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def filter_data(run: Run, stream: str) -> dict[str, str]:
    """Return the attributes by which filters know a run."""
    words = {"method": run.words.get("method", ""), "stream": stream}
    words |= {"data": run.words.get("data", ""), "model": run.words.get("model", "")}
    return tables.filter_data(words)
