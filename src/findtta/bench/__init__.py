"""The benchmark: one run, many runs, and what they gave."""

from findtta.bench.plan import Plan, Planner
from findtta.bench.result import Result
from findtta.bench.run import run
from findtta.bench.spec import RunSpec

__all__ = ["Plan", "Planner", "Result", "RunSpec", "run"]
