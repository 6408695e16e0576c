"""Table 13: the data 3 times over."""

from __future__ import annotations

from findtta.paper.lifelong import LifelongTable

ITEM = LifelongTable("lifelong-3")
