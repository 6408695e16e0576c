"""Models: small ResNets, those of timm behind one door, trained weights and their cards."""

from findtta.models.card import NORMALIZATIONS, Classifier, ModelCard
from findtta.models.check import AccuracyCheck, check_clean_accuracy
from findtta.models.weights import weights_digest
from findtta.models.zoo import ARCHITECTURES, SHIPPED, Architecture, build, load

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
    "load",
    "weights_digest",
]
