"""Streams: in what order and in what batches samples of several domains arrive.

A stream is data, made once from (dataset, scenario, settings, seed) before any method runs, so that every
method gets the same batches. ``make`` makes one, ``Stream.save`` and ``Stream.load`` keep it.
"""

from findtta.streams.make import SCENARIOS, make, parse
from findtta.streams.order import Order, Samples, Scenario
from findtta.streams.stream import Batch, Stream, Summary, summarize

__all__ = [
    "SCENARIOS",
    "Batch",
    "Order",
    "Samples",
    "Scenario",
    "Stream",
    "Summary",
    "make",
    "parse",
    "summarize",
]
