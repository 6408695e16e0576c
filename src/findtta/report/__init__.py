"""Results as one page of HTML that opens anywhere, without a network."""

from findtta.report.assemble import page, write

__all__ = ["page", "write"]
