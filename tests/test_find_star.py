import copy
import io
import pickle

import pytest
import torch
from torch import nn

import findtta
import reference
from findtta.errors import UnusedLayerWarning
from nets import CalledTwice, UnusedLayer, close, filled, images, randn, replaced, same_bits, stream, tiny


def star(model=None, **options):
    return findtta.adapt(tiny() if model is None else model, "find-star", **options)


def buffers(adapted):
    return {name: tensor.clone() for name, tensor in adapted.state_dict().items()}


def assert_same_buffers(a, b):
    assert a.keys() == b.keys()
    assert all(same_bits(a[name], b[name]) for name in a)


def test_scores_equal_the_reference():
    model, batches = tiny(torch.float64), [b[:, :, :5, :5] for b in stream(3, 6, torch.float64)]
    adapted = star(model, cold_start=3, threshold=0.3)
    reference_model = replaced(model, reference.ReferenceFABN)
    for batch in batches:
        adapted(batch)
        with torch.no_grad():
            reference_model(batch)
    layers = [layer for layer in reference_model.modules() if isinstance(layer, reference.ReferenceFABN)]
    raw = [sum(layer.scores) / len(layer.scores) for layer in layers]
    report = adapted.report()
    assert [layer.score for layer in report] == pytest.approx(reference.min_max(raw), abs=1e-6)
    assert [layer.split for layer in report] == [score >= 0.3 for score in reference.min_max(raw)]
    assert {layer.split for layer in report} == {True, False}


def test_before_the_selection_the_report_shows_the_mean_score():
    model, batch = filled(nn.BatchNorm2d(3), dtype=torch.float64), images(4, dtype=torch.float64)
    adapted = star(model)
    adapted(batch)
    adapted(2 * batch)
    want = [reference.score(reference.kl(x, model)) for x in (batch, 2 * batch)]
    assert adapted.report()[0].score == pytest.approx(sum(want) / 2, rel=1e-5)


def test_unsplit_layers_use_the_whole_batch():
    norm, batch = filled(nn.BatchNorm2d(4), dtype=torch.float64), randn(7, 4, 3, 3, dtype=torch.float64)
    adapted = star(norm, cold_start=1)  # a single layer has the lowest score of all, 0
    assert close(adapted(batch), reference.fabn(batch, norm), 1e-10)
    assert close(adapted(batch), reference.fabn(batch, norm, labels=[0] * 7), 1e-10)


def test_the_selection_is_never_revised():
    adapted = star(cold_start=3)
    for batch in stream(3):
        adapted(batch)
    chosen = buffers(adapted)
    for batch in stream(5):
        adapted(10 - 4 * batch)
    assert_same_buffers(buffers(adapted), chosen)
    assert int(adapted.batches) == 3


@pytest.mark.parametrize("cold_start", [1, 4, 10])
def test_a_stream_shorter_than_the_cold_start_is_find(cold_start):
    adapted, find = star(cold_start=cold_start, threshold=1.1), findtta.adapt(tiny(), "find")
    outputs = [(adapted(batch), find(batch)) for batch in stream(cold_start + 1)]
    assert all(same_bits(*pair) for pair in outputs[:cold_start])
    assert not same_bits(*outputs[cold_start])


