"""Table 8: one domain after the other. The paper has ImageNet-C only; other data at hand get a column, too."""

from __future__ import annotations

from findtta.paper.printed import AccuracyTable

ITEM = AccuracyTable("static", extend=True)
