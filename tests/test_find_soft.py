import copy
import functools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounter

import findtta
import reference
from findtta.algorithms.find_soft import Evidence
from findtta.errors import InputError, OptionError
from findtta.export.tracing import program
from findtta.functional import (
    batch_moments,
    drift_gate,
    in_source_units,
    instance_moments,
    log_drift,
    normalize,
)
from nets import (
    CalledTwice,
    PreActivation,
    TinyNet,
    close,
    conv,
    filled,
    images,
    randn,
    replaced,
    same_bits,
    stream,
    tiny,
    without,
)

DOUBLE = torch.float64


def soft(model=None, **options):
    return findtta.adapt(tiny() if model is None else model, "find-soft", **options)


@functools.cache
def shared_soft(temperature=0.2):
    """One for many examples: it keeps nothing between batches, and to make one takes longer than to run it."""
    return soft(tiny(DOUBLE), temperature=temperature)


def plain(model, batch):
    with torch.no_grad():
        return model(batch)


def some_numbers(count, seed):
    return randn(count, seed=seed, dtype=DOUBLE)


class Windows(nn.Module):
    """Looks at each image whole, then at its four quarters, then at the whole again."""

    def __init__(self):
        super().__init__()
        self.bn0, self.bn1, self.bn2 = (nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x):
        x = self.bn0(x)
        quarters = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5)
        quarters = self.bn1(quarters.reshape(-1, 3, 4, 4))
        return self.bn2(x + quarters.reshape(x.shape[0], 4, 3, 16).mean(1).unflatten(2, (4, 4)).repeat(1, 1, 2, 2))


class Fails(nn.Module):
    """Raises between its two layers when asked to."""

    def __init__(self):
        super().__init__()
        self.bn0, self.bn1 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x, fail=False):
        x = self.bn0(x)
        if fail:
            raise RuntimeError("between the layers")
        return self.bn1(x)


def deep_net():
    """Layers in the middle, and two that are late."""
    layers = [(conv(3 if place == 0 else 4, 4), nn.BatchNorm2d(4), nn.ReLU()) for place in range(8)]
    return nn.Sequential(*(module for layer in layers for module in layer), nn.Flatten(2))


