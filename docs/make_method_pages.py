"""Write what the pages say about methods from their code, and from the results behind the leaderboard.

python docs/make_method_pages.py           write docs/methods/*.md, and the numbers in docs/which-method.md
python docs/make_method_pages.py --check   fail if a page is not what code and results say
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from findtta.bench.comparison import BASELINE as SOURCE
from findtta.bench.store import Store
from findtta.intervals import Interval
from findtta.registry import BUILT_IN, MethodInfo, describe, load_method
from findtta.report import Board, boards, standing

DOCS = Path(__file__).parent
RESULTS = DOCS / "results" / "leaderboard.jsonl.xz"
#: The page that helps to choose, and what encloses the numbers in it.
GUIDE = "which-method.md"
MARKS = ("<!-- numbers: written by docs/make_method_pages.py -->", "<!-- end of numbers -->")
#: The methods that the page recommends, or warns of.
COMPARED = ("tbn", "alpha-bn", "instance", "find", "find-soft", "find-domains")


def page(name: str, found: Sequence[Board]) -> str:
    """Return the page of one method."""
    method = load_method(name)
    info = describe(method)
    story = inspect.getdoc(sys.modules[method.__module__]) or ""
    parts = [
        f"# {name}",
        re.sub(r":\w+:`~?([^`]+)`", r"`\1`", story.replace("``", "`")),
        f"`findtta.adapt(model, {name!r})`",
        f"**When it fails.** {info.weakness}",
        *measured(name, found),
        "**Properties.** " + properties(info),
        "## Options",
        options_table(info),
    ]
    if info.presets:
        parts += ["## Presets", presets_table(info)]
    return "\n\n".join([*parts, "## Citation", info.citation]) + "\n"


def measured(name: str, found: Sequence[Board]) -> list[str]:
    """Return on which streams of the leaderboard a method is first, and on which it is below the source model."""
    lines = [f"- {board.title}: {standing(board, name)}" for board in found if name in board.methods]
    about = "**On the [leaderboard](../leaderboard.md)** (points over the source model, 95% intervals):"
    return [about, "\n".join(lines)] if lines else []


def properties(info: MethodInfo) -> str:
    """Return cost and declared properties in words."""
    return "; ".join(
        [
            f"{info.cost.forward} forward and {info.cost.backward} backward passes per batch",
            f"{'keeps state' if info.stateful else 'keeps no state'} across batches",
            "computes gradients" if info.needs_grad else "no gradients",
            f"a prediction {'depends' if info.batch_dependent else 'does not depend'} on the rest of its batch",
            f"{'can' if info.exportable else 'cannot'} be exported as a fixed graph",
        ]
    )


def options_table(info: MethodInfo) -> str:
    """Return the options as a Markdown table."""
    if not info.options:
        return "None."
    rows = [f"| `{name}` | `{default!r}` | {meaning} |" for name, (default, meaning) in info.options.items()]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def presets_table(info: MethodInfo) -> str:
    """Return the values that the presets give to options left at None."""
    names = list(next(iter(info.presets.values())))
    header = ["| option | " + " | ".join(info.presets) + " |", "|---" * (len(info.presets) + 1) + "|"]
    rows = [
        f"| `{name}` | " + " | ".join(f"`{_short(values[name])}`" for values in info.presets.values()) + " |"
        for name in names
    ]
    return "\n".join(header + rows)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def index() -> str:
    """Return the page that lists all methods."""
    rows = [f"| [{name}]({name}.md) | {describe(load_method(name)).summary} |" for name in BUILT_IN]
    about = "All of them on all streams: the [leaderboard](../leaderboard.md)."
    return "\n".join(["# Methods", "", about, "", "| method | what it does |", "|---|---|", *rows]) + "\n"


def guide(text: str, found: Sequence[Board]) -> str:
    """Return the page that helps to choose, with the numbers of these boards."""
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return "\n\n".join([before + MARKS[0], *numbers(found), MARKS[1] + after])


def numbers(found: Sequence[Board]) -> list[str]:
    """Return what is said about the boards, and the table: gains by stream, over all networks."""
    networks = "; ".join(board.title for board in found)
    sizes = sorted({board.batch_size for board in found})
    about = (
        f"Networks: {networks}. Batch size {_range(sizes, 'd')}. Points over the source model on the same "
        "samples, from the lowest network to the highest; a dash where it was not run. Last, the method with the "
        "highest accuracy in each network, of all on the [leaderboard](leaderboard.md), which has intervals, "
        "numbers of samples and seeds."
    )
    streams = list(dict.fromkeys(stream for board in found for stream in board.streams))
    header = ("stream", "domains, classes per batch", "`source`", *(f"`{name}`" for name in COMPARED), "highest")
    rows = [_row(stream, [board for board in found if stream in board.streams]) for stream in streams]
    lines = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    return [about, "\n".join(lines)]


def _row(stream: str, found: Sequence[Board]) -> list[str]:
    """Return the cells of a stream, from the boards that have it."""
    about = [board.runs_on(stream)[0].config["stream"] for board in found]
    composition = (_range([each[f"{what}_per_batch"] for each in about]) for what in ("domains", "classes"))
    gains = ([board.gain(name, stream) for board in found] for name in COMPARED)
    highest = dict.fromkeys(board.leaders(stream)[0] for board in found)
    return [
        f"`{stream}`",
        ", ".join(composition),
        _means([board.accuracy(SOURCE, stream) for board in found]),
        *(_means(each, "+.1f") for each in gains),
        ", ".join(f"`{name}`" for name in highest),
    ]


def _means(intervals: Sequence[Interval | None], form: str = ".1f") -> str:
    return _range([each.mean for each in intervals if each is not None], form)


def _range(values: Sequence[float], form: str = ".1f") -> str:
    """Return the lowest and the highest value in words, once if they read alike."""
    ends = dict.fromkeys(format(end, form) for end in (min(values), max(values))) if values else ["-"]
    return " to ".join(ends)


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = boards(Store(RESULTS).all())
    pages = {f"methods/{name}.md": page(name, found) for name in BUILT_IN} | {"methods/README.md": index()}
    pages[GUIDE] = guide((DOCS / GUIDE).read_text(), found)
    stale = [name for name, text in pages.items() if not _is_written(DOCS / name, text)]
    if check:
        print("\n".join(f"docs/{name} is out of date" for name in stale) or "all pages are up to date")
        return 1 if stale else 0
    (DOCS / "methods").mkdir(exist_ok=True)
    for name in stale:
        (DOCS / name).write_text(pages[name])
    print(f"{len(stale)} of {len(pages)} pages written")
    return 0


def _is_written(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
