"""Figure 15: every method by the batch size, on all three datasets."""

from __future__ import annotations

from findtta.paper.figures.batch_size import BatchSize

ITEM = BatchSize("batch-size-all")
