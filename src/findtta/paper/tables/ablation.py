"""Table 5: source statistics (SBN), those of the groups (TFN), both (FIND), and FIND*."""

from __future__ import annotations

from findtta.paper.printed import AccuracyTable

ITEM = AccuracyTable("ablation", complete=False)
