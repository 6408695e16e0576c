"""Table 1: all methods in CrossMix, Random and Shuffle, with a ResNet-50."""

from __future__ import annotations

from findtta.paper.printed import AccuracyTable

ITEM = AccuracyTable("main-resnet50")
