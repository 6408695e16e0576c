import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reference
from findtta.functional import batch_moments, gaussian_kl, instance_moments, layer_score, normalize_scores
from nets import close, filled, randn

finite = st.floats(0, 1e6)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 4, 4)])
def test_divergence_equals_the_reference(shape):
    norm = filled(nn.BatchNorm1d(5), dtype=torch.float64)
    features = 1 + 2 * randn(*shape, dtype=torch.float64)
    test = batch_moments(*instance_moments(features))
    got = gaussian_kl(*test, norm.running_mean, norm.running_var, norm.eps)
    assert close(got, torch.tensor(reference.kl(features, norm), dtype=torch.float64), 1e-10)


def test_equal_distributions_have_no_divergence():
    mean, variance = randn(8), 0.5 + randn(8, seed=1).abs()
    assert close(gaussian_kl(mean, variance, mean, variance), torch.zeros(8), 1e-6)


@given(st.floats(-100, 100), finite, st.floats(-100, 100), finite)
def test_divergence_is_never_negative(mean, variance, source_mean, source_variance):
    values = [torch.tensor([v], dtype=torch.float64) for v in (mean, variance, source_mean, source_variance)]
    assert gaussian_kl(*values) >= -1e-12


def test_constant_channels_have_a_finite_divergence():
    zero, one = torch.zeros(3), torch.ones(3)
    for variance, source_variance in [(zero, one), (one, zero), (zero, zero)]:
        assert gaussian_kl(zero, variance, zero, source_variance).isfinite().all()


@given(st.lists(finite, min_size=1, max_size=12))
def test_score_equals_the_reference(divergence):
    got = layer_score(torch.tensor(divergence, dtype=torch.float64))
    assert float(got) == pytest.approx(reference.score(divergence), rel=1e-10, abs=1e-12)


def test_score_weighs_the_mean_between_three_halves_and_two():
    assert float(layer_score(torch.full((4,), 2.0))) == pytest.approx(3.0)
    assert float(layer_score(torch.tensor([0.0, 2000.0]))) == pytest.approx(2000.0)


@given(st.lists(finite, min_size=2, max_size=12, unique=True))
def test_normalised_scores_equal_the_reference(scores):
    got = normalize_scores(torch.tensor(scores, dtype=torch.float64))
    assert got.tolist() == pytest.approx(reference.min_max(scores), abs=1e-10)
    assert got.min() == 0
    assert got.max() == 1


@pytest.mark.parametrize("scores", [[3.0], [2.0, 2.0, 2.0], [0.0, 0.0]])
def test_equal_scores_become_zero(scores):
    assert normalize_scores(torch.tensor(scores)).tolist() == [0.0] * len(scores)


def test_unmeasured_layers_stay_nan_and_do_not_count():
    got = normalize_scores(torch.tensor([math.nan, 1.0, 3.0, 2.0, math.nan])).tolist()
    assert got[1:4] == [0.0, 1.0, 0.5]
    assert math.isnan(got[0])
    assert math.isnan(got[4])


def test_only_unmeasured_layers_stay_nan():
    assert normalize_scores(torch.full((3,), math.nan)).isnan().all()
