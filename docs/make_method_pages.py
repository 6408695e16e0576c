"""Write one page per method from what its code declares, and from the results behind the leaderboard.

python docs/make_method_pages.py           write docs/methods/*.md
python docs/make_method_pages.py --check   fail if a page is not what the code says
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from findtta.bench.store import Store
from findtta.registry import BUILT_IN, MethodInfo, describe, load_method
from findtta.report import Board, boards, standing

FOLDER = Path(__file__).parent / "methods"
RESULTS = Path(__file__).parent / "results" / "leaderboard.jsonl.xz"


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


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = boards(Store(RESULTS).all())
    pages = {f"{name}.md": page(name, found) for name in BUILT_IN} | {"README.md": index()}
    stale = [name for name, text in pages.items() if not _is_written(FOLDER / name, text)]
    if check:
        print("\n".join(f"docs/methods/{name} is out of date" for name in stale) or "all pages are up to date")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name])
    print(f"{len(stale)} of {len(pages)} pages written")
    return 0


def _is_written(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
