"""Table 6: 6, 9 and 12 domains mixed; the paper does not say which, so they are the first of the usual order."""

from __future__ import annotations

from findtta.paper.items import Context
from findtta.paper.printed import AccuracyTable


class Domains(AccuracyTable):
    """Accuracy with some of the fifteen domains."""

    def notes(self, context: Context) -> list[str]:
        chosen = (
            "6, 9 and 12 domains are the first ones in the usual order of the fifteen, which begins with noise."
        )
        return [chosen, *super().notes(context)]


ITEM = Domains("domains")
