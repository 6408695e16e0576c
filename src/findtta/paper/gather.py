"""Computing what items ask for, through a store: what is there already is not computed again."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

import findtta
from findtta._io import write_file
from findtta.bench.execute import schedule
from findtta.bench.executors import Executor, Serial, Watch, ignore
from findtta.bench.plan import Plan, Planner
from findtta.bench.spec import RunSpec
from findtta.bench.store import Store
from findtta.errors import FindTTAError
from findtta.paper.items import Context, Item, Probe, Reading, Results

_Asked = TypeVar("_Asked", RunSpec, Probe)

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
    """Compute what items ask for; whatever fails becomes the record of its failure.

    Args:
        items: The items.
        context: What they are made with.
        store: Where results are kept, and looked for first.
        executor: Where runs are computed; by default one after the other in this process.
        planner: What to plan with.
        retry_failed: Whether to compute again what failed the last time.
        progress: Told what is done.
        watch: Told how far a run is.

    Returns:
        All results.
    """
    planner = planner or Planner()
    specs = _distinct([spec for item in items for spec in item.specs(context)])
    probes = _distinct([probe for item in items for probe in item.probes(context)])
    planned = schedule(
        specs,
        store,
        planner,
        retry_failed=retry_failed,
        unplanned="return",  # not stored: the next time it may well be possible
        progress=lambda spec: progress("planning", 0, len(specs)),
    )
    total = len(planned.todo) + len(probes)
    done = 0
    for done, result in enumerate(planned.run(executor or Serial(planner), watch), start=1):
        progress(RunSpec.from_dict(result.spec).label, done, total)
    readings = []
    for number, probe in enumerate(probes):
        progress(probe.kind.rpartition(":")[2], done + number, total)
        readings.append((probe, take(probe, store, planner, retry_failed=retry_failed)))
    return Results(planned.pairs(), readings)


def take(probe: Probe, store: Store, planner: Planner, *, retry_failed: bool = False) -> Reading:
    """Return the reading of a probe: the stored one, or else a new one, which is stored.

    Args:
        probe: The measurement.
        store: Where readings are kept, in a folder of their own beside the results of runs.
        planner: What to plan with.
        retry_failed: Whether to measure again what failed the last time.

    Returns:
        The reading, done or failed.
    """
    try:
        plan = planner.plan(probe.spec)
    except FindTTAError as error:
        return Reading(
            digest=_digest(probe.to_dict()), status="failed", probe=probe.to_dict(), error=_error(error)
        )
    digest = _digest({"kind": probe.kind, "settings": dict(probe.settings), "run": plan.digest})
    path = store.folder / PROBES / f"{digest}.json"
    known = _read(path)
    if known is not None and (known.status == "done" or not retry_failed):
        return known
    reading = _take(probe, plan, digest)
    write_file(path, json.dumps(dataclasses.asdict(reading), indent=1, sort_keys=True).encode())
    return reading


def _take(probe: Probe, plan: Plan, digest: str) -> Reading:
    began = time.time()
    fields: dict[str, Any] = {"digest": digest, "probe": probe.to_dict(), "config": plan.config}
    module, _, name = probe.kind.partition(":")
    measure = getattr(importlib.import_module(module), name)
    try:
        value = json.loads(json.dumps(measure(plan, probe.settings)))
    except Exception as error:
        return Reading(**fields, status="failed", error=_error(error), environment=_environment(began))
    return Reading(**fields, status="done", value=value, environment=_environment(began))


def _read(path: Path) -> Reading | None:
    try:
        return Reading(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return None  # of no use: measure again


def _environment(began: float) -> dict[str, Any]:
    return {
        "findtta": findtta.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "started": began,
        "seconds": time.time() - began,
    }


def _error(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


def _distinct(asked: Sequence[_Asked]) -> list[_Asked]:
    return list({json.dumps(one.to_dict(), sort_keys=True): one for one in asked}.values())
