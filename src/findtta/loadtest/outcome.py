"""What a load test found: counting while it runs, and the result to print and to keep."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findtta._io import atomic_write
from findtta.loadtest.arrivals import Spread
from findtta.loadtest.client import Reply
from findtta.loadtest.judge import Verdict
from findtta.loadtest.memory import Memory
from findtta.loadtest.payloads import Payload
from findtta.loadtest.settings import LoadOptions
from findtta.tables import render

_EXAMPLES = 20
#: Fates and counts that a correct server never causes.
FAULTS = ("lost", "swapped", "unexpected")


class Tally:
    """Counts requests as they end."""

    def __init__(self) -> None:
        self.begun = self.finished = self.recovered = self.deferred = self.images = 0
        self.fates: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.poisons: dict[str, Counter[str]] = {}
        self.latencies: dict[bool, list[float]] = {False: [], True: []}
        self.delays: list[float] = []
        self.examples: list[str] = []

    def begin(self, delay: float) -> None:
        """Note that a request is sent for the first time, so many seconds after it was due."""
        self.begun += 1
        self.delays.append(delay)

    def tried(self, reply: Reply) -> None:
        """Note what came of one try."""
        self.statuses["broken" if reply.status is None else str(reply.status)] += 1

    def end(
        self, request_id: str, payload: Payload, verdict: Verdict, *, latency: float, broken: int, turned_away: int
    ) -> None:
        """Note what became of a request after all its tries.

        Args:
            request_id: Its identity.
            payload: What it carried.
            verdict: Its fate.
            latency: Seconds from the moment it was due to the end of its last try.
            broken: How many of its tries got no answer.
            turned_away: How many of its tries got a 503.
        """
        self.finished += 1
        self.fates[verdict.fate] += 1
        if payload.poisoned:
            self.poisons.setdefault(payload.kind, Counter())[verdict.fate] += 1
        if verdict.fate not in ("lost", "refused"):
            self.latencies[payload.poisoned].append(latency)
            self.recovered += broken > 0
            self.deferred += turned_away > 0
        if verdict.fate == "right":
            self.images += len(payload.digests)
        elif verdict.fate in FAULTS and len(self.examples) < _EXAMPLES:
            self.examples.append(f"{verdict.fate}: {request_id} ({payload.kind}): {verdict.why}")


@dataclass(frozen=True)
class Outcome:
    """What a load test found.

    Attributes:
        settings: What was asked for.
        seconds: From the start to the last answer.
        counts: Requests by what became of them. ``right``: the answer a correct server gives; ``refused``: turned
            away with 503 to the last; ``lost``: never answered; ``swapped``: given the answer of another request;
            ``unexpected``: given any other wrong answer; ``unsent``: left over when time was up; ``recovered``:
            answered, but only after a try that broke; ``deferred``: answered after a 503.
        statuses: Every try by its status; ``"broken"`` had none.
        poisons: The same fates for every kind of poisoned input.
        throughput: Right answers per second.
        images_per_second: Images classified per second.
        latency: Of answered requests from the moment they were due, retries and waiting included.
        poisoned_latency: The same for poisoned inputs.
        delay: From the moment requests were due until they were sent; large if connections were short or the
            generator was too slow.
        memory: Of the server, if it was watched.
        kills: The replicas that were killed.
        troubles: What stopped the watching or the killing before its time.
        examples: The first faults in words.
    """

    settings: Mapping[str, Any]
    seconds: float
    counts: Mapping[str, int]
    statuses: Mapping[str, int]
    poisons: Mapping[str, Mapping[str, int]]
    throughput: float
    images_per_second: float
    latency: Spread | None
    poisoned_latency: Spread | None
    delay: Spread | None
    memory: Memory | None
    kills: tuple[str, ...]
    troubles: tuple[str, ...]
    examples: tuple[str, ...]

    @classmethod
    def of(
        cls,
        options: LoadOptions,
        tally: Tally,
        seconds: float,
        memory: Memory | None = None,
        kills: tuple[str, ...] = (),
        troubles: tuple[str, ...] = (),
    ) -> Outcome:
        """Sum up a tally.

        Args:
            options: What was asked for.
            tally: What was counted.
            seconds: How long it took.
            memory: Of the server, if it was watched.
            kills: The replicas that were killed.
            troubles: What stopped the watching or the killing.

        Returns:
            The outcome; requests under way when time was up are lost.
        """
        counts = {fate: tally.fates[fate] for fate in ("right", "refused", *FAULTS)}
        counts["lost"] += tally.begun - tally.finished
        counts |= {"unsent": options.requests - tally.begun}
        counts |= {"recovered": tally.recovered, "deferred": tally.deferred}
        return cls(
            settings=options.to_dict(),
            seconds=seconds,
            counts=counts,
            statuses=dict(sorted(tally.statuses.items())),
            poisons={kind: dict(fates) for kind, fates in sorted(tally.poisons.items())},
            throughput=counts["right"] / seconds,
            images_per_second=tally.images / seconds,
            latency=Spread.of(tally.latencies[False]),
            poisoned_latency=Spread.of(tally.latencies[True]),
            delay=Spread.of(tally.delays),
            memory=memory,
            kills=kills,
            troubles=troubles,
            examples=tuple(tally.examples),
        )

    @property
    def passed(self) -> bool:
        """Whether all was tested, and nothing was lost, swapped or answered unexpectedly."""
        return not self.troubles and not any(self.counts[name] for name in (*FAULTS, "unsent"))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"passed": self.passed, **dataclasses.asdict(self)}

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        with atomic_write(path) as partial:
            partial.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    def text(self) -> str:
        """Return it for the terminal."""
        blocks = [
            render(("requests", "count"), [*self.counts.items(), ("in all", self.settings["requests"])]),
            render(("milliseconds", "count", "p50", "p95", "p99", "max"), self._times()),
            render(("status of tries", "count"), self.statuses.items()),
        ]
        if self.poisons:
            fates = ("right", "refused", *FAULTS)
            rows = [(kind, *(found.get(fate, 0) for fate in fates)) for kind, found in self.poisons.items()]
            blocks.append(render(("poisoned input", *fates), rows))
        blocks.append(
            f"{self.seconds:.1f} s, {self.throughput:.1f} right answers/s, {self.images_per_second:.1f} images/s"
        )
        if self.memory:
            blocks.append(self.memory.text())
        if self.kills:
            blocks.append(f"replicas killed: {len(self.kills)}")
        if self.troubles or self.examples:
            blocks.append("\n".join((*self.troubles, *self.examples)))
        return "\n\n".join(blocks)

    def _times(self) -> list[tuple[object, ...]]:
        named = {"good": self.latency, "poisoned": self.poisoned_latency, "due to sent": self.delay}
        # Tenths of a millisecond are the clock's own noise.
        return [
            (name, spread.count, *(f"{value:.1f}" for value in dataclasses.astuple(spread)[1:]))
            for name, spread in named.items()
            if spread
        ]
