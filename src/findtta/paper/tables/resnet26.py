"""Table 7: all methods with a smaller network, a ResNet-26."""

from __future__ import annotations

from findtta.paper.printed import AccuracyTable

ITEM = AccuracyTable("resnet26")
