"""A contact sheet of a dataset: the same few images in every domain, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from findtta.data.dataset import CLEAN, DomainDataset, Images, split_domain
from findtta.options import require_int

_PAPER, _INK, _FRAME = (255, 255, 255), (40, 40, 44), (214, 214, 220)
_MARGIN, _GAP = 20, 16  # around the sheet, and between cells
_CELL, _LARGEST_CELL = 192, 304  # small images are enlarged by whole factors to come near, large ones shrunk
_CAPTION, _TITLE = 15, 20  # sizes of the font


def contact_sheet(
    dataset: DomainDataset,
    domains: Sequence[str] | None = None,
    *,
    severity: int = 5,
    images: int = 4,
    seed: int = 0,
) -> Image.Image:
    """Draw one labelled cell of images per domain.

    Args:
        dataset: The dataset.
        domains: The domains, as for :meth:`DomainDataset.pick`; by default ``"clean"``, if the dataset has
            it, and those that a stream is made of.
        severity: The severity of the names that do not say theirs.
        images: How many images a cell shows; the same rows in every domain.
        seed: Seed of the choice of images.

    Returns:
        The sheet.
    """
    require_int("images", images)
    shown = dataset.pick(domains, severity).domains
    if domains is None and CLEAN in dataset.domains and CLEAN not in shown:
        shown = (CLEAN, *shown)
    cells = []
    for domain in shown:
        count = len(dataset.labels(domain))
        rows = np.random.default_rng(seed).permutation(count)[:images].astype(np.int64)
        cells.append(_cell(dataset.images(domain, rows)))
    levels = {split_domain(domain)[1] for domain in shown} - {None}
    title = f"{dataset.name}, severity {severity}" if levels == {severity} else dataset.name
    return _sheet(cells, [_caption(domain, several=len(levels) > 1) for domain in shown], title)


def _cell(images: Images) -> Image.Image:
    """Lay images out in a block that is as square as can be, enlarged so that pixels stay pixels."""
    count, height, width, _ = images.shape
    columns = max(1, math.ceil(math.sqrt(count)))
    rows = max(1, math.ceil(count / columns))
    side = max(width * columns, height * rows)
    factor = min(max(1, round(_CELL / side)), _LARGEST_CELL / side)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    how = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.LANCZOS
    gap = 2 if count > 1 else 0
    cell = Image.new("RGB", (columns * (size[0] + gap) - gap, rows * (size[1] + gap) - gap), _PAPER)
    for position, image in enumerate(images):
        row, column = divmod(position, columns)
        cell.paste(Image.fromarray(image).resize(size, how), (column * (size[0] + gap), row * (size[1] + gap)))
    return cell


def _caption(domain: str, several: bool) -> str:
    """Return the kind of drift, with its severity if the sheet has several."""
    kind, severity = split_domain(domain)
    return kind.replace("_", " ") + (f" {severity}" if severity is not None and several else "")


def _sheet(cells: Sequence[Image.Image], captions: Sequence[str], title: str) -> Image.Image:
    width, height = max(cell.width for cell in cells), max(cell.height for cell in cells)
    columns = _columns(len(cells))
    rows = math.ceil(len(cells) / columns)
    line, head = _CAPTION + 9, _TITLE + 18
    sheet = Image.new(
        "RGB",
        (2 * _MARGIN + columns * (width + _GAP) - _GAP, 2 * _MARGIN + head + rows * (height + line + _GAP) - _GAP),
        _PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    _write(draw, title, _MARGIN, _MARGIN, sheet.width - 2 * _MARGIN, _TITLE)
    for position, (cell, caption) in enumerate(zip(cells, captions, strict=True)):
        row, column = divmod(position, columns)
        left, top = _MARGIN + column * (width + _GAP), _MARGIN + head + row * (height + line + _GAP)
        sheet.paste(cell, (left, top + line))
        draw.rectangle((left - 1, top + line - 1, left + cell.width, top + line + cell.height), outline=_FRAME)
        _write(draw, caption, left, top, width, _CAPTION)
    return sheet


def _columns(count: int) -> int:
    """Return the number of columns of a wide rectangle; one that fills the last row, if there is one nearby."""
    aim = max(1, min(count, round(math.sqrt(count * 1.5))))
    nearby = range(max(1, aim - 1), min(count, aim + 2) + 1)
    return min(
        (columns for columns in nearby if count % columns == 0), key=lambda n: (abs(n - aim), -n), default=aim
    )


def _write(draw: ImageDraw.ImageDraw, text: str, left: float, top: float, width: float, size: int) -> None:
    """Write a line, shortened or made smaller until it fits its width."""
    while size > 10 and draw.textlength(text, ImageFont.load_default(size)) > width:
        size -= 1
    font = ImageFont.load_default(size)
    while len(text) > 1 and draw.textlength(text, font) > width:
        text = text[:-2].rstrip() + "…"
    draw.text((left, top), text, _INK, font)
