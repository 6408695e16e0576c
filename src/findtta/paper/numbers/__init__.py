"""What the paper printed: its tables, the claims of its text, and its figures in words.

The numbers stand in the TOML files beside this module, one per table, exactly as printed.
"""

from findtta.paper.numbers._claims import Cells, Claim, claim, claims
from findtta.paper.numbers._figures import Panel, PaperFigure, figure, figures
from findtta.paper.numbers._tables import (
    METHODS,
    PRINTED,
    SIDE_BY_SIDE,
    Column,
    Erratum,
    PaperTable,
    Row,
    aliases,
    table,
    tables,
    value,
)

__all__ = [
    "METHODS",
    "PRINTED",
    "SIDE_BY_SIDE",
    "Cells",
    "Claim",
    "Column",
    "Erratum",
    "Panel",
    "PaperFigure",
    "PaperTable",
    "Row",
    "aliases",
    "claim",
    "claims",
    "figure",
    "figures",
    "table",
    "tables",
    "value",
]
