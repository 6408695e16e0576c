"""Results in the order and the groups in which a page shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from findtta.bench.complete import what_is_missing
from findtta.bench.result import Result
from findtta.bench.tables import VALUES, Cell, Table, compare
from findtta.bench.wording import settings

#: What the name of a setting says if it takes more than data and model to tell settings apart.
_TELLING = ("domains", "images", "batch size", "reset", "device", "weights", "identity")


@dataclass(frozen=True)
class Run:
    """A result with what it is called.

    Attributes:
        result: What the run gave.
        words: Its settings in words.
    """

    result: Result
    words: Mapping[str, str]

    @property
    def seed(self) -> object:
        """The seed, as planned or else as asked for."""
        return self.result.config.get("seed", self.result.spec.get("seed"))

    @property
    def started(self) -> float:
        """When the run began, in seconds since 1970, or 0."""
        started = self.result.environment.get("started")
        return float(started) if isinstance(started, int | float) else 0.0


@dataclass(frozen=True)
class Setting:
    """Runs that can be compared: they differ in nothing but method, stream and seed.

    Attributes:
        id: For links.
        title: What distinguishes it from the other settings of the page.
        tables: Methods against streams, by the name of the value.
        runs: For each method and stream, the runs that are done, one per seed.
    """

    id: str
    title: str
    tables: Mapping[str, Table]
    runs: Mapping[tuple[str, str], Sequence[Result]]

    @property
    def shared(self) -> Mapping[str, str]:
        """What all runs have in common, in words."""
        return self.tables["accuracy"].shared

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in the order of the rows."""
        return tuple(row[0] for row in self.tables["accuracy"].rows)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams, in the order of the columns."""
        return self.tables["accuracy"].columns

    def cell(self, value: str, method: str, stream: str) -> Cell | None:
        """Return what a method gave on a stream."""
        table = self.tables[value]
        return table.cells[self.methods.index(method)][self.streams.index(stream)]


@dataclass(frozen=True)
class Collection:
    """Everything that a page shows.

    Attributes:
        settings: Runs that can be compared, together.
        runs: All runs that can be used, in the order in which they began.
        left_out: Digests of results that cannot be used, with the reasons.
    """

    settings: Sequence[Setting]
    runs: Sequence[Run]
    left_out: Sequence[tuple[str, str]]

    @property
    def failed(self) -> list[Run]:
        """The runs that failed."""
        return [run for run in self.runs if run.result.status == "failed"]

    @property
    def methods(self) -> list[str]:
        """The methods of all settings."""
        return list(dict.fromkeys(method for setting in self.settings for method in setting.methods))

    @property
    def streams(self) -> list[str]:
        """The streams of all settings."""
        return list(dict.fromkeys(stream for setting in self.settings for stream in setting.streams))

    def words(self, field: str) -> list[str]:
        """Return what the runs are called in a field; the names in tables first, in their order."""
        placed = {"method": self.methods, "stream": self.streams}.get(
            field, [setting.shared.get(field, "") for setting in self.settings]
        )
        others = sorted({run.words[field] for run in self.runs if field in run.words})
        return [word for word in dict.fromkeys([*placed, *others]) if word]


def collect(results: Iterable[Result]) -> Collection:
    """Put results into the order and the groups of a page; the order in which they come does not matter."""
    usable, left_out = [], []
    for result in sorted(results, key=lambda result: result.digest):
        missing = what_is_missing(result)
        if missing:
            left_out.append((result.digest, missing))
        else:
            usable.append(result)
    runs = [Run(result, words) for result, words in zip(usable, settings(usable), strict=True)]
    runs.sort(key=lambda run: (run.started, run.result.digest))
    return Collection(_settings(runs), runs, left_out)


def _settings(runs: Sequence[Run]) -> list[Setting]:
    by_value = {value: compare([run.result for run in runs], value=value) for value in VALUES}
    by_digest = {run.result.digest: run.result for run in runs}
    titles = _titles([table.shared for table in by_value["accuracy"]])
    return [
        Setting(
            id=f"setting-{number}",
            title=titles[number - 1],
            tables=dict(zip(VALUES, tables, strict=True)),
            runs=_behind(tables[0], by_digest),
        )
        for number, tables in enumerate(zip(*by_value.values(), strict=True), start=1)
    ]


def _behind(table: Table, by_digest: Mapping[str, Result]) -> dict[tuple[str, str], Sequence[Result]]:
    """Return the runs behind the cells of a table."""
    return {
        (row[0], stream): [by_digest[digest] for digest in cell.digests.values()] if cell else []
        for row, cells in zip(table.rows, table.cells, strict=True)
        for stream, cell in zip(table.columns, cells, strict=True)
    }


def _titles(shared: Sequence[Mapping[str, str]]) -> list[str]:
    """Name settings by data and model, and by as much else as tells them apart."""
    titles = [f"{words.get('data', '?')}, {words.get('model', '?')}" for words in shared]
    for field in _TELLING:
        by_title: dict[str, set[str]] = defaultdict(set)
        for title, words in zip(titles, shared, strict=True):
            by_title[title].add(words.get(field, ""))
        titles = [
            f"{title}, {_phrase(field, words[field])}" if len(by_title[title]) > 1 and words.get(field) else title
            for title, words in zip(titles, shared, strict=True)
        ]
    return titles


def _phrase(field: str, word: str) -> str:
    return {"domains": word, "images": f"{word} images", "reset": f"reset {word}", "device": f"on {word}"}.get(
        field, f"{field} {word}"
    )