OPTIONS = [
    {},
    {"alpha": 0.0, "temperature": 0.5, "guard": 0.4},
    {"alpha": 0.4, "threshold": 2.0, "sharpness": 1.5, "guard": 0},
]
LAYERS = {
    "BatchNorm1d": (nn.BatchNorm1d, (9, 4)),
    "BatchNorm1d with length": (nn.BatchNorm1d, (9, 4, 6)),
    "BatchNorm2d": (nn.BatchNorm2d, (9, 4, 3, 3)),
    "BatchNorm3d": (nn.BatchNorm3d, (9, 4, 2, 2, 2)),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_equals_the_reference(layer, options):
    kind, shape = LAYERS[layer]
    norm, batch = filled(kind(4), dtype=DOUBLE), 1 + 2 * randn(*shape, dtype=DOUBLE)
    assert close(soft(norm, **options)(batch), reference.ReferenceSoft(norm, [], **options)(batch), 1e-12)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("net", [TinyNet, PreActivation, deep_net])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_network_equals_the_network_of_reference_layers(net, count, options):
    model, batch = filled(net(), dtype=DOUBLE), images(count, dtype=DOUBLE, size=5)
    history, shares, layers = [], [], len(soft(model).report())
    want = plain(
        replaced(model, lambda norm: reference.ReferenceSoft(norm, history, shares, layers, **options)), batch
    )
    assert len(history) >= 2
    assert close(soft(model, **options)(batch), want, 1e-11)


def test_a_layer_called_twice_gives_evidence_twice():
    model, batch = filled(CalledTwice(), dtype=DOUBLE), images(4, dtype=DOUBLE, size=4)
    history, shares = [], []
    shared, last = (reference.ReferenceSoft(norm, history, shares, 2) for norm in (model.bn0, model.other[1]))
    with torch.no_grad():
        want = last(model.other[0](shared(model.conv1(shared(model.conv0(batch))))))
    assert len(history) == 3
    assert close(soft(model)(batch), want, 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_alpha_one_is_the_plain_model_to_the_bit(dtype):
    model, batch = tiny(dtype), images(9, dtype=dtype)
    assert same_bits(soft(model, alpha=1)(batch), plain(model, batch))


def test_a_huge_threshold_leaves_the_plain_model():
    model, batch = tiny(DOUBLE), images(9, dtype=DOUBLE)
    want = plain(model, batch)
    distance = [float((soft(model, threshold=t)(batch) - want).abs().max()) for t in (0.15, 10.0, 1e3, 1e6)]
    assert distance == sorted(distance, reverse=True)
    assert distance[0] > 0.01
    assert distance[-1] < 1e-12


def test_with_all_weight_on_one_neighbourhood_it_is_alpha_bn():
    # So low a threshold is passed by any drift, and so high a temperature makes all samples neighbours.
    model, batch = tiny(DOUBLE), images(9, dtype=DOUBLE)
    got = soft(model, alpha=0.6, temperature=1e12, threshold=1e-30, guard=0)(batch)
    assert close(got, findtta.adapt(model, "alpha-bn", alpha=0.6)(batch), 1e-9)


def test_one_sample_has_its_own_statistics_and_the_gate():
    norm, batch = filled(nn.BatchNorm2d(3), dtype=DOUBLE), images(1, dtype=DOUBLE)
    source = norm.running_mean, norm.running_var
    own = instance_moments(batch)
    shift, stretch = in_source_units(*own, *source, norm.eps)
    trust = 0.3 * drift_gate(log_drift(shift, stretch**2, torch.ones(1)), 1, 0.15, 6.0)[:, None]
    blended = [(1 - trust) * s + trust * o for s, o in zip(source, own, strict=True)]
    want = normalize(batch, *blended, norm.weight, norm.bias, norm.eps)
    assert close(soft(norm)(batch), want.detach(), 1e-12)


def test_a_layer_without_running_statistics_takes_the_batch_for_the_source():
    norm = filled(nn.BatchNorm2d(3, track_running_stats=False), dtype=DOUBLE)
    batch = images(6, dtype=DOUBLE)
    with_source = filled(nn.BatchNorm2d(3), dtype=DOUBLE)
    with_source.load_state_dict(norm.state_dict(), strict=False)
    mean, variance = batch_moments(*instance_moments(batch))
    with_source.running_mean.copy_(mean)
    with_source.running_var.copy_(variance)
    assert close(soft(norm)(batch), soft(with_source)(batch), 1e-12)


@pytest.mark.parametrize("net", [tiny, lambda: filled(Windows())])
def test_batches_before_leave_no_trace(net):
    adapted, batches = soft(net()), stream(4)
    first = adapted(batches[0])
    assert same_bits(adapted(batches[0]), first)
    for batch in batches[1:]:
        adapted(10 - 4 * batch[:5])
    assert same_bits(adapted(batches[0]), first)


def test_mode_changes_nothing():
    adapted, batch = soft(), images()
    want = adapted(batch)
    assert same_bits(adapted.train()(batch), want)
    for module in list(adapted.model.modules()):
        module.train()
    assert same_bits(adapted(batch), want)
    assert same_bits(adapted.eval()(batch), want)


@settings(max_examples=12)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_permuting_the_batch_permutes_the_outputs(count, seed):
    adapted, batch = shared_soft(), images(count, seed, DOUBLE, size=4)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    assert close(adapted(batch[order]), adapted(batch)[order], 1e-10)


def test_identical_samples_get_identical_outputs():
    adapted, batch = soft(tiny(DOUBLE)), images(6, dtype=DOUBLE)
    output = adapted(torch.cat([batch, batch[2:3]]))
    assert close(output[6], output[2], 1e-11)


@settings(max_examples=20)
@given(
    st.integers(2, 7),
    st.integers(0, 10**6),
    st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e200]),
    st.sampled_from([0.2, 1e6]),
    st.booleans(),
)
def test_a_poisoned_sample_changes_no_other(count, seed, poison, temperature, everywhere):
    adapted, batch = shared_soft(temperature), images(count, seed, DOUBLE, size=4)
    bad = seed % count
    batch[bad, slice(None) if everywhere else 1, 0, 0] = poison
    assert close(without(adapted(batch), bad), adapted(without(batch, bad)), 1e-10)


