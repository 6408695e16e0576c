"""One adapted model called in unusual ways: from threads, in parts, by other names, across processes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import findtta
from findtta.errors import InputError, UnusedLayerWarning
from findtta.layers.adaptive import AdaptiveNorm
from findtta.registry import load_method
from nets import METHODS, TinyNet, UnusedLayer, close, filled, images, in_threads, same_bits, tiny

LEARNING = ["tent", "eata", "sar", "deyo", "note", "rotta", "vida"]


def test_threads_get_the_report_of_their_own_batch():
    adapted = findtta.adapt(tiny())

    def groups(batch):
        adapted(batch)
        return [layer.groups for layer in adapted.report()]

    batches = [images(2 + index % 9, seed=index) for index in range(60)]
    assert in_threads(groups, batches, 4) == [groups(batch) for batch in batches]


@pytest.mark.parametrize("method", ["find-star", "tent"])
def test_methods_that_learn_take_one_call_after_the_other(method):
    running, most = [], []

    class Watched(load_method(method)):
        def run(self, *args, **kwargs):
            running.append(1)
            most.append(len(running))
            try:
                return super().run(*args, **kwargs)
            finally:
                running.pop()

    adapted = findtta.adapt(tiny(), Watched, **({"cold_start": 16} if method == "find-star" else {}))
    outputs = in_threads(adapted, [images(6, seed=index) for index in range(16)])
    assert all(output.isfinite().all() for output in outputs)
    assert max(most) == 1
    if method == "find-star":
        assert adapted.warm_up_left == 0


# Parts of a model.


class WithParts(TinyNet):
    def features(self, x):
        return self.forward(x) * 2


@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_the_model_equals_a_whole_call(method):
    torch.manual_seed(0)
    model = filled(WithParts())
    adapted, batch = findtta.adapt(model, method), images()
    with torch.no_grad():
        assert close(adapted.features(batch), adapted(batch) * 2, 1e-6)
    assert adapted.features.__name__ == "features"


class WithHead(TinyNet):
    """A model whose head has a BatchNorm layer too, with a method for each part as in timm."""

    def forward_features(self, x):
        x = self.stem(x)
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))).mean((2, 3))

    def forward_head(self, x):
        return self.head(x)

    def classifier(self):
        return self.head[-1]


@pytest.mark.parametrize("called_before", [False, True])
def test_a_method_that_begins_in_the_middle_is_refused_where_that_changes_the_result(called_before):
    model, batch = filled(WithHead()), images()
    exact, soft = findtta.adapt(model, "find"), findtta.adapt(model, "find-soft")
    whole = soft(batch) if called_before else findtta.adapt(model, "find-soft")(batch)
    features = soft.forward_features(batch)
    with pytest.raises(InputError, match="forward_head begins in the middle of the model"):
        soft.forward_head(features)
    assert close(soft(batch), whole, 1e-6)
    assert close(exact.forward_head(exact.forward_features(batch)), exact(batch), 1e-6)


def test_the_report_is_of_the_last_batch_that_went_through_layers():
    adapted, batch = findtta.adapt(filled(WithHead())), images()
    adapted(batch)
    whole = [line.groups for line in adapted.report()]
    adapted.classifier()
    assert [line.groups for line in adapted.report()] == whole
    adapted.forward_features(batch)
    assert [line.groups for line in adapted.report()] == [*whole[:3], None]


class CallsTheFunction(nn.Module):
    """Normalises with the tensors of a layer, without calling the layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def forward(self, x):
        bn = self.bn
        x = F.batch_norm(
            self.conv(x), bn.running_mean, bn.running_var, bn.weight, bn.bias, training=False, eps=bn.eps
        )
        return self.last(x.relu())

    def by_method(self, x):
        return self.forward(x)


class CallsTheLayer(CallsTheFunction):
    def forward(self, x):
        return self.last(self.bn(self.conv(x)).relu())


@pytest.mark.parametrize("method", ["tbn", "alpha-bn", "iabn", "find", "find-star", "find-soft", "tent"])
def test_a_functional_call_with_the_tensors_of_a_layer_is_adapted(method):
    class Logits(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, x):
            return self.part(x).mean((2, 3))

    function, layer = (Logits(filled(kind())) for kind in (CallsTheFunction, CallsTheLayer))
    function.load_state_dict(layer.state_dict())
    by_function, by_layer = findtta.adapt(function, method), findtta.adapt(layer, method)
    for seed in range(3):  # the first batch finds out, the others rely on it
        assert close(by_function(images(seed=seed)), by_layer(images(seed=seed)), 1e-6)
    assert [line.groups for line in by_function.report()] == [line.groups for line in by_layer.report()]
    fresh = findtta.adapt(function.part, method)
    with torch.no_grad():  # as a method of the model, and before any whole call
        assert close(fresh.by_method(images()), findtta.adapt(layer.part, method).by_method(images()), 1e-6)
    moved = copy.deepcopy(by_function).to(torch.float64)  # with tensors other than those it was found with
    assert close(moved(images(seed=5).double()).float(), by_layer(images(seed=5)), 1e-4)


