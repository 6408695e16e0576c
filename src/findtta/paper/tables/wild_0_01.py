"""Table 10: classes in runs as well (Wild), delta 0.01."""

from __future__ import annotations

from findtta.paper.printed import AccuracyTable

ITEM = AccuracyTable("wild-0.01")
