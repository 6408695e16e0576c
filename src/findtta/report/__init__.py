"""Results as one HTML page that opens anywhere, without a network."""

from findtta.paper.numbers import DATASETS
from findtta.report.page import TITLE, page, write

__all__ = ["DATASETS", "TITLE", "page", "write"]
