"""Corruptions of images: the fifteen of the benchmark and four more, at five severities."""

from findtta.data.corruptions.api import corrupt
from findtta.data.corruptions.constants import TABLES
from findtta.data.corruptions.registry import CORRUPTIONS

__all__ = ["CORRUPTIONS", "TABLES", "corrupt"]
