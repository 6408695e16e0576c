"""Normalisation layers that choose their statistics, and the surgery that puts them in a model."""

from findtta.layers.adaptive import AdaptiveNorm
from findtta.layers.surgery import NormSite, adaptable_norms, find_norms, replace_norms, restore_norms

__all__ = ["AdaptiveNorm", "NormSite", "adaptable_norms", "find_norms", "replace_norms", "restore_norms"]