def test_outputs_do_not_jump():
    adapted, batch = soft(tiny(DOUBLE)), images(8, dtype=DOUBLE)
    step = 1e-7 * randn(*batch.shape, seed=5, dtype=DOUBLE)
    distance = [float((adapted(batch + k * step) - adapted(batch)).abs().max()) for k in (1, 2)]
    assert 0 < distance[0] < 1e-4
    assert distance[1] == pytest.approx(2 * distance[0], rel=0.01)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"alpha": 1.5}, "alpha must be a number from 0 to 1, got 1.5"),
        ({"alpha": "0.5"}, "alpha"),
        ({"alpha": True}, "alpha"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"threshold": 0.0}, "threshold must be above 0"),
        ({"threshold": -1}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"sharpness": -1}, "sharpness must be a number of at least 0, got -1"),
        ({"sharpness": "4"}, "sharpness"),
        ({"guard": 1.5}, "guard must be a number from 0 to 1, got 1.5"),
        ({"guard": "on"}, "guard"),
    ],
)
def test_wrong_options_are_named(options, complaint):
    with pytest.raises(OptionError, match=complaint):
        soft(**options)


def test_report_has_a_score_per_layer():
    adapted, batch = soft(), images()
    assert [layer.score for layer in adapted.report()] == [None] * 4
    adapted(batch)
    scores = [layer.score for layer in adapted.report()]
    assert all(isinstance(score, float) and score > 0 for score in scores)
    adapted(batch + 5)
    assert adapted.report()[0].score > scores[0]
    assert all(layer.groups is None and layer.split is None for layer in adapted.report())
    adapted.reset()
    assert [layer.score for layer in adapted.report()] == [None] * 4


def test_the_score_is_the_mean_drift_of_the_samples():
    norm, batch = filled(nn.BatchNorm2d(3), dtype=DOUBLE), images(5, dtype=DOUBLE)
    adapted, history = soft(norm), []
    adapted(batch)
    reference.ReferenceSoft(norm, history)(batch)
    assert adapted.report()[0].score == pytest.approx(float(torch.tensor(history[0]).exp().mean()), rel=1e-6)


def test_an_exception_inside_the_model_leaves_no_evidence():
    adapted, batch = soft(filled(Fails())), images()
    want = adapted(batch)
    with pytest.raises(RuntimeError, match="between the layers"):
        adapted(batch - 7, fail=True)
    assert adapted.call.carried is None
    assert same_bits(adapted(batch), want)


def test_parts_that_are_called_by_hand_are_refused():
    adapted, batch = soft(), images()
    want = adapted(batch)
    for part in (adapted.model, adapted.model.stem, adapted.stem):
        with pytest.raises(InputError, match="called outside of the model"):
            part(batch)
    assert same_bits(adapted(batch), want)


@pytest.mark.parametrize("carry", [copy.deepcopy, lambda adapted: pickle.loads(pickle.dumps(adapted))])
def test_a_copy_collects_evidence_of_its_own(carry):
    adapted, batch = soft(), images()
    want = adapted(batch)
    duplicate = carry(adapted)
    assert duplicate.call is not adapted.call
    assert all(layer.call is duplicate.call for _, layer in duplicate.layers())
    assert same_bits(duplicate(batch), want)


