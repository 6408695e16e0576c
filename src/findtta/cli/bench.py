"""``findtta bench``: evaluate a grid of methods, streams, datasets, models and seeds; it can be interrupted."""

import argparse

from findtta._progress import progress_bar
from findtta.bench.comparison import compare
from findtta.bench.execute import Schedule, schedule
from findtta.bench.executors import Execution, Executor, Task
from findtta.bench.grid import AXES, Axes, Grid, expand, find, presets
from findtta.bench.plan import ALL, IMAGES, SETTINGS, Planner, RunSpec
from findtta.bench.result import Result
from findtta.bench.store import Store
from findtta.cli.flags import add_flags, given
from findtta.cli.main import INTERRUPTED
from findtta.cli.output import print_text, tell
from findtta.cli.stored import add_runs
from findtta.errors import OptionError
from findtta.tables import render

#: Settings that all runs of a grid share; the others are lists.
_SHARED = tuple(name for name in SETTINGS if name not in AXES.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta bench``."""
    parser.add_argument("grid", nargs="?", metavar="GRID", help="a TOML file, or a preset (see --list)")
    parser.add_argument("--list", action="store_true", help="list the presets")
    add_flags(
        parser.add_argument_group(
            "lists, separated by commas, in place of those of GRID; an entry that GRID has keeps its settings"
        ),
        Axes,
    )
    add_flags(parser.add_argument_group("settings of all runs; they override those of GRID"), RunSpec, _SHARED)
    how = parser.add_argument_group("how to run")
    add_flags(how, Execution)
    how.add_argument("--again", action="store_true", help="run everything, also what is stored already")
    how.add_argument("--retry-failed", action="store_true", help="run again what failed the last time")
    how.add_argument("--dry-run", action="store_true", help="only print what would be run")
    add_runs(how)


def run(arguments: argparse.Namespace) -> int:
    """Run what is not stored yet; the exit code is 1 if a run of the grid failed."""
    if arguments.list:
        rows = [(name, len(expand(grid)), grid.about) for name, grid in presets().items()]
        print(render(("preset", "runs", "what it is for"), rows))
        return 0
    axes = given(arguments, Axes)
    if arguments.grid is None and not axes:
        raise OptionError("grid must be given: a TOML file, a preset (see --list), or lists such as --methods.")
    grid = Grid() if arguments.grid is None else find(arguments.grid)
    specs = expand(grid.changed(axes, given(arguments, RunSpec, _SHARED)))
    execution = Execution(**given(arguments, Execution))
    execution.check_device(*(spec.device for spec in specs))
    planner, store = Planner(tell), Store(arguments.runs)
    executor = execution.make(planner)
    if not arguments.dry_run:
        store.require_writable()
    with progress_bar(len(specs), "run", desc="planning") as bar:
        planned = schedule(
            specs,
            store,
            planner,
            again=arguments.again,
            retry_failed=arguments.retry_failed,
            unplanned="raise" if arguments.grid is None else "store",
            progress=lambda spec: bar.update(),
        )
    if arguments.dry_run:
        print(_described(planned))
        return 0
    return _execute(planned, store, executor)


def _execute(planned: Schedule, store: Store, executor: Executor) -> int:
    stored = [result for result in planned.results.values() if result.config]
    before = [result for result in stored if not result.is_done]
    for record in before:
        tell(f"failed before (--retry-failed tries again) {_outcome(record)}")
    for record in planned.unplanned:
        tell(_outcome(record))
    if any(_is_limited(task) for task in planned.todo):
        tell(f"{IMAGES:,} images per domain, drawn by the seed (--images N for another number, {ALL} for all)")
    total, computed = len(planned.todo), 0
    with progress_bar(total, "run") as bar:

        def watch(task: Task, done: float, accuracy: float) -> None:
            bar.set_postfix_str(f"{task.spec.label}: {done:.0%}")

        try:
            for computed, result in enumerate(planned.run(executor, watch), start=1):
                bar.update()
                tell(f"[{computed}/{total}] {_outcome(result)}")
        except KeyboardInterrupt:
            tell(f"stopped after {computed} of {total} runs; run the same command to continue")
            return INTERRUPTED
    results = list(planned.results.values())
    for table in compare(results) if any(result.is_done for result in results) else []:
        print_text(f"{table}\n")
    failed = sum(not result.is_done for result in results) - len(before)
    skipped = f"{len(stored)} skipped" + (f" ({len(before)} of them failed before)" if before else "")
    print(f"{len(results) - len(stored) - failed} done, {skipped}, {failed} failed; results in {store.folder}")
    return 1 if failed or before else 0


def _is_limited(task: Task) -> bool:
    """Tell whether a run takes as many images of its domains as a run takes by default."""
    data = task.config["data"]
    return bool(task.spec.images == IMAGES and data["images"] >= IMAGES * len(data["domains"]))


def _outcome(result: Result) -> str:
    label = RunSpec.from_dict(result.spec).label
    return f"{label}: accuracy {result.accuracy:.2f} %" if result.is_done else f"{label}: {result.error_text}"


def _described(planned: Schedule) -> str:
    rows = [("to do", task.spec.label, "") for task in planned.todo]
    for record in planned.results.values():
        if record.config:
            state = "done" if record.is_done else "failed before"
            rows.append((state, RunSpec.from_dict(record.spec).label, record.digest))
    rows += [("cannot be planned", _outcome(record), "") for record in planned.unplanned]
    return render(("state", "run", "result"), rows)
