"""Table 12: the data 2 times over."""

from __future__ import annotations

from findtta.paper.lifelong import LifelongTable

ITEM = LifelongTable("lifelong-2")
