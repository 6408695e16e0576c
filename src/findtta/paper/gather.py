"""Computing what items ask for, through a store: what is stored already is not computed again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from findtta._io import write_file
from findtta.bench import Planner
from findtta.bench.evaluate import machine_record
from findtta.bench.execute import schedule
from findtta.bench.executors import Executor, Serial, Watch, ignore
from findtta.bench.store import Store
from findtta.errors import FindTTAError
from findtta.paper.context import Context
from findtta.paper.items import Item
from findtta.paper.measure import MEASUREMENTS
from findtta.paper.results import Probe, Reading, Results, key

PROBES = "probes"  # a folder beside the results of runs

#: Called with what is computed next, in words, and how many of how many steps are done.
Progress = Callable[[str, int, int], None]


def gather(
    items: Sequence[Item],
    context: Context,
    store: Store,
    *,
    executor: Executor | None = None,
    planner: Planner | None = None,
    retry_failed: bool = False,
    progress: Progress = lambda what, done, total: None,
    watch: Watch = ignore,
) -> Results:
    """Compute what items ask for, and return all results; whatever fails becomes a record of its failure.

    What the store has is not computed again, unless it failed the last time and ``retry_failed`` is given. The
    executor computes the runs, by default one after the other in this process.
    """
    planner = planner or Planner()
    specs = list({key(spec): spec for item in items for spec in item.specs(context)}.values())
    probes = list({key(probe): probe for item in items for probe in item.probes(context)}.values())
    # What cannot be planned is not stored: the next time it may well be possible.
    plan = schedule(specs, store, planner, retry_failed=retry_failed, unplanned="return",
                    progress=lambda spec: progress("planning", 0, len(specs)))  # fmt: skip
    total = len(plan.todo) + len(probes)
    for done, result in enumerate(plan.run(executor or Serial(planner), watch), start=1):
        spec = result.spec
        progress(f"{spec['method']} on {spec['stream']} of {spec['data']}, seed {spec['seed']}", done, total)
    readings = []
    for done, probe in enumerate(probes, start=len(plan.todo)):
        progress(f"measuring {probe.kind}", done, total)
        readings.append((probe, take(probe, store, planner, retry_failed=retry_failed)))
    return Results([*plan.pairs(), *readings])


def take(probe: Probe, store: Store, planner: Planner, *, retry_failed: bool = False) -> Reading:
    """Return the reading of a probe, done or failed: the stored one, or else a new one, which is stored."""
    asked = probe.to_dict()
    try:
        plan = planner.plan(probe.spec)
    except FindTTAError as error:
        return Reading(digest=_digest(asked), status="failed", probe=asked, error=_error(error))
    digest = _digest({"kind": probe.kind, "settings": dict(probe.settings), "run": plan.digest})
    path = store.folder / PROBES / f"{digest}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):  # a damaged file is measured again
        known = Reading(**json.loads(path.read_text(encoding="utf-8")))
        if known.status == "done" or not retry_failed:
            return known
    began = time.time()
    outcome: dict[str, Any]
    try:
        value = MEASUREMENTS[probe.kind](plan, probe.settings)
        outcome = {"status": "done", "value": json.loads(json.dumps(value))}
    except Exception as error:
        outcome = {"status": "failed", "error": _error(error)}
    environment = machine_record(torch.device(plan.spec.device), began)
    reading = Reading(digest=digest, probe=asked, config=plan.config, environment=environment, **outcome)
    write_file(path, json.dumps(dataclasses.asdict(reading), indent=1, sort_keys=True).encode())
    return reading


def _error(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]
