"""ROID and CoTTA: what they compute; what methods that learn have in common is tested with the others."""

import pytest
import torch
from torch import nn

import findtta
import reference
from findtta.algorithms.roid import sample_weights, smoothed_prior, soft_likelihood_ratio
from findtta.algorithms.views import augment, draw_augmentation
from nets import TinyNet, filled, randn, stream


def pictures(count=8, seed=0):
    return torch.sigmoid(2 * randn(count, 3, 8, 8, seed=seed, dtype=torch.float64))


def net(seed=0):
    return filled(TinyNet(), seed=seed, dtype=torch.float64)


def test_roid_computes_the_equations():
    logits = 3 * randn(9, 4, dtype=torch.float64)
    probabilities, average = logits.softmax(1), torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    rows = probabilities.tolist()
    weights = sample_weights(probabilities, average, 1 / 3)
    assert weights.tolist() == pytest.approx(reference.roid_weights(rows, average.tolist(), 1 / 3))
    assert 0 < (weights == 0).sum() < 9
    ratios = [reference.soft_likelihood_ratio(row) for row in rows]
    assert soft_likelihood_ratio(logits).tolist() == pytest.approx(ratios)
    assert smoothed_prior(logits).tolist() == pytest.approx(reference.smoothed_prior(rows))
    poisoned = torch.cat([logits, torch.full((1, 4), torch.nan)])
    assert smoothed_prior(poisoned).equal(smoothed_prior(logits))


def test_roid_weighs_equal_samples_alike():
    equal = torch.tensor([[0.7, 0.2, 0.1]]).expand(3, 3)
    assert sample_weights(equal, torch.full((3,), 1 / 3), 1 / 3).tolist() == [1, 1, 1]
    assert sample_weights(equal[:1], torch.full((3,), 1 / 3), 1 / 3).tolist() == [1]


def test_roid_multiplies_logits_by_the_prior_of_their_batch():
    batch = pictures()
    adapted, plain = (findtta.adapt(net(), "roid", prior_correction=chosen) for chosen in (True, False))
    logits = plain(batch)
    torch.testing.assert_close(logits, findtta.adapt(net(), "tbn")(batch))
    torch.testing.assert_close(adapted(batch), logits * smoothed_prior(logits))


def test_roid_returns_to_the_source():
    near, far = (findtta.adapt(net(), "roid", lr=1e-2, source_weight=weight) for weight in (0.5, 0.0))
    for batch in stream(4, dtype=torch.float64):
        near(batch)
        far(batch)

    def distance(adapted):
        pairs = zip(adapted.trained.values(), adapted.source.buffers(), strict=True)
        return sum(float((parameter - source).detach().abs().sum()) for parameter, source in pairs)

    assert 0 < distance(near) < 0.5 * distance(far)
    still = findtta.adapt(net(), "roid", lr=1e-2, source_weight=1.0)
    still(pictures())
    assert distance(still) == 0


def test_views_of_roid_have_no_blur_and_no_noise():
    images = pictures(4).float()
    draw = draw_augmentation(images, torch.Generator().manual_seed(0), mild=True)
    assert (draw.blur_sigma, draw.noise, draw.padding) == (None, None, "reflect")
    assert augment(images, draw).shape == images.shape
    seen = []
    adapted = findtta.adapt(net(), "roid")
    adapted._augment = lambda images: seen.append(len(images)) or images.flip(-1)
    adapted(pictures())
    assert seen == [int(adapted.selected.sum())]  # only those learned from are augmented


@pytest.mark.parametrize(
    ("method", "classes", "expected"),
    [
        ("roid", 10, {"optimizer": "adam", "lr": 1e-3}),
        ("roid", 1000, {"optimizer": "sgd", "lr": 2.5e-4, "nesterov": True}),
        ("cotta", 10, {"optimizer": "adam", "lr": 1e-3, "threshold": 0.92, "restore_probability": 0.01}),
        ("cotta", 100, {"optimizer": "adam", "threshold": 0.72, "symmetric": False}),
        ("cotta", 1000, {"optimizer": "sgd", "lr": 0.01, "threshold": 0.1, "restore_probability": 0.001}),
    ],
)
def test_options_are_those_of_the_authors_by_default(method, classes, expected):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, classes))
    options = findtta.adapt(model, method).options
    assert {name: getattr(options, name) for name in expected} == expected
    assert next(iter(findtta.methods()[method].presets)).startswith("official")
    paper = findtta.adapt(model, method, preset="paper").options
    assert (paper.optimizer, paper.lr, paper.momentum) == ("sgd", 1e-4, 0.9)


def cotta(**options):
    return findtta.adapt(net(), "cotta", **({"views": 2, "threshold": 1.0} | options))


def test_cotta_averages_over_views_where_the_source_is_not_confident():
    batch, shifts = pictures(), (0.1, -0.2)
    tbn = findtta.adapt(net(), "tbn")
    expected = torch.stack([tbn(batch + shift) for shift in shifts]).mean(0)
    remaining = iter(shifts)
    torch.testing.assert_close(cotta(view=lambda inputs: inputs + next(remaining))(batch), expected)
    torch.testing.assert_close(cotta(threshold=0.0)(batch), tbn(batch))
    confidence = float(tbn(batch).softmax(1).amax(1).mean())
    for threshold, used in ((confidence + 1e-9, 2), (confidence - 1e-9, 0)):
        drawn = []
        cotta(view=lambda inputs, drawn=drawn: drawn.append(1) or inputs, threshold=threshold)(batch)
        assert len(drawn) == used


def test_cotta_asks_the_source_model_and_not_the_teacher():
    adapted = cotta(lr=0.5, ema=0.0)
    for batch in stream(3, dtype=torch.float64):
        adapted(batch)
    learned = [parameter.clone() for parameter in adapted.model.parameters()]
    with adapted._source_parameters():
        confident = adapted.model(pictures())
    torch.testing.assert_close(confident, findtta.adapt(net(), "tbn")(pictures()))
    with pytest.raises(ZeroDivisionError), adapted._source_parameters():
        _ = 1 / 0
    assert all(p.equal(kept) for p, kept in zip(adapted.model.parameters(), learned, strict=True))
    assert not torch.allclose(adapted.model(pictures()), confident)


def test_cotta_restores_some_numbers_of_the_student():
    adapted = cotta(lr=0.1, restore_probability=0.3)
    restored = cotta().draw_restored(sum(p.numel() for p in adapted.trained.values()), 0.3)
    assert 0.2 < restored.double().mean() < 0.4
    adapted.draw_restored = lambda *_: restored
    adapted(pictures())
    pairs = zip(adapted.trained.values(), adapted.source.buffers(), strict=True)
    same = torch.cat([(parameter == source).flatten() for parameter, source in pairs])
    assert same[restored].all()
    assert not same[~restored].all()


def test_cotta_trains_all_parameters_but_those_skipped():
    names = [name for name, _ in net().named_parameters()]
    assert cotta().trained_names == names
    assert cotta(skip_layers=["head"]).trained_names == [name for name in names if "head" not in name]


def test_cotta_predicts_without_a_trace():
    adapted, other = cotta(), cotta()
    with torch.no_grad():
        adapted.predict(pictures(seed=3))
    assert adapted(pictures()).equal(other(pictures()))