def through_state_dict(adapted):
    fresh = star(tiny(seed=5), cold_start=6)
    file = io.BytesIO()
    torch.save(adapted.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def through_save(adapted):
    file = io.BytesIO()
    torch.save(adapted, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("stop", [0, 4, 6, 8])
@pytest.mark.parametrize(
    "carry", [through_state_dict, copy.deepcopy, lambda adapted: pickle.loads(pickle.dumps(adapted)), through_save]
)
def test_a_saved_stream_goes_on_as_if_never_stopped(stop, carry):
    batches = stream(11)
    whole, first = star(cold_start=6), star(cold_start=6)
    want = [whole(batch) for batch in batches]
    for batch in batches[:stop]:
        first(batch)
    second = carry(first)
    assert all(same_bits(second(b), w) for b, w in zip(batches[stop:], want[stop:], strict=True))
    assert_same_buffers(buffers(second), buffers(whole))


def test_a_copy_shares_nothing_with_its_original():
    adapted, batches = star(cold_start=3), stream(4)
    adapted(batches[0])
    duplicate = copy.deepcopy(adapted)
    before = buffers(duplicate)
    for batch in batches:
        adapted(batch)
    assert_same_buffers(buffers(duplicate), before)


@pytest.mark.parametrize("seen", [2, 5])
def test_reset_equals_a_fresh_model(seen):
    used, fresh = star(cold_start=3), star(cold_start=3)
    for batch in stream(seen):
        used(3 * batch)
    used.reset()
    assert_same_buffers(buffers(used), buffers(fresh))
    assert used.report() == fresh.report()
    assert all(same_bits(used(batch), fresh(batch)) for batch in stream(5))
    assert_same_buffers(buffers(used), buffers(fresh))


def test_a_layer_that_is_never_called_has_no_score_and_stays_split():
    adapted = star(filled(UnusedLayer()), cold_start=2)
    first, *others = stream(4)
    with pytest.warns(UnusedLayerWarning, match="spare"):
        adapted(first)
    for batch in others:
        assert adapted(batch).isfinite().all()
    scores = {layer.name: (layer.score, layer.split) for layer in adapted.report()}
    assert scores["spare"] == (None, None)
    assert sorted(score for score, _ in scores.values() if score is not None) == [0.0, 1.0]


def test_a_layer_called_twice_is_scored_over_all_its_calls():
    model, batch = filled(CalledTwice(), dtype=torch.float64), images(4, dtype=torch.float64, size=4)
    adapted = star(model, cold_start=5)
    layer = reference.ReferenceFABN(model.bn0)
    with torch.no_grad():
        layer(model.conv1(layer(model.conv0(batch))))
    adapted(batch)
    assert adapted.report()[0].score == pytest.approx(sum(layer.scores) / 2, rel=1e-5)


@pytest.mark.parametrize("variance", reference.ESTIMATORS)
def test_layers_that_no_longer_split_keep_the_estimator_of_the_variance(variance):
    norm, batch = filled(nn.BatchNorm2d(4), dtype=torch.float64), randn(6, 4, 2, 2, dtype=torch.float64)
    adapted = findtta.adapt(norm, "find-star", cold_start=1, threshold=2.0, variance=variance)
    one_group = [0] * len(batch)
    assert close(adapted(batch), reference.fabn(batch, norm, estimator=variance), 1e-10)
    assert not adapted.report()[0].split
    assert close(adapted(batch), reference.fabn(batch, norm, labels=one_group, estimator=variance), 1e-10)


def test_report_shows_score_split_and_groups():
    adapted = star(cold_start=2)
    assert all(layer.score is None and layer.groups is None and layer.split for layer in adapted.report())
    adapted(images())
    assert all(layer.score > 0 and layer.groups >= 1 and layer.split for layer in adapted.report())
    for batch in stream(2):
        adapted(batch)
    report = adapted.report()
    assert min(layer.score for layer in report) == 0
    assert max(layer.score for layer in report) == 1
    assert [layer.split for layer in report] == [layer.score >= 0.1 for layer in report]
    assert all(layer.groups == 1 for layer in report if not layer.split)
    text = str(report)
    assert all(word in text for word in ("groups", "score", "split", "stem.1", "yes", "no"))


def test_scores_accumulate_while_converted_to_another_dtype():
    adapted = star(cold_start=2)
    adapted(images())
    adapted.double()
    output = adapted(images(dtype=torch.float64))
    assert output.dtype == torch.float64
    assert {layer.split for layer in adapted.report()} == {True, False}


def test_alpha_one_stays_the_plain_model_to_the_bit_once_layers_are_selected():
    model = tiny()
    adapted = star(model, alpha=1, cold_start=1, threshold=1.1)
    for batch in stream(3):
        with torch.no_grad():
            assert same_bits(adapted(batch), model(batch))
    assert not any(layer.split for layer in adapted.report())
