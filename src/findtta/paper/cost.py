"""Probes of time and memory, and what they gave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.paper.document import Cell
from findtta.paper.items import Context, Probe, Reading, Results, Setup
from findtta.paper.printed import FAILED

TIMED_BATCHES, TIMED_BATCHES_QUICK = 12, 4
MEMORY_BATCHES = 3

TIMING_NOTE = (
    "Time: all in one process, in turn on the same batches after a warm-up, FIND* after its cold start; ratios "
    "are medians of ratios within a batch, seconds medians. Seconds depend on the machine, so compare the ratios."
)


def memory_note(context: Context) -> str:
    """Return what the numbers of memory are."""
    if context.device.startswith("cuda"):
        return "Memory: what torch allocated on the GPU at most, each in a process of its own."
    return (
        "Memory: the resident memory of a whole process at most, Python and torch included, each in a process of "
        "its own on the CPU; the paper's is that of a GPU, so compare what is above the others, not the totals."
    )


def times_probe(context: Context, setup: Setup, candidates: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Probe:
    """Return the measurement of the time of candidates, each a method with options; the source is always there."""
    batches = TIMED_BATCHES_QUICK if context.quick else TIMED_BATCHES
    named = {"source": ("source", {}), **candidates}
    return Probe(
        kind="findtta.paper.measure.timing:measure_times",
        spec=context.spec(setup, method="source", stream="crossmix", images=_images(context, batches)),
        settings={
            "batches": batches,
            "candidates": {
                name: {"method": method, "options": dict(options)} for name, (method, options) in named.items()
            },
        },
    )


def memory_probe(context: Context, setup: Setup, method: str, options: Mapping[str, Any]) -> Probe:
    """Return the measurement of the peak memory of a method."""
    return Probe(
        kind="findtta.paper.measure.memory:measure_memory",
        spec=context.spec(
            setup,
            method=method,
            options=dict(options),
            stream="crossmix",
            images=_images(context, MEMORY_BATCHES),
        ),
    )


def time_cell(context: Context, results: Results, probe: Probe, name: str, measure: str, over: str = "") -> Cell:
    """Return a number of a candidate, as a multiple of another candidate's if one is named."""
    reading = results.reading(probe)
    if reading is None:
        return Cell()
    found = reading.value.get("candidates", {}).get(name, {})
    base = reading.value.get("candidates", {}).get(over, {}) if over else {measure: 1.0}
    if measure not in found or measure not in base:
        return Cell(text=FAILED)
    return Cell(values={context.seeds[0]: found[measure] / base[measure]})


def memory_cell(context: Context, results: Results, probe: Probe, base: Probe | None = None) -> Cell:
    """Return the peak memory of a method in megabytes, or how much it is above another's."""
    reading, below = results.reading(probe), results.reading(base) if base else None
    if reading is None:
        return Cell()
    if reading.status == "failed" or (base is not None and (below is None or below.status == "failed")):
        return Cell(text=FAILED)
    megabytes = reading.value["megabytes"] - (below.value["megabytes"] if below else 0.0)
    return Cell(values={context.seeds[0]: megabytes})


def timing_failures(reading: Reading | None) -> list[str]:
    """Return why candidates were not measured."""
    candidates = reading.value.get("candidates", {}) if reading else {}
    return [f"Not timed: {name}. {found['error']}" for name, found in candidates.items() if "error" in found]


def _images(context: Context, batches: int) -> int:
    """Return how many images per domain give so many batches, and a little more for data with fewer domains."""
    return math.ceil(batches * context.batch_size / len(MAIN_CORRUPTIONS)) + 1
