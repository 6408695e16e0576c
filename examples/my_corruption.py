"""A corruption: a bright band, at a random height in every image."""

import numpy as np

from findtta.data.corruptions import Images
from findtta.data.randomness import Keys, uniform

STRENGTH = (0.2, 0.35, 0.5, 0.65, 0.8)  # at severity 1 to 5


def glare(images: Images, keys: Keys, severity: int) -> Images:
    """Blend a band of each image, ``(n, height, width, 3)``, with white.

    Random numbers come from ``keys``, which belong to the seed and the row of each image: so an image is corrupted
    in the same way in every batch. ``keys("height")`` and ``keys("noise")`` give independent numbers.
    """
    height = images.shape[1]
    centre = uniform(keys("height"), 1) * height  # (n, 1)
    distance = np.abs(np.arange(height) - centre) / height  # (n, height)
    light = STRENGTH[severity - 1] * np.clip(1 - 4 * distance, 0, 1)[:, :, None, None]
    return (images + light * (255 - images)).astype(np.uint8)
