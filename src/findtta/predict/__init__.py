"""Batch prediction: a folder, a list or Parquet files of images in, one file of predictions per block out.

The position of an image in the input determines everything about its row: positions are cut into batches, and
batches into blocks. Which process computes a block, and when, has no influence, so that ten images on a laptop,
millions on a cluster, and a run that was killed twice give the same files.
"""

from findtta.errors import WorkerError
from findtta.predict.pipeline import Summary, predict
from findtta.predict.settings import RAY_FROM, Settings

__all__ = ["RAY_FROM", "Settings", "Summary", "WorkerError", "predict"]
