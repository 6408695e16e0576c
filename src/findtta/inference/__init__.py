"""From files and bytes to answers: reading images safely, preparing them, and predicting batches."""

from findtta.inference.images import ImageError, ImageLimits, Preparation, decode_image, read_array
from findtta.inference.network import NetworkSettings
from findtta.inference.predictor import Predictions, Predictor
from findtta.inference.watch import Watch

__all__ = [
    "ImageError",
    "ImageLimits",
    "NetworkSettings",
    "Predictions",
    "Predictor",
    "Preparation",
    "Watch",
    "decode_image",
    "read_array",
]
