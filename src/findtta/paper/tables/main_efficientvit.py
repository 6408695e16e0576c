"""Table 2: all methods in CrossMix, Random and Shuffle, with an EfficientViT-M5."""

from __future__ import annotations

from findtta.paper.printed import AccuracyTable

ITEM = AccuracyTable("main-efficientvit")
