"""Predictions for batches of images: the same call serves folders of files, clusters and the server.

Settings and predictions come without torch, which the HTTP side of the server never imports.
"""

from typing import TYPE_CHECKING, Any

from findtta.predictor.settings import Predictions, PredictorSettings

if TYPE_CHECKING:
    from findtta.predictor.predictor import Predictor, Recorder

__all__ = ["Predictions", "Predictor", "PredictorSettings", "Recorder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from findtta.predictor import predictor

    return getattr(predictor, name)