def mean_over_history(history, rows):
    """What :class:`Evidence` gives for the last of several layers, with plain loops over Python floats."""
    samples = len(history[0])
    if rows % samples:
        return history[-1]
    per_layer = []
    for drift in history:
        if len(drift) % samples:
            continue
        windows = len(drift) // samples
        per_layer.append([sum(drift[i * windows : (i + 1) * windows]) / windows for i in range(samples)])
    means = [sum(layer[i] for layer in per_layer) / len(per_layer) for i in range(samples)]
    return [means[row * samples // rows] for row in range(rows)]


@given(st.integers(1, 6), st.lists(st.integers(1, 18), min_size=0, max_size=6), st.integers(0, 10**6))
def test_evidence_equals_plain_loops(samples, rows, seed):
    evidence, history = Evidence(), []
    for layer, count in enumerate([samples, *rows]):
        drift = some_numbers(count, seed + layer)
        history.append(drift.tolist())
        want = torch.tensor(mean_over_history(history, count), dtype=DOUBLE)
        assert close(evidence.add(drift)[0], want, 1e-12)


def test_windows_share_what_is_known_of_their_image():
    evidence = Evidence()

    def add(*drift):
        mean, layers = evidence.add(torch.tensor(drift))
        return mean.tolist(), layers

    assert add(1.0, 5.0) == ([1, 5], 1)
    assert add(0.0, 2.0, 4.0, 3.0, 3.0, 3.0) == ([1.5] * 3 + [4] * 3, 2)
    assert add(9.0, 9.0, 9.0) == ([9, 9, 9], 1)  # 3 rows of 2 images
    assert add(0.0, 1.0) == ([1, 3], 3)


def test_a_network_that_looks_at_windows_equals_its_parts():
    model, batch = filled(Windows(), dtype=DOUBLE), images(5, dtype=DOUBLE)
    adapted, want = soft(model), []
    adapted(batch)
    evidence = Evidence()
    for _, layer in adapted.layers():
        want.append(evidence.add(layer.last_batch["drift"])[0])
    assert [len(rows) for rows in want] == [5, 20, 5]
    shared = want[1].view(5, 4)
    assert torch.equal(shared, shared[:, :1].expand(5, 4))
    assert adapted(batch).isfinite().all()


def test_the_guard_moves_samples_that_are_alike_only_late_towards_the_source():
    model = filled(nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(3))), dtype=DOUBLE)
    unlike, alike = 3 * randn(32, 4, 1, 1, dtype=DOUBLE), 3 * randn(1, 4, 1, 1, seed=1, dtype=DOUBLE)
    noise = randn(32, 4, 5, 5, seed=2, dtype=DOUBLE)
    adapted, unguarded = soft(model), soft(model, guard=0)
    for outer in (model, adapted.model, unguarded.model):
        outer[0].register_forward_hook(lambda *_: unlike + noise)  # what the second layer sees
        outer[1].register_forward_hook(lambda *_: alike + noise)
    got, without_guard, source = adapted(unlike + noise), unguarded(unlike + noise), plain(model, unlike + noise)
    assert (got - source).abs().mean() < 0.05 * (without_guard - source).abs().mean()


def test_windows_of_an_image_count_as_one_for_the_guard():
    shift, common = randn(2, 3, 4, seed=1, dtype=DOUBLE)
    alike = common[:1] + shift / 5
    whole, parts = Evidence(), Evidence()
    for evidence, last in ((whole, alike), (parts, alike.repeat_interleave(4, 0))):
        for _ in range(2):
            evidence.add(torch.zeros(3, dtype=DOUBLE))
            assert evidence.guard(shift, 3) == 1
        evidence.add(torch.zeros(len(last), dtype=DOUBLE))
        evidence.last = evidence.guard(last, 3)
    assert whole.last < 0.3
    assert close(parts.last, whole.last, 1e-12)
    assert parts.guard(shift.repeat(2, 1)[:4], 3) == 1  # 4 rows of 3 images


def test_windows_of_one_image_need_no_others():
    adapted, batch = soft(filled(Windows(), dtype=DOUBLE), temperature=1e-9), images(1, dtype=DOUBLE)
    twice = adapted(torch.cat([batch, batch]))
    assert close(twice[:1], twice[1:], 1e-12)


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def small_net():
    return filled(
        nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4), nn.BatchNorm2d(4), nn.Flatten(2))
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("net", [small_net, lambda: filled(Windows())])
def test_exported_program_equals_the_model(net):
    adapted = soft(net())
    exported = program(adapted, images(2)).module()
    for count in (1, 2, 7, 33):
        assert close(exported(images(count, seed=count)), adapted(images(count, seed=count)), 1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("net", [small_net, lambda: filled(Windows())])
def test_one_compiled_graph_equals_the_model(net, fresh_compiler):
    adapted, counter = soft(net()), CompileCounter()
    compiled = torch.compile(adapted, fullgraph=True, backend=counter)
    for count in (4, 7, 33, 5):
        assert close(compiled(images(count, seed=count)), adapted(images(count, seed=count)), 1e-5)
    assert 1 <= counter.frame_count <= 3
    assert adapted.call.carried is None