def test_layers_that_never_run_are_named_once():
    adapted = findtta.adapt(filled(UnusedLayer()))
    with pytest.warns(UnusedLayerWarning, match=r"1 of its 3 BatchNorm layers \(spare\)"):
        adapted(images())
    assert {line.name: line.split for line in adapted.report()}["spare"] is None
    adapted(images())  # warnings are errors here: it does not warn again


def test_an_own_normalisation_with_the_tensors_of_a_layer_is_warned_about():
    class OwnMaths(CallsTheLayer):
        def forward(self, x):
            bn = self.bn
            scale = (bn.weight / (bn.running_var + bn.eps).sqrt()).view(-1, 1, 1)
            x = (self.conv(x) - bn.running_mean.view(-1, 1, 1)) * scale + bn.bias.view(-1, 1, 1)
            return self.last(x)

    with pytest.warns(UnusedLayerWarning, match=r"1 of its 2 BatchNorm layers \(bn\)"):
        findtta.adapt(filled(OwnMaths()))(images())


# Checkpoints.


@pytest.mark.parametrize("method", [*METHODS, *LEARNING])
def test_the_state_dict_has_the_keys_of_the_model(method):
    model = tiny()
    adapted = findtta.adapt(model, method)
    state, plain = adapted.state_dict(), model.state_dict()
    assert [key for key in state if "adaptation." not in key] == list(plain)
    if not adapted.stateful:
        assert list(state) == list(plain)
        tiny(seed=3).load_state_dict(state)


@pytest.mark.parametrize("method", [*METHODS, *LEARNING])
def test_loading_the_weights_of_a_source_model_starts_anew_from_them(method):
    adapted, other = findtta.adapt(tiny(), method), tiny(seed=3)
    for seed in range(3):
        adapted(images(seed=seed))
    adapted.load_state_dict(other.state_dict())
    fresh = findtta.adapt(other, method)
    for seed in range(3, 6):
        assert close(adapted(images(seed=seed)), fresh(images(seed=seed)), 1e-6)
    adapted.reset()
    fresh.reset()
    assert close(adapted(images()), fresh(images()), 1e-6)
    assert adapted.warm_up_left == fresh.warm_up_left


@pytest.mark.parametrize("method", ["find-star", "tent", "rotta"])
def test_a_state_of_its_own_is_loaded_and_the_stream_goes_on(method):
    adapted = findtta.adapt(tiny(), method)
    for seed in range(3):
        adapted(images(seed=seed))
    resumed = findtta.adapt(tiny(seed=3), method)
    resumed.load_state_dict(adapted.state_dict())
    for seed in range(3, 6):
        assert same_bits(resumed(images(seed=seed)), adapted(images(seed=seed)))


def test_the_keys_are_the_same_inside_a_larger_module():
    model = nn.Sequential(tiny(), nn.Linear(4, 2))
    larger = nn.Sequential(findtta.adapt(model[0]), model[1])
    assert list(larger.state_dict()) == list(model.state_dict())
    larger.load_state_dict(model.state_dict())
    assert any(isinstance(module, AdaptiveNorm) for module in larger.modules())


# Gradients and processes.


@pytest.mark.parametrize("method", ["find", "find-soft"])
def test_a_gradient_is_refused_with_a_hint(method):
    adapted, batch = findtta.adapt(tiny(), method), images().requires_grad_()
    with pytest.raises(InputError, match="unwrap"):
        adapted(batch).sum().backward()
    assert not adapted(images()).requires_grad
    with torch.no_grad():
        assert not adapted(batch).requires_grad


def answer_in_another_process(adapted, batch, answers):
    answers.put(adapted(batch).numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["find-star", "tent", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("eata", "note", "rotta"))],
)
def test_an_adapted_model_goes_to_a_spawned_process(method):
    context = torch.multiprocessing.get_context("spawn")
    adapted, batch, answers = findtta.adapt(tiny(), method), images(), context.Queue()
    process = context.Process(target=answer_in_another_process, args=(adapted, batch, answers))
    process.start()
    answer = answers.get(timeout=120)
    process.join(timeout=60)
    assert process.exitcode == 0
    assert close(torch.from_numpy(answer), findtta.adapt(tiny(), method)(batch), 1e-6)
