"""The benchmark: one run, many runs, and comparisons of their results."""

from findtta.bench.evaluate import run
from findtta.bench.plan import Plan, Planner, RunSpec
from findtta.bench.result import Result

__all__ = ["Plan", "Planner", "Result", "RunSpec", "run"]
