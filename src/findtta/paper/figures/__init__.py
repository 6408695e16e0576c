"""The figures of the paper, one module each, with an ``ITEM``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: The module of each figure by its id, in the order of the paper.
FIGURES: Mapping[str, str] = MappingProxyType({})
