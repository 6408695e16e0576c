"""Run the tables and figures of the paper again, and write them with the paper's numbers beside ours."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from findtta.bench.executors import Execution, Task
from findtta.bench.plan import Planner
from findtta.bench.store import Store
from findtta.cli.flags import add_flags, given
from findtta.cli.main import INTERRUPTED
from findtta.cli.output import print_text
from findtta.data.open import SHAPES
from findtta.data.published import PUBLISHED
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError, close_matches
from findtta.models.open import NAMES as MODELS
from findtta.options import parse_assignments, split_list
from findtta.paper.gather import gather
from findtta.paper.items import DATASETS, NETWORKS, QUICK_IMAGES, Context, Item, Results, Setup, setup_from
from findtta.paper.notes import is_dataset
from findtta.paper.numbers import METHODS
from findtta.paper.registry import GROUPS, find, items
from findtta.paper.write import save, terminal
from findtta.tables import render

_IN_STEP = ("data", "stands_for", "model", "weights", "normalization", "network")
_NONE = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta paper``."""
    parser.add_argument(
        "item",
        nargs="*",
        metavar="ITEM",
        help=f"such as table1, main-resnet50, or {', '.join(GROUPS)} (see --list)",
    )
    parser.add_argument("--list", action="store_true", help="list the items")
    parser.add_argument(
        "--quick", action="store_true", help=f"a rough look: one seed, {QUICK_IMAGES} images per domain"
    )
    at_hand = parser.add_argument_group(
        "what is at hand (default: drawn shapes and the networks that come with the package)",
        f"may be repeated in step, once for every dataset; {_NONE} means none",
    )
    at_hand.add_argument("--data", action="append", metavar="NAME|PATH", help="a dataset")
    at_hand.add_argument(
        "--as",
        action="append",
        dest="stands_for",
        metavar="NAME",
        help=f"the dataset of the paper that it stands for: {', '.join(DATASETS)} (default: by its name)",
    )
    at_hand.add_argument("--model", action="append", metavar="NAME", help=MODELS)
    at_hand.add_argument("--weights", action="append", metavar="FILE", help="weights of an architecture")
    at_hand.add_argument(
        "--normalization", action="append", metavar="NAME", help="of the input, if the weights have no card"
    )
    at_hand.add_argument(
        "--network",
        action="append",
        metavar="NAME",
        help=f"it stands for: {', '.join(NETWORKS)} (default: by its name)",
    )
    at_hand.add_argument("--data-option", action="append", metavar="NAME=VALUE", help="an option of all datasets")
    at_hand.add_argument(
        "--setup",
        type=Path,
        metavar="FILE",
        help="a TOML file with the same as tables [[setup]], in place of all these",
    )
    how_much = parser.add_argument_group("how much to run")
    how_much.add_argument("--images", type=int, metavar="N", help="at most so many images per domain")
    how_much.add_argument("--seeds", metavar="N,...", help="seeds (default: 0,1,2; the paper has three)")
    how_much.add_argument("--methods", metavar="NAME,...", help="methods to compare (default: those of the paper)")
    how_much.add_argument("--batch-size", type=int, metavar="N", help="samples per batch (default: 64)")
    how = parser.add_argument_group("how to run")
    how.add_argument("--device", default="cpu", help="where models run (default: cpu)")
    add_flags(how, Execution)
    how.add_argument("--retry-failed", action="store_true", help="run again what failed the last time")
    how.add_argument("--dry-run", action="store_true", help="only say how much would be run")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--runs",
        type=Path,
        metavar="DIR",
        help="folder of the results (default: $FINDTTA_RUNS, or findtta-runs here)",
    )
    where.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write (default: 'paper' in the folder of the results)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the items; the exit code is 1 if something in them failed."""
    if arguments.list:
        print_text(_listed(items()))
        return 0
    if not arguments.item:
        raise OptionError(f"item must be given: an item (see --list), or one of {', '.join(GROUPS)}.")
    chosen = list({item.id: item for name in arguments.item for item in find(name)}.values())
    context = _context(arguments)
    if arguments.dry_run:
        print_text(_planned(chosen, context))
        return 0
    planner, store = Planner(), Store(arguments.runs)
    _check_setups(arguments, context, planner)
    executor = Execution(**given(arguments, Execution)).make(planner)
    store.require_writable()
    out = arguments.out or store.folder / "paper"
    everything = Results()
    try:
        for item in chosen:
            with _bar(item) as (progress, watch):
                everything = everything.also(
                    gather(
                        [item],
                        context,
                        store,
                        executor=executor,
                        planner=planner,
                        retry_failed=arguments.retry_failed,
                        progress=progress,
                        watch=watch,
                    )
                )
            document = item.document(context, everything)
            files = save(document, out)
            print_text(f"{terminal(document)}\n\nwritten: {', '.join(str(file) for file in files)}\n")
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return INTERRUPTED
    failed = sum(record.status == "failed" for record in everything.records)
    if failed:
        print(
            f"{failed} of {len(everything.records)} runs and measurements failed; see the notes", file=sys.stderr
        )
    return 1 if failed else 0


def _listed(known: Sequence[Item]) -> str:
    rows = [(item.id, ", ".join(item.aliases) or "-", item.kind, item.title) for item in known]
    groups = [f"{name}: {len(members)} items" for name, members in GROUPS.items()]
    return f"{render(('item', 'in the paper', 'kind', 'what it shows'), rows)}\n\n{'; '.join(groups)}"


def _planned(chosen: Sequence[Item], context: Context) -> str:
    rows = [(item.id, len(item.specs(context)), len(item.probes(context))) for item in chosen]
    return render(("item", "runs", "measurements"), rows)


def _context(arguments: argparse.Namespace) -> Context:
    chosen: dict[str, Any] = {"device": arguments.device, "command": _command(arguments)}
    for name in ("images", "batch_size"):
        if getattr(arguments, name) is not None:
            chosen[name] = getattr(arguments, name)
    if arguments.seeds is not None:
        chosen["seeds"] = tuple(_seed(text) for text in split_list(arguments.seeds))
    if arguments.methods is not None:
        chosen["methods"] = tuple(_method(name) for name in split_list(arguments.methods))
    setups = _setups(arguments)
    if setups:
        chosen["setups"] = setups
    return Context.quickly(**chosen) if arguments.quick else Context(**chosen)


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"--seeds must be whole numbers such as 0,1,2, got {text!r}.") from None


def _method(name: str) -> str:
    if name not in METHODS:
        raise UnknownNameError(
            f"--methods must be of those that the paper compares ({', '.join(METHODS)}), got {name!r}."
            f"{close_matches(name, METHODS)}"
        )
    return name


def _setups(arguments: argparse.Namespace) -> tuple[Setup, ...]:
    """Return the setups of a file or of flags, or none if nothing is said."""
    by_flags = [name for name in (*_IN_STEP, "data_option") if getattr(arguments, name) is not None]
    if arguments.setup is not None:
        if by_flags:
            flag = "as" if by_flags[0] == "stands_for" else by_flags[0].replace("_", "-")
            raise OptionError(f"--setup has all that is at hand, so leave --{flag} out.")
        return _read_setups(arguments.setup)
    if not by_flags:
        return ()
    given = {name: getattr(arguments, name) or [] for name in _IN_STEP}
    count = max(1, *map(len, given.values()))
    options = parse_assignments("--data-option", arguments.data_option or [])
    setups = []
    for index in range(count):
        fields = {name: _in_step(name, values, index, count) for name, values in given.items()}
        fields = {name: value for name, value in fields.items() if value not in (None, _NONE)}
        setups.append(_setup({**fields, "data_options": options}))
    return tuple(setups)


def _in_step(name: str, values: Sequence[str], index: int, count: int) -> str | None:
    if len(values) not in (0, 1, count):
        flag = "as" if name == "stands_for" else name
        raise OptionError(
            f"--{flag} must be given once, or as often as the others, {count} times, got given {len(values)} "
            "times."
        )
    return (values[0] if len(values) == 1 else values[index]) if values else None


def _setup(fields: dict[str, Any]) -> Setup:
    """Return a setup; what it stands for is told by the name of the data if it is not said."""
    setup = setup_from(fields)
    if setup.data != SHAPES:
        if "stands_for" not in fields and "as" not in fields:
            guesses = [name for name in DATASETS if is_dataset(setup.data, name)]
            if len(guesses) != 1:
                raise OptionError(
                    f"--as must say which dataset of the paper {setup.data!r} stands for: {', '.join(DATASETS)}."
                )
            setup = dataclasses.replace(setup, stands_for=guesses[0])
        if "model" not in fields:
            raise OptionError(f"--model must be given with --data {setup.data}: {MODELS}.")
    return setup


def _read_setups(path: Path) -> tuple[Setup, ...]:
    """Read a file of setups; paths in it are relative to it."""
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"--setup: {str(path)!r} cannot be read ({error.strerror or error}).") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--setup: {str(path)!r} is no valid TOML: {error}.") from error
    tables = content.get("setup")
    if (
        set(content) != {"setup"}
        or not isinstance(tables, list)
        or not all(isinstance(part, dict) for part in tables)
    ):
        raise InputError(f"--setup: {str(path)!r} must have tables [[setup]] and nothing else.")
    try:
        return tuple(_setup(_relative_to(path.parent, fields)) for fields in tables)
    except FindTTAError as error:
        raise type(error)(f"--setup: {str(path)!r}: {error}") from error


def _relative_to(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with paths that are relative to a folder; names stay names."""
    moved = dict(fields)
    for name in ("data", "weights"):
        if name in moved and moved[name] != SHAPES and moved[name] not in PUBLISHED:
            path = folder / Path(moved[name]).expanduser()
            moved[name] = str(path) if path.exists() or name == "weights" else moved[name]
    place, colon, function = str(moved.get("model", "")).rpartition(":")
    if place.endswith(".py"):
        moved["model"] = f"{folder / Path(place).expanduser()}{colon}{function}"
    return moved


