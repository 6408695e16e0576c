"""The leaderboard: all methods on all streams in one page, with what each method costs."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from findtta.bench.comparison import BASELINE
from findtta.bench.naming import number_ranges, ordered
from findtta.bench.result import Result
from findtta.errors import FindTTAError, InputError
from findtta.intervals import Interval
from findtta.registry import describe, load_method
from findtta.report.boards import Board, boards
from findtta.report.template import fill
from findtta.tables import Cell, Column, Row, Table, escape_markdown

LEADERBOARD = "Leaderboard"
_DECIMALS = 1


@dataclass(frozen=True)
class Costs:
    """What methods cost, as ratios to the source model, measured by ``benchmarks/method_costs.py``."""

    about: str = ""  # what was measured, in words
    time: Mapping[str, Sequence[float]] = field(default_factory=dict)  # quartiles of the ratio of a batch's time
    memory: Mapping[str, float] = field(default_factory=dict)  # ratio of peak memory

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file that the benchmark wrote."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            measured = {name: document.get(name, {}).items() for name in ("time", "memory")}
            times = {name: [float(value) for value in quartiles] for name, quartiles in measured["time"]}
            memory = {name: float(value) for name, value in measured["memory"]}
            return cls(str(document["about"]), times, memory)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"costs must be a file that benchmarks/method_costs.py wrote, but {str(path)!r} cannot be read "
                f"({error})."
            ) from error

    def texts(self, method: str) -> list[str]:
        """Return time and memory of a method in words; what was not measured is empty."""
        time, memory = self.time.get(method), self.memory.get(method)
        return [
            "{1:.2f} [{0:.2f}, {2:.2f}]".format(*time) if time else "",
            "" if memory is None else f"{memory:.2f}",
        ]


NO_COSTS = Costs()


def overview(found: Sequence[Board], costs: Costs) -> Table:
    """Return the table with one row per method: accuracy, worst stream, clean accuracy and cost."""
    columns = [
        Column(title=f"{board.title}: {part}", decimals=_DECIMALS)
        for board in found
        for part in ("drifted", "clean")
    ]
    columns += [Column(title=title, kind="text") for title in ("least gain", "passes")]
    columns += [Column(title=title, kind="text") for title in ("time", "memory")] if costs.about else []
    columns += [Column(title=title, kind="text") for title in ("gradients", "state", "export")]
    rows = []
    for (method,) in ordered(("method",), [(name,) for board in found for name in board.methods]):
        cells = [
            _cell(board.accuracy(method, *streams)) for board in found for streams in (board.drifted, board.clean)
        ]
        run = next(run for board in found for run in board.runs_of(method))
        texts = [_least_gain(method, found)]
        texts += [f"{run.cost.get('forward_passes')} + {run.cost.get('backward_passes')}"]
        texts += costs.texts(method) if costs.about else []
        rows.append(Row((method,), (*cells, *(Cell(text=text) for text in texts + _properties(method)))))
    return Table(
        title="One row per method",
        row_titles=("method",),
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(
            "Drifted: accuracy over all samples of all streams but the clean one, ± half of the 95% interval, "
            "clustered by image. Least gain: points over the source model on the same samples, with the 95% "
            "interval, in the stream and with the network where it is least. Both are of methods that were run on "
            "all streams of a network.",
            f"Passes: forward + backward passes for a batch. {costs.about} Gradients: whether it needs them; "
            "state: whether it keeps any between batches; export: whether it can be exported as a fixed graph.",
        ),
    )


def _least_gain(method: str, found: Sequence[Board]) -> str:
    """Return the least gain over the source model, and where it is; empty without one."""
    worst = [] if method == BASELINE else [(board.title, each) for board in found if (each := board.worst(method))]
    if not worst:
        return ""
    title, (stream, gain) = min(worst, key=lambda each: each[1][1].mean)
    return f"{gain.text()} in {stream}" + f", {title}" * (len(found) > 1)


def _cell(value: Interval | None, best: bool = False) -> Cell | None:
    return None if value is None else Cell(values={0: value.mean}, margin=value.margin, best=best)


def _properties(method: str) -> list[str]:
    """Return what a method declares, in words; nothing if it is not installed here."""
    try:
        info = describe(load_method(method.partition(" (")[0]))
    except FindTTAError:
        return ["", "", ""]
    return ["yes" if value else "no" for value in (info.needs_grad, info.stateful, info.exportable)]


def accuracies(board: Board) -> Table:
    """Return the accuracy of every method on every stream of a network."""
    alone = {stream: leaders[0] for stream in board.streams if len(leaders := board.leaders(stream)) == 1}
    rows = [
        Row(
            (method,),
            tuple(_cell(board.accuracy(method, stream), alone.get(stream) == method) for stream in board.streams),
        )
        for method in board.methods
    ]
    columns = tuple(Column(title=stream, decimals=_DECIMALS) for stream in board.streams)
    return Table(
        title=board.title,
        row_titles=("method",),
        columns=columns,
        rows=tuple(rows),
        notes=(
            "Accuracy in % ± half of the 95% interval, clustered by image. A star: better than every other method "
            "on this stream, by the intervals of their differences on the same samples.",
            *_about_streams(board),
        ),
    )


def _about_streams(board: Board) -> list[str]:
    """Say what the streams are like, and what was left out."""
    texts = []
    for stream in board.streams:
        run = board.runs_on(stream)[0]
        about, images = run.config["stream"], len(set(run.scores.images.tolist()))
        size = f"{about['samples']:,} samples of {images:,} images"
        texts.append(
            f"{stream} ({size}, {about['domains_per_batch']:.1f} domains and {about['classes_per_batch']:.1f} "
            "classes per batch)"
        )
    seeds = sorted({seed for runs in board.runs.values() for seed in runs})
    which = f"{'seed' if len(seeds) == 1 else 'seeds'} {number_ranges(seeds)}"
    said = [f"Batch size {board.batch_size}, {which}. Streams: {'; '.join(texts)}."]
    if board.left_out:
        said.append(f"{board.left_out} runs are left out: they failed, are older, or saw other samples than most.")
    return said


def made_with(results: Iterable[Result]) -> str:
    """Say which versions computed the runs."""
    versions: dict[str, set[str]] = defaultdict(set)
    for result in results:
        for name in ("findtta", "torch", "numpy", "python"):
            versions[name].add(str(result.config.get("versions", {}).get(name, "unknown")))
    return "computed with " + ", ".join(
        f"{name} {' and '.join(sorted(known))}" for name, known in versions.items()
    )


def markdown(
    results: Sequence[Result],
    costs: Costs = NO_COSTS,
    *,
    title: str = LEADERBOARD,
    note: str = "",
    command: str = "",
) -> str:
    """Return the page as Markdown; the same results give the same page."""
    found, tables = _content(results, costs)
    parts = [f"# {escape_markdown(title)}", _summary(results, found), escape_markdown(note)]
    parts += [f"Made by\n\n```\n{command}\n```"] if command else []
    for table in tables:
        parts += [f"## {escape_markdown(table.title)}", table.markdown(), *map(escape_markdown, table.notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def html(
    results: Sequence[Result],
    costs: Costs = NO_COSTS,
    *,
    title: str = LEADERBOARD,
    note: str = "",
    command: str = "",
) -> str:
    """Return the page as one HTML file that needs no other; its tables can be sorted."""
    found, tables = _content(results, costs)
    return fill(
        "leaderboard.html.j2",
        "writing a leaderboard",
        title=title,
        summary=_summary(results, found),
        note=note,
        command=command,
        tables=[(table, list(zip(*(column.texts for column in table.shown()), strict=True))) for table in tables],
        value=_sorted_by,
    )


def _content(results: Sequence[Result], costs: Costs) -> tuple[list[Board], list[Table]]:
    found = boards(results)
    if not any(board.runs for board in found):
        raise InputError("results: there is no run that is done; 'findtta bench leaderboard' makes some.")
    return found, [overview(found, costs), *map(accuracies, found)]


def _summary(results: Sequence[Result], found: Sequence[Board]) -> str:
    methods = {name for board in found for name in board.methods}
    streams = {name for board in found for name in board.streams}
    runs = sum(len(seeds) for board in found for seeds in board.runs.values())
    size = f"{len(methods)} methods on {len(streams)} streams with {len(found)} network{'s' * (len(found) > 1)}"
    return f"{size}: {runs:,} runs, {made_with(results)}."


def _sorted_by(cell: Cell | None) -> float | None:
    """Return the number that a table is sorted by at a cell."""
    if cell is None:
        return None
    if cell.mean is not None:
        return cell.mean
    try:
        value = float(cell.text.partition(" ")[0])
    except ValueError:
        return None
    return value if math.isfinite(value) else None
