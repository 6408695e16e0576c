"""Predicting many images: a folder, a list or Parquet files in, one file of answers per block out.

Everything about a row is decided by its position in the input: positions are cut into batches, batches into
blocks. Who computes a block, and when, decides nothing, so that ten images on a laptop, millions on a cluster
and a run that was killed twice give the same files.
"""

from findtta.predict.choice import RAY_FROM
from findtta.predict.cluster import WorkerError
from findtta.predict.run import Summary, predict
from findtta.predict.settings import Settings

__all__ = ["RAY_FROM", "Settings", "Summary", "WorkerError", "predict"]
