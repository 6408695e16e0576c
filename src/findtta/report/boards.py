"""Who is first where, and who fails where: all methods on all streams of one network.

Runs of one board agree in data, model, batch size, reset policy and device. Streams may differ in their domains
and images; on one stream all methods saw the same samples, and runs that did not are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findtta.bench.comparison import BASELINE
from findtta.bench.naming import NamedRun, named_runs, ordered, told_apart
from findtta.bench.result import Result
from findtta.data.dataset import CLEAN
from findtta.intervals import Interval, Scores, difference, interval

_NETWORK = ("data", "model", "weights", "batch size", "reset", "device")  # what runs of one board agree in
_SAMPLES = ("images", "domains", "identity", "edition")  # what runs on one stream agree in, too


@dataclass(frozen=True)
class Board:
    """The runs of one network, by method and stream, then seed."""

    title: str
    methods: Sequence[str]  # in the order of the rows
    streams: Sequence[str]  # in the order of the columns; clean ones last
    clean: Sequence[str]  # those that have clean samples only
    runs: Mapping[tuple[str, str], Mapping[int, Result]]
    left_out: int  # runs that saw other samples than most on their stream, or failed

    def scores(self, method: str, stream: str) -> dict[int, Scores]:
        """Return which samples a method had right on a stream, by seed; empty if it did not run there."""
        return {seed: run.scores for seed, run in self.runs.get((method, stream), {}).items()}

    def accuracy(self, method: str, *streams: str) -> Interval | None:
        """Return the accuracy over all samples of some streams, or None if a run is missing."""
        parts = [self.scores(method, stream) for stream in streams]
        return interval(scores for part in parts for scores in part.values()) if parts and all(parts) else None

    def gain(self, method: str, stream: str, over: str = BASELINE) -> Interval | None:
        """Return by how many points a method is above another on a stream, or None if one of them did not run."""
        return difference(self.scores(method, stream), self.scores(over, stream))

    def leaders(self, stream: str) -> list[str]:
        """Return the method with the highest accuracy on a stream, then those that cannot be told from it."""
        known = {name: found.mean for name in self.methods if (found := self.accuracy(name, stream))}
        if not known:
            return []
        top = max(known, key=known.__getitem__)
        gaps = {name: self.gain(top, stream, name) for name in known if name != top}
        near = [name for name, gap in gaps.items() if gap is None or not gap.excludes_zero]
        return [top, *sorted(near, key=known.__getitem__, reverse=True)]

    def failures(self, method: str) -> dict[str, Interval]:
        """Return the streams on which a method is below the source model, the worst first, and by how much."""
        gains = {stream: found for stream in self.streams if (found := self.gain(method, stream))}
        below = {stream: by for stream, by in gains.items() if by.mean < 0 and by.excludes_zero}
        return dict(sorted(below.items(), key=lambda each: each[1].mean))

    def worst(self, method: str) -> tuple[str, Interval] | None:
        """Return the stream on which a method gains least over the source model; None if it lacks a stream."""
        gains = {stream: self.gain(method, stream) for stream in self.streams}
        known = {stream: gain for stream, gain in gains.items() if gain is not None}
        return min(known.items(), key=lambda each: each[1].mean) if len(known) == len(gains) else None

    def runs_of(self, method: str) -> list[Result]:
        """Return all runs of a method."""
        return [run for (name, _), seeds in self.runs.items() if name == method for run in seeds.values()]

    def runs_on(self, stream: str) -> list[Result]:
        """Return all runs on a stream."""
        return [run for (_, name), seeds in self.runs.items() if name == stream for run in seeds.values()]

    @property
    def batch_size(self) -> int:
        """The number of samples in a batch."""
        return int(self.runs_on(self.streams[0])[0].config["stream"]["batch_size"])

    @property
    def drifted(self) -> list[str]:
        """The streams that are not clean."""
        return [stream for stream in self.streams if stream not in self.clean]


def boards(results: Iterable[Result]) -> list[Board]:
    """Return the boards that results make, in the order of data and model."""
    groups: dict[tuple[Any, ...], list[NamedRun]] = defaultdict(list)
    for run in named_runs(results):
        if run.result.config:
            groups[run.key(_NETWORK)].append(run)
    keys = ordered(_NETWORK, groups)
    words = [groups[key][0].words for key in keys]
    titles = told_apart(
        [f"{each['data'].removesuffix(' (generated)')}, {each['model']}" for each in words], words, _NETWORK[2:]
    )
    return [_board(title, groups[key]) for title, key in zip(titles, keys, strict=True)]


def _board(title: str, runs: Sequence[NamedRun]) -> Board:
    done = [run for run in runs if run.result.is_done]
    streams = [stream for (stream,) in ordered(("stream",), [run.key(("stream",)) for run in done])]
    kept: dict[tuple[str, str], dict[int, Result]] = defaultdict(dict)
    clean = []
    for stream in streams:
        here = [run for run in done if run.fields["stream"] == stream]
        # The samples that most methods saw, or of as many the larger number.
        seen = Counter(run.key(_SAMPLES) for run in here)
        chosen = max(seen, key=lambda key: (seen[key], key))
        for run in here:  # in the order in which they began: the newest stays
            if run.key(_SAMPLES) == chosen:
                kept[run.fields["method"], stream][run.result.seed] = run.result
        clean += [stream] * (chosen[_SAMPLES.index("domains")] == (CLEAN,))
    return Board(
        title=title,
        methods=[name for (name,) in ordered(("method",), [(method,) for method, _ in kept])],
        streams=[stream for stream in streams if stream not in clean] + clean,
        clean=clean,
        runs=kept,
        left_out=len(runs) - sum(map(len, kept.values())),
    )


def standing(board: Board, method: str) -> str:
    """Say on which streams of a network a method is first, and on which it fails."""
    leaders = {stream: board.leaders(stream) for stream in board.streams}
    first = [stream for stream, names in leaders.items() if names == [method]]
    near = [stream for stream, names in leaders.items() if method in names[:1] and len(names) > 1]
    also = [stream for stream, names in leaders.items() if method in names[1:]]
    fails = [f"`{stream}` ({by.text()})" for stream, by in board.failures(method).items()]
    said = [
        f"first in {_listed(first)}" if first else "",
        f"highest, but not told from others, in {_listed(near)}" if near else "",
        f"not told from the highest in {_listed(also)}" if also else "",
        "" if first or near or also else "first in no stream",
    ]
    if method != BASELINE:
        said.append(f"below the source model in {', '.join(fails)}" if fails else "nowhere below the source model")
    if missing := [stream for stream in board.streams if (method, stream) not in board.runs]:
        said.append(f"not run in {_listed(missing)}")
    return "; ".join(filter(None, said))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
