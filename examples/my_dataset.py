"""A dataset: stripes of two directions, in two domains."""

import numpy as np

from findtta.data import DomainDataset


class Stripes(DomainDataset):
    """Images are made when they are asked for; a dataset of files would read them there.

    The arguments are the options of the dataset: ``--data-option count=40``.
    """

    name = "stripes"
    domains = ("wide", "narrow")  # a dataset with the single domain "clean" would get the built-in corruptions
    classes = ("horizontal", "vertical")
    image_size = (32, 32)

    def __init__(self, count: int = 100) -> None:
        self.count = count

    def labels(self, domain: str) -> np.ndarray:
        self.check_domain(domain)
        return np.arange(self.count) % 2  # one label per row

    def images(self, domain: str, rows: np.ndarray) -> np.ndarray:
        width = 8 if domain == "wide" else 2
        wave = 128 * ((np.arange(32) + 5 * rows[:, None]) // width % 2)  # (n, 32)
        vertical = np.broadcast_to(wave[:, None, :], (len(rows), 32, 32))
        horizontal = vertical.transpose(0, 2, 1)
        stripes = np.where(self.labels(domain)[rows, None, None] == 1, vertical, horizontal)
        return np.repeat(stripes[..., None], 3, axis=3).astype(np.uint8)
