"""Results as one HTML page that opens anywhere, without a network."""

from findtta.report.page import DATASETS, TITLE, page, write

__all__ = ["DATASETS", "TITLE", "page", "write"]
