"""Figure 11: accuracy and time of FIND* by its threshold, for two more pairs of data and network."""

from __future__ import annotations

from findtta.paper.figures.base import RESNET, TRANSFORMER
from findtta.paper.figures.threshold import Threshold

ITEM = Threshold("threshold-more", [("cifar100-c", RESNET), ("cifar10-c", TRANSFORMER)])
