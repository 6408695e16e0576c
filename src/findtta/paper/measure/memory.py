"""Peak memory of a run, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from findtta.bench.executors import Processes, Task
from findtta.bench.plan import Plan


def measure_memory(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run the plan in a fresh process, and return its peak memory in megabytes.

    On a GPU it is what torch allocated there; on a CPU the resident memory of the whole process, Python and torch
    included.

    Args:
        plan: The run; a few batches are enough.
        settings: None.

    Returns:
        ``megabytes``.
    """
    (result,) = Processes(workers=1, threads=1).execute([Task.of(plan)])
    if result.status == "failed":
        error = result.error or {}
        raise RuntimeError(f"{error.get('type')}: {error.get('message')}")
    return {"megabytes": result.cost["peak_memory_mb"]}
