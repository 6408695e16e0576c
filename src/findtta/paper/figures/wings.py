"""Figure 14: one image under growing corruption."""

from __future__ import annotations

from findtta.data.dataset import SEVERITIES
from findtta.paper.figures.corruptions import Gallery
from findtta.paper.figures.distance import CORRUPTIONS

ITEM = Gallery("wings", images=1, stream="static", domains=CORRUPTIONS, severity=SEVERITIES)
