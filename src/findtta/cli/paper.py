"""``findtta paper``: run tables and figures of the paper again, with its numbers beside ours."""

import argparse
import contextlib
import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from findtta._progress import progress_bar
from findtta.bench.executors import Execution, Task
from findtta.bench.plan import Planner, RunSpec
from findtta.bench.store import Store
from findtta.cli.flags import add_flags, given
from findtta.cli.main import INTERRUPTED
from findtta.cli.output import print_text, tell
from findtta.cli.stored import add_runs
from findtta.errors import OptionError
from findtta.paper.context import NONE, Context, Setup, make_setup, read_setups
from findtta.paper.items import Item, all_items, find, groups
from findtta.paper.results_page import RESULTS, write_page
from findtta.paper.study import Results, gather, stored
from findtta.tables import render

#: The flags that decide the numbers, by the name of their argument.
_FLAGS = {"setup": "--setup"} | {
    field.name: f"--{field.metadata.get('flag', field.name).replace('_', '-')}"
    for field in (*dataclasses.fields(Setup), *dataclasses.fields(Context))
    if "meaning" in field.metadata
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta paper``."""
    parser.add_argument(
        "item",
        nargs="*",
        metavar="ITEM",
        help=f"such as table1, main-resnet50, or {', '.join(groups())} (see --list)",
    )
    parser.add_argument("--list", action="store_true", help="list the items")
    setups = parser.add_argument_group(
        "datasets and models (default: generated shapes and the models that come with the package)",
        f"repeat the flags in the same order for several datasets; {NONE} leaves one out",
    )
    add_flags(setups, Setup)
    setups.add_argument(
        "--setup", type=Path, metavar="FILE", help="TOML file with the same as tables [[setup]], instead of flags"
    )
    add_flags(parser.add_argument_group("what to run"), Context)
    how = parser.add_argument_group("how to run")
    add_flags(how, Execution)
    how.add_argument("--retry-failed", action="store_true", help="run again what failed the last time")
    how.add_argument(
        "--stored", action="store_true", help="compute nothing: use what --runs has, whichever version computed it"
    )
    how.add_argument("--dry-run", action="store_true", help="only print how many runs there are")
    add_runs(how)
    how.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder to write to (default: 'paper' in that of --runs)"
    )
    how.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write all items into one Markdown page that begins with what holds and what does not; its figures "
        "go to --output",
    )
    how.add_argument("--title", default=RESULTS, help="heading of that page")
    how.add_argument(
        "--note", default="", metavar="TEXT", help="what else a reader of that page must know, in Markdown"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the items; the exit code is 1 if something in them failed."""
    if arguments.list:
        print_text(_listed())
        return 0
    if not arguments.item:
        raise OptionError(f"item must be given: an item (see --list), or one of {', '.join(groups())}.")
    chosen = list({item.id: item for name in arguments.item for item in find(name)}.values())
    setups = _setups(arguments)
    settings = {**given(arguments, Context), "command": _command(arguments)}
    settings |= {"setups": setups} if setups else {}
    context = Context.quickly(**settings) if arguments.quick else Context(**settings)
    if arguments.dry_run:
        rows = []
        for item in chosen:
            asked = item.asked(context)
            runs = sum(isinstance(one, RunSpec) for one in asked)
            rows.append((item.id, runs, len(asked) - runs))
        print_text(render(("item", "runs", "measurements"), rows))
        return 0
    execution = Execution(**given(arguments, Execution))
    execution.check_device(context.device)
    planner, store = Planner(tell), Store(arguments.runs)
    everything = stored(store) if arguments.stored else Results()
    if not arguments.stored:
        for setup in setups:  # raise at once if data or model cannot be opened
            planner.plan(context.spec(setup, method="source"))
        store.require_writable()
    executor = execution.make(planner)
    output = arguments.output or store.folder / "paper"
    documents = []
    try:
        for item in chosen:
            if not arguments.stored:
                with _bar(item) as callbacks:
                    more = gather(
                        item.asked(context),
                        store,
                        executor=executor,
                        planner=planner,
                        retry_failed=arguments.retry_failed,
                        **callbacks,
                    )
                everything = everything.also(more)
            if arguments.write is None:
                document = item.document(context, everything)
                files = document.save(output)
                print_text(f"{document.text()}\n\nwritten: {', '.join(map(str, files))}\n")
                continue
            document = item.document(dataclasses.replace(context, command=""), everything)  # the page has it once
            documents += [document] if document.has_results else []
    except KeyboardInterrupt:
        tell("stopped; run the same command to continue")
        return INTERRUPTED
    if arguments.write is not None:
        if not documents:
            raise OptionError(f"--write: {str(store.folder)!r} has no results of these items with these settings.")
        said = {"title": arguments.title, "note": arguments.note}
        files = write_page(arguments.write, output, chosen, documents, context, everything, **said)
        print_text(f"written: {', '.join(map(str, files))}")
    failed = sum(record.status == "failed" for record in everything.records)
    if failed:
        tell(f"{failed} of {len(everything.records)} runs and measurements failed; see the notes")
    return 1 if failed else 0


def _listed() -> str:
    rows = [(item.id, item.alias or "-", item.kind, item.title) for item in all_items().values()]
    counts = [f"{name}: {len(members)} items" for name, members in groups().items()]
    return f"{render(('item', 'in the paper', 'kind', 'what it shows'), rows)}\n\n{'; '.join(counts)}"


def _setups(arguments: argparse.Namespace) -> tuple[Setup, ...]:
    """Return the setups of a file or of flags, or none if neither is given."""
    flags = given(arguments, Setup)
    if arguments.setup is not None:
        if flags:
            flag = _FLAGS[next(iter(flags))]
            raise OptionError(f"--setup has all datasets and models, so {flag} must not be given.")
        return read_setups(arguments.setup)
    if not flags:
        return ()
    options = flags.pop("data_options", {})
    count = max(map(len, flags.values()), default=1)
    for name, values in flags.items():
        if len(values) not in (1, count):
            raise OptionError(f"{_FLAGS[name]} must be given once or {count} times, got {len(values)} times.")
    setups = []
    for index in range(count):
        fields = {name: values[index % len(values)] for name, values in flags.items()}
        fields = {name: value for name, value in fields.items() if value != NONE}
        setups.append(make_setup({**fields, "data_options": options}))
    return tuple(setups)


def _command(arguments: argparse.Namespace) -> str:
    """Return the command line without what does not matter for the numbers; of absolute paths only the name."""
    words = ["findtta", "paper", *arguments.item]
    for name, flag in _FLAGS.items():
        value = getattr(arguments, name)
        if value is True:
            words.append(flag)
        elif value:
            for one in value if isinstance(value, list) else [value]:
                words += [flag, Path(one).name if Path(str(one)).is_absolute() else str(one)]
    if arguments.write is not None:  # the command that makes the page again
        words += ["--stored"] if arguments.stored else []
        title = None if arguments.title == RESULTS else arguments.title
        said = {"--title": title, "--note": arguments.note or None}
        places = {"--runs": arguments.runs, "-o": arguments.output, "--write": arguments.write}
        for flag, value in {**said, **places}.items():
            words += [] if value is None else [flag, str(value)]
    return shlex.join(words)


@contextlib.contextmanager
def _bar(item: Item) -> Iterator[dict[str, Any]]:
    """Show a progress bar, and yield the callbacks that move it."""
    with progress_bar(None, "step", desc=item.id) as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.set_postfix_str(what)

        def watch(task: Task, done: float, accuracy: float) -> None:
            bar.set_postfix_str(f"{task.spec.label}: {done:.0%}")

        yield {"progress": progress, "watch": watch}
