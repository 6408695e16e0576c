"""A contact sheet of a dataset: the same few images in every domain, side by side."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

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
    """Draw one labelled cell per domain with a number of images, the same rows in every domain.

    Domains and severity are as for :meth:`DomainDataset.pick`; by default ``"clean"``, if the dataset has it, and
    the domains that a stream is made of. The seed is that of the choice of images.
    """
    require_int("images", images)
    require_int("seed", seed, 0)
    shown = dataset.pick(domains, severity)
    if domains is None and CLEAN in dataset.domains and CLEAN not in shown.domains:
        shown = dataset.pick((CLEAN, *shown.domains))
    levels = {split_domain(domain)[1] for domain in shown.domains} - {None}
    cells = []
    for domain in shown.domains:
        kind, level = split_domain(domain)
        caption = kind.replace("_", " ") + (f" {level}" if level is not None and len(levels) > 1 else "")
        rows = np.random.default_rng(seed).permutation(len(shown.labels(domain)))[:images].astype(np.int64)
        cells.append(_titled(_block(shown.images(domain, rows)), caption, _CAPTION))
    title = f"{dataset.name}, severity {severity}" if levels == {severity} else dataset.name
    sheet = _titled(_grid(cells, _columns(len(cells)), _GAP), title, _TITLE)
    return ImageOps.expand(sheet, _MARGIN, _PAPER)


def _block(images: Images) -> Image.Image:
    """Lay images out in a block that is as square as can be, enlarged so that pixels stay pixels."""
    count, height, width, _ = images.shape
    columns = max(1, math.ceil(math.sqrt(count)))
    side = max(width * columns, height * math.ceil(count / columns), 1)
    factor = min(max(1, round(_CELL / side)), _LARGEST_CELL / side)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    how = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.LANCZOS
    block = _grid([Image.fromarray(image).resize(size, how) for image in images], columns, 2)
    return ImageOps.expand(block, 1, _FRAME)


def _grid(tiles: Sequence[Image.Image], columns: int, gap: int) -> Image.Image:
    width = max((tile.width for tile in tiles), default=1) + gap
    height = max((tile.height for tile in tiles), default=1) + gap
    rows = max(1, math.ceil(len(tiles) / columns))
    grid = Image.new("RGB", (columns * width - gap, rows * height - gap), _PAPER)
    for position, tile in enumerate(tiles):
        row, column = divmod(position, columns)
        grid.paste(tile, (column * width, row * height))
    return grid


def _titled(image: Image.Image, text: str, size: int) -> Image.Image:
    """Put a line of text above an image, made smaller or shortened until it fits."""
    titled = ImageOps.expand(image, (0, size + 9, 0, 0), _PAPER)
    draw = ImageDraw.Draw(titled)
    while size > 10 and draw.textlength(text, ImageFont.load_default(size)) > image.width:
        size -= 1
    font = ImageFont.load_default(size)
    while len(text) > 1 and draw.textlength(text, font) > image.width:
        text = text[:-2].rstrip() + "…"
    draw.text((0, 0), text, _INK, font)
    return titled


def _columns(count: int) -> int:
    """Return the number of columns of a wide rectangle; one that fills the last row, if there is one nearby."""
    aim = max(1, min(count, round(math.sqrt(count * 1.5))))
    nearby = range(max(1, aim - 1), min(count, aim + 2) + 1)
    return min(
        (columns for columns in nearby if count % columns == 0), key=lambda n: (abs(n - aim), -n), default=aim
    )
