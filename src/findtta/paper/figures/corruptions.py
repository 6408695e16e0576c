"""Figure 8: the same images under every corruption."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
from typing import TYPE_CHECKING, Any

from findtta.paper.document import Picture
from findtta.paper.figures.base import PaperFigure, done_reading
from findtta.paper.items import Context, Probe, Results, Setup
from findtta.paper.notes import dataset_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = 9.0


class Gallery(PaperFigure):
    """Images under corruptions.

    Args:
        id: Its id.
        images: How many images each corruption shows.
        stream: What of the data is shown, as settings of a run.
    """

    def __init__(self, id: str, images: int, **stream: Any) -> None:
        super().__init__(id)
        self.images, self.stream = images, stream

    def probes(self, context: Context) -> list[Probe]:
        return [self._probe(context, setup) for _, setup in self.at_hand(context)]

    def notes(self, context: Context, results: Results) -> list[str]:
        return ["Which images are shown is drawn at random; small ones are enlarged pixel by pixel."]

    def pictures(self, context: Context, results: Results) -> list[Picture]:
        pictures = []
        for _, setup in self.at_hand(context):
            reading = done_reading(results, self._probe(context, setup))
            if reading is not None:
                pictures.append(self._picture(setup, reading.value["png"], reading.value["domains"]))
        return pictures

    def _probe(self, context: Context, setup: Setup) -> Probe:
        return Probe(
            kind="findtta.paper.measure.drawings:measure_sheet",
            spec=context.spec(setup, method="source", **self.stream),
            settings={"images": self.images},
        )

    def _picture(self, setup: Setup, png: str, domains: list[str]) -> Picture:
        content = base64.b64decode(png)
        width, height = _size(content)
        return Picture(
            name=setup.stands_for,
            title=f"{self.title}: {dataset_title(setup)}",
            draw=functools.partial(_show, content=content),
            size=(_INCHES, _INCHES * height / width),
            data={"domains": domains, "png_sha256": hashlib.sha256(content).hexdigest()},
        )


def _size(png: bytes) -> tuple[int, int]:
    from PIL import Image

    width, height = Image.open(io.BytesIO(png)).size
    return width, height


def _show(figure: Figure, content: bytes) -> None:
    import numpy as np
    from PIL import Image

    figure.set_layout_engine("none")  # the sheet has its own margins
    axis = figure.add_axes((0, 0, 1, 1))
    axis.imshow(np.asarray(Image.open(io.BytesIO(content)).convert("RGB")), interpolation="antialiased")
    axis.set_axis_off()


ITEM = Gallery("corruptions", images=4, stream="crossmix")
