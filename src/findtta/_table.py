"""Plain-text tables for reports and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def render(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay rows out in aligned columns: numbers to the right, text to the left."""
    cells = [[_text(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[column]) for row in cells) and bool(cells) for column in range(len(header))]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, cells)])


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "").replace("-", "").replace("e", "").isdigit()
