"""Which stored runs a command is about: arguments that choose them, and reading them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.bench.complete import what_is_missing
from findtta.bench.result import Result
from findtta.bench.store import Store
from findtta.bench.wording import settings
from findtta.errors import UnknownNameError, close_matches


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that choose among stored runs."""
    filters = parser.add_argument_group("which runs; each may be repeated")
    filters.add_argument("--method", action="append", metavar="NAME", help="such as find")
    filters.add_argument("--stream", action="append", metavar="NAME", help="such as wild or wild:delta=0.01")
    filters.add_argument("--data", action="append", metavar="NAME", help="such as shapes")
    filters.add_argument("--model", action="append", metavar="NAME", help="such as shapes-resnet26")
    filters.add_argument("--seed", action="append", type=int, metavar="N")
    filters.add_argument("--batch-size", action="append", type=int, metavar="N")
    filters.add_argument("--status", action="append", choices=("done", "failed"))


@dataclass(frozen=True)
class Entry:
    """A result and its fields in words."""

    result: Result
    words: Mapping[str, str]

    @property
    def seed(self) -> Any:
        """The seed of the run."""
        return self.result.config.get("seed", self.result.spec.get("seed"))

    @property
    def started(self) -> float:
        """When the run began."""
        started = self.result.environment.get("started")
        return float(started) if isinstance(started, int | float) else 0.0

    def names(self, argument: str) -> set[Any]:
        """Return the values with which a filter lets this run through."""
        config, spec, word = self.result.config, self.result.spec, self.words.get(argument, "")
        names = {
            "method": (word, config.get("method", spec.get("method"))),
            "stream": (word, word.partition(":")[0]),
            "data": (word, word.removesuffix(" (generated)"), spec.get("data")),
            "model": (word, spec.get("model")),
            "seed": (self.seed,),
            "batch_size": (config.get("stream", spec).get("batch_size"),),
            "status": (self.result.status,),
        }[argument]
        return {name for name in names if isinstance(name, str | int)}


def read_runs(store: Store) -> tuple[list[Entry], list[str]]:
    """Return all results in the order in which their runs began, and what is wrong with the other files."""
    results, problems = [], []
    for result in store.all():
        missing = what_is_missing(result)
        if missing:
            problems.append(f"{result.digest}.json: {missing}.")
        else:
            results.append(result)
    entries = [Entry(result, words) for result, words in zip(results, settings(results), strict=True)]
    return sorted(entries, key=lambda entry: (entry.started, entry.result.digest)), [*store.problems, *problems]


def warn(problems: Sequence[str]) -> None:
    """Say on standard error which files could not be used."""
    if problems:
        print(f"findtta: {len(problems)} of the files hold no result that can be used:", file=sys.stderr)
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)


def filtered(entries: Sequence[Entry], arguments: argparse.Namespace) -> list[Entry]:
    """Return the runs that every filter lets through; a value that no run has at all is an error."""
    chosen = list(entries)
    for argument in ("method", "stream", "data", "model", "seed", "batch_size", "status"):
        wanted = set(getattr(arguments, argument) or ())
        known = {name for entry in entries for name in entry.names(argument)}
        missing = sorted(wanted - known) if argument != "status" and entries else []
        if missing:
            option = f"--{argument.replace('_', '-')}"
            words = sorted(map(str, known))
            raise UnknownNameError(
                f"{option}: no run has {missing[0]!r}.{close_matches(str(missing[0]), words)} "
                f"There are {', '.join(words[:20])}{', ...' * (len(words) > 20)}."
            )
        if wanted:
            chosen = [entry for entry in chosen if wanted & entry.names(argument)]
    return chosen
