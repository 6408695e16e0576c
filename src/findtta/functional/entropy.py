"""How uncertain a prediction is."""

from __future__ import annotations

from torch import Tensor

from findtta.functional._precision import widen


def softmax_entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax of each row of logits, in nats.

    Args:
        logits: Logits, ``(B, K)``.

    Returns:
        Entropy, ``(B,)``, from 0 (certain) to ``ln K`` (uniform).
    """
    log_probabilities = widen(logits).log_softmax(1)
    return -(log_probabilities.exp() * log_probabilities).sum(1)
