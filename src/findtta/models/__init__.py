"""Models: small ResNets, those of timm, trained weights and their cards, and the one opener of all."""

from findtta.images import NORMALIZATIONS
from findtta.models.card import Classifier, ModelCard
from findtta.models.check import AccuracyCheck, check_clean_accuracy
from findtta.models.open import load, load_module, preprocessing_of
from findtta.models.weights import weights_digest
from findtta.models.zoo import ARCHITECTURES, SHIPPED, Architecture, build, import_timm

__all__ = [
    "ARCHITECTURES",
    "NORMALIZATIONS",
    "SHIPPED",
    "AccuracyCheck",
    "Architecture",
    "Classifier",
    "ModelCard",
    "build",
    "check_clean_accuracy",
    "import_timm",
    "load",
    "load_module",
    "preprocessing_of",
    "weights_digest",
]
