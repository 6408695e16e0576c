"""The domains that the served method has met, and a few small images of each if the server is to keep them."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from findtta.images import Pixels
from findtta.predictor import Predictions
from findtta.serve.overview import png_url

#: Images that are kept of a domain, the latest, and their longer side.
EXAMPLES, SIDE = 3, 48


class DomainsMet:
    """What the last batch said of domains; with ``keep_examples`` also images of them, in memory only."""

    def __init__(self, *, keep_examples: bool) -> None:
        self._keep_examples = keep_examples
        self.forget()

    def forget(self) -> None:
        """Begin anew, under another method."""
        self._domains: tuple[Mapping[str, float], ...] = ()
        self._examples: dict[int, deque[Pixels]] = {}

    def note(self, images: Pixels, predictions: Predictions) -> None:
        """Take over what a batch of the served method says, and keep its images as examples."""
        self._domains = predictions.domains
        if not self._keep_examples or predictions.places is None:
            return
        for place in np.unique(predictions.places[predictions.places >= 0]).tolist():
            kept = self._examples.setdefault(place, deque(maxlen=EXAMPLES))
            kept.extend(map(_small, images[predictions.places == place][-EXAMPLES:]))
        samples = {domain["place"]: math.ceil(domain["samples"]) for domain in self._domains}
        # A place may have gone to a new domain, or to none after a replica was replaced.
        self._examples = {
            place: deque(list(kept)[-samples[place] :], EXAMPLES)
            for place, kept in self._examples.items()
            if samples.get(place)
        }

    def report(self, *, examples: bool = False) -> list[dict[str, Any]]:
        """Return the domains as plain values, those used most of late first; with PNG files as data: URLs."""
        rows: list[dict[str, Any]] = [{**domain, "images": round(domain["samples"])} for domain in self._domains]
        for row in rows:
            del row["samples"]
            if examples and self._keep_examples:
                # A copy, since batches add to it meanwhile.
                row["examples"] = [png_url(image) for image in tuple(self._examples.get(int(row["place"]), ()))]
        return rows


def _small(image: Pixels) -> Pixels:
    small = Image.fromarray(image)
    small.thumbnail((SIDE, SIDE))
    return np.asarray(small)
