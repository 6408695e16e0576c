"""Data: corruptions, datasets of several domains, verified downloads and the embedded default."""

from findtta.data.corrupted import CorruptedDataset
from findtta.data.corruptions import corrupt
from findtta.data.dataset import CLEAN, EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, SEVERITIES, DomainDataset
from findtta.data.open import load

__all__ = [
    "CLEAN",
    "EXTRA_CORRUPTIONS",
    "MAIN_CORRUPTIONS",
    "SEVERITIES",
    "CorruptedDataset",
    "DomainDataset",
    "corrupt",
    "load",
]
