"""Streams: in what order and in what batches samples of several domains arrive.

A stream is data, made once from (dataset, scenario, settings, seed) before any method runs, so that every
method gets the same batches. ``make`` makes one, ``Stream.save`` and ``Stream.load`` keep it.
"""

from findtta.streams.order import Order, Scenario, batch_sizes, generator, serve_shuffled
from findtta.streams.scenarios import SCENARIOS
from findtta.streams.stream import STREAM, Batch, Stream, Summary, make, parse, summarize

__all__ = [
    "SCENARIOS",
    "STREAM",
    "Batch",
    "Order",
    "Scenario",
    "Stream",
    "Summary",
    "batch_sizes",
    "generator",
    "make",
    "parse",
    "serve_shuffled",
    "summarize",
]
