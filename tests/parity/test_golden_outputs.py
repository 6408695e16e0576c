"""Parity with the authors' own outputs: methods that change outputs."""

import torch

import findtta
from golden import each_run


@each_run("lame")
def test_lame(recording):
    adapted = findtta.adapt(recording.network(), "lame", neighbours=recording.hp["knn"])
    outputs = torch.stack([adapted(batch) for batch in recording.stream()])
    recording.assert_same_logits(outputs.softmax(2))  # probabilities are recorded


@each_run("t3a")
def test_t3a(recording):
    adapted = findtta.adapt(recording.network(), "t3a", supports=recording.hp["filter_K"])
    outputs = []
    for index, batch in enumerate(recording.stream()):
        outputs.append(adapted(batch))
        recording.assert_same(adapted.entropies.isfinite().sum(1), "supports_per_class", index)
    recording.assert_same_logits(torch.stack(outputs))