def _check_setups(arguments: argparse.Namespace, context: Context, planner: Planner) -> None:
    """Raise at once if data or model cannot be opened that were asked for by name."""
    if _setups(arguments):
        for setup in context.setups:
            planner.plan(context.spec(setup, method="source"))


def _command(arguments: argparse.Namespace) -> str:
    """Return the command line without what does not matter for the numbers."""
    words = ["findtta", "paper", *arguments.item]
    for name in (*_IN_STEP, "data_option", "setup", "images", "seeds", "methods", "batch_size"):
        value = getattr(arguments, name)
        flag = "--as" if name == "stands_for" else f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [flag, _without_folder(str(one))]
    if arguments.device != "cpu":
        words += ["--device", arguments.device]
    return shlex.join([*words, *(["--quick"] if arguments.quick else [])])


def _without_folder(word: str) -> str:
    """Return the name of a file that was given with its whole path: the path means nothing elsewhere."""
    return Path(word).name if Path(word).is_absolute() else word


@contextlib.contextmanager
def _bar(item: Item) -> Iterator[tuple[Any, Any]]:
    with tqdm(desc=item.id, unit="step", leave=False, disable=not sys.stderr.isatty()) as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.set_postfix_str(what)

        def watch(task: Task, done: float, accuracy: float) -> None:
            bar.set_postfix_str(f"{task.spec.label}: {done:.0%}")

        yield progress, watch
