"""Run a grid of methods, streams, datasets, models and seeds; a kill only pauses it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from findtta.bench.executors import Executor, Task
from findtta.bench.grid import AXES, Grid, expand, find, presets
from findtta.bench.plan import Planner
from findtta.bench.result import Result
from findtta.bench.schedule import Schedule, carry_out, label, schedule
from findtta.bench.spec import RunSpec
from findtta.bench.store import Store
from findtta.bench.tables import compare
from findtta.cli.execution import add_execution, chosen_executor
from findtta.cli.run import MODELS, add_settings, settings_of
from findtta.errors import OptionError
from findtta.options import split_list
from findtta.tables import render

_NUMBERS = ("batch_sizes", "seeds")
INTERRUPTED = 130  # what shells give for Ctrl-C


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta bench``."""
    parser.add_argument("grid", nargs="?", metavar="GRID", help="a TOML file, or a preset (see --list)")
    parser.add_argument("--list", action="store_true", help="list the presets")
    lists = parser.add_argument_group("lists, separated by commas; they replace those of GRID")
    lists.add_argument("--methods", metavar="NAME,...", help="such as find:alpha=0.9,tbn")
    lists.add_argument("--streams", metavar="NAME,...", help="such as crossmix,wild:delta=0.01")
    lists.add_argument("--data", metavar="NAME|PATH,...", help="datasets")
    lists.add_argument("--models", metavar="NAME,...", help=MODELS)
    lists.add_argument("--seeds", metavar="N,...", help="seeds of the streams and of the methods")
    lists.add_argument("--batch-sizes", metavar="N,...", help="samples per batch")
    add_settings(parser.add_argument_group("settings of all runs; they win over those of GRID"))
    how = parser.add_argument_group("how to run")
    add_execution(how)
    how.add_argument("--dry-run", action="store_true", help="only say what would be run")


def run(arguments: argparse.Namespace) -> int:
    """Run what is not there yet; the exit code is 1 if a run of the grid failed."""
    if arguments.list:
        print(render(("preset", "runs", "what it is for"), _preset_rows()))
        return 0
    axes = _axes(arguments)
    if arguments.grid is None and not axes:
        raise OptionError("grid must be given: a TOML file, a preset (see --list), or lists such as --methods.")
    grid = Grid() if arguments.grid is None else find(arguments.grid)
    specs = expand(grid.changed(axes, settings_of(arguments)))
    planner, store = Planner(), Store(arguments.runs)
    executor = chosen_executor(arguments, planner)
    if not arguments.dry_run:
        store.require_writable()
    plan = _schedule_with_bar(specs, store, planner, arguments)
    if arguments.dry_run:
        print(_describe(plan))
        return 0
    return _carry_out(plan, store, executor)


def _preset_rows() -> list[tuple[str, int, str]]:
    return [(name, len(expand(grid)), grid.about) for name, grid in presets().items()]


def _axes(arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the lists that were given on the command line."""
    given = {name: getattr(arguments, name) for name in AXES if getattr(arguments, name) is not None}
    return {
        name: [_whole_number(name, entry) for entry in split_list(text)] if name in _NUMBERS else split_list(text)
        for name, text in given.items()
    }


def _whole_number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(
            f"--{name.replace('_', '-')} must be whole numbers such as 0,1,2, got {text!r}."
        ) from None


def _schedule_with_bar(
    specs: Sequence[RunSpec], store: Store, planner: Planner, arguments: argparse.Namespace
) -> Schedule:
    hidden = not sys.stderr.isatty()
    with tqdm(total=len(specs), desc="planning", unit="run", disable=hidden, leave=False) as bar:
        return schedule(
            specs,
            store,
            planner,
            retry_failed=arguments.retry_failed,
            strict=arguments.grid is None,
            progress=lambda spec: bar.update(),
        )


def _carry_out(plan: Schedule, store: Store, executor: Executor) -> int:
    results: list[Result] = []
    hidden = not sys.stderr.isatty()
    total = len(plan.todo)
    with tqdm(total=total, unit="run", disable=hidden, leave=False) as bar:

        def watch(task: Task, share: float) -> None:
            bar.set_postfix_str(f"{label(task.spec)}: {share:.0%}")

        try:
            for record in plan.failed_before:
                _say(f"failed before (--retry-failed tries again) {_outcome(record)}")
            for result in carry_out(plan, store, executor, watch):
                results.append(result)
                finished = len(results) - len(plan.unplanned)
                if finished > 0:
                    bar.update()
                _say(f"[{finished}/{total}] {_outcome(result)}" if finished > 0 else _outcome(result))
        except KeyboardInterrupt:
            finished = max(0, len(results) - len(plan.unplanned))
            _say(f"stopped after {finished} of {total} runs; run the same command to continue")
            return INTERRUPTED
    everything = [*plan.done, *plan.failed_before, *results]
    for table in compare(everything) if any(result.status == "done" for result in everything) else []:
        print(f"{table}\n")
    failed = sum(result.status == "failed" for result in results)
    skipped = len(plan.done) + len(plan.failed_before)
    before = f" ({len(plan.failed_before)} of them failed before)" if plan.failed_before else ""
    print(f"{len(results) - failed} done, {skipped} skipped{before}, {failed} failed; results in {store.folder}")
    return 1 if failed or plan.failed_before else 0


def _say(message: str) -> None:
    with tqdm.external_write_mode(file=sys.stderr):  # above the bar, if there is one
        print(message, file=sys.stderr)


def _outcome(result: Result) -> str:
    name = label(RunSpec.from_dict(result.spec))
    if result.status == "done":
        return f"{name}: {result.accuracy:.2f} % right"
    error = result.error or {}
    return f"{name}: {error.get('type')}: {error.get('message')}"


def _describe(plan: Schedule) -> str:
    rows = [("to do", label(task.spec), "") for task in plan.todo]
    for state, records in (("done", plan.done), ("failed before", plan.failed_before)):
        rows += [(state, label(RunSpec.from_dict(record.spec)), record.digest) for record in records]
    rows += [("cannot be planned", _outcome(record), "") for record in plan.unplanned]
    return render(("state", "run", "result"), rows)
