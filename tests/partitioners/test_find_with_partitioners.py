"""FIND and FIND* with something else in the place of LFD."""

import copy
import dataclasses
import functools
import json
import pickle

import pytest
import torch
from torch import nn

import findtta
import reference
from findtta.errors import OptionError, UnknownNameError
from findtta.functional import blend, group_moments, instance_moments, normalize, partition
from findtta.partitioners import make_partitioner, partitioner_names
from nets import close, filled, images, replaced, same_bits, stream, tiny

CLUSTER_EXTRA = ("kmeans", "agglomerative", "birch", "dbscan", "hdbscan", "rcc")
METHODS = ("find", "find-star")
# Whether layers write over their inputs is tested elsewhere, and finding out where they may takes long.
adapt = functools.partial(findtta.adapt, reuse_buffers=False)
by_name = pytest.mark.parametrize("name", partitioner_names())


@pytest.fixture(autouse=True)
def needs_scikit_learn(request):
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name in CLUSTER_EXTRA:
        pytest.importorskip("sklearn")


class PlainFABN(nn.Module):
    """FIND's layer, spelled out with the pure functions."""

    def __init__(self, norm, partitioner):
        super().__init__()
        self.norm, self.partitioner = norm, partitioner

    def forward(self, features):
        mean, variance = instance_moments(features)
        test_mean, test_variance = group_moments(mean, variance, self.partitioner(mean))
        norm = self.norm
        mean, variance = blend(test_mean, norm.running_mean, 0.8), blend(test_variance, norm.running_var, 0.8)
        return normalize(features, mean, variance, norm.weight, norm.bias, norm.eps)


@by_name
def test_find_normalises_the_groups_that_the_partitioner_makes(name):
    model = tiny()
    expected = replaced(model, lambda norm: PlainFABN(norm, make_partitioner(name)))
    adapted = adapt(model, "find", partitioner=name)
    with torch.no_grad():
        for batch in stream(2, count=12):
            assert same_bits(adapted(batch), expected(batch))


def test_the_default_is_the_paper_s_partition_to_the_bit():
    model = tiny()
    default, named = findtta.adapt(model), findtta.adapt(model, partitioner="first-neighbor")
    expected = replaced(model, lambda norm: PlainFABN(norm, partition))
    with torch.no_grad():
        for batch in stream(3):
            assert same_bits(default(batch), expected(batch))
            assert same_bits(named(batch), expected(batch))
    assert all(layer.partition is partition for adapted in (default, named) for _, layer in adapted.layers())


@pytest.mark.parametrize("count", [1, 2, 9])
def test_one_group_is_alpha_bn(count):
    model, batch = tiny(torch.float64), images(count, dtype=torch.float64)
    whole = adapt(model, "find", partitioner="none", alpha=0.7)
    assert close(whole(batch), adapt(model, "alpha-bn", alpha=0.7)(batch), 1e-12)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_groups_of_one_are_instance_statistics(count):
    model, batch = tiny(torch.float64), images(count, dtype=torch.float64)

    class InstanceNorm(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm

        def forward(self, features):
            return torch.cat([reference.fabn(sample[None], self.norm, 0.8, [0]) for sample in features])

    adapted = adapt(model, "find", partitioner="instance")
    with torch.no_grad():
        assert close(adapted(batch), replaced(model, InstanceNorm)(batch), 1e-10)
    alone = torch.cat([adapted(sample[None]) for sample in batch])
    assert close(adapted(batch), alone, 1e-12)


@by_name
@pytest.mark.parametrize("method", METHODS)
def test_a_poisoned_sample_does_not_change_the_others(method, name):
    if name == "random":
        pytest.skip("the permutation depends on the size of the batch")
    batch = images(12)
    bad = torch.cat([batch[:5], torch.full_like(batch[:1], torch.nan), batch[5:]])
    clean = adapt(tiny(), method, partitioner=name)(batch)
    outputs = adapt(tiny(), method, partitioner=name)(bad)
    assert close(torch.cat([outputs[:5], outputs[6:]]), clean, 1e-5)


@by_name
@pytest.mark.parametrize("method", METHODS)
def test_the_report_counts_the_groups(method, name):
    adapted = adapt(tiny(), method, partitioner=name)
    adapted(images(12))
    counts = {layer.groups for layer in adapted.report()}
    assert counts <= set(range(1, 13))
    assert counts == {"none": {1}, "instance": {12}}.get(name, counts)


def test_find_star_uses_the_partitioner_where_it_still_splits():
    batches = stream(12)
    plain, whole = (adapt(tiny(), "find-star", partitioner=name) for name in ("first-neighbor", "none"))
    alpha_bn = adapt(tiny(), "alpha-bn", alpha=0.8)
    for batch in batches:
        assert close(whole(batch), alpha_bn(batch), 1e-5)
        assert not close(plain(batch), alpha_bn(batch), 1e-3)
    assert {layer.split for layer in whole.report()} == {True, False}


def test_options_of_the_partitioner_are_passed_on():
    pytest.importorskip("sklearn")
    adapted = adapt(tiny(), partitioner="kmeans", partitioner_options={"clusters": 3})
    adapted(images(12))
    assert {layer.groups for layer in adapted.report()} == {3}


def test_options_of_the_partitioner_are_frozen_and_fit_for_json():
    given = {"threshold": 0.5, "neighbours": 4}
    adapted = adapt(tiny(), partitioner="rcc", partitioner_options=given)
    given["threshold"] = 9.0
    options = adapted.options
    assert options.partitioner_options == (("neighbours", 4), ("threshold", 0.5))
    assert hash(options) == hash(dataclasses.replace(options))
    recorded = json.loads(json.dumps(dataclasses.asdict(options)))
    assert adapt(tiny(), **recorded).options == options
    assert "threshold" in repr(adapted)


@pytest.mark.parametrize("wrong", [3, "threshold=1", [1, 2], {"a"}])
def test_options_that_are_no_mapping_are_refused(wrong):
    with pytest.raises(OptionError, match="partitioner_options must be a mapping"):
        adapt(tiny(), partitioner="rcc", partitioner_options=wrong)


def test_unknown_names_are_refused_when_the_model_is_adapted():
    with pytest.raises(UnknownNameError, match="Did you mean 'random'"):
        adapt(tiny(), partitioner="randm")
    with pytest.raises(UnknownNameError, match=r"'random' has no option 'sed'\. Did you mean 'seed'"):
        adapt(tiny(), "find-star", partitioner="random", partitioner_options={"sed": 1})
    with pytest.raises(OptionError, match=r"must be a name, file\.py:NAME or a function of features, got 7"):
        adapt(tiny(), partitioner=7)
    with pytest.raises(OptionError, match="or a function of features"):
        adapt(tiny(), partitioner=nn.Identity)


# --- functions of the user's own


def halves(features):
    return torch.arange(len(features)).ge(len(features) // 2).long() * -7


@pytest.mark.parametrize("method", METHODS)
def test_a_function_makes_the_groups(method):
    adapted = adapt(tiny(), method, partitioner=halves)
    adapted(images(8))
    assert {layer.groups for layer in adapted.report()} == {2}
    assert all(layer.last_batch["labels"].tolist() == [0] * 4 + [4] * 4 for _, layer in adapted.layers())


def test_a_function_gets_instance_means():
    seen = []

    def note(features):
        seen.append(features.clone())
        return torch.zeros(len(features), dtype=torch.int32)

    model = nn.Sequential(nn.BatchNorm2d(3)).eval()
    batch = images(5)
    adapted = adapt(model, partitioner=note)
    outputs = adapted(batch)
    assert close(seen[0], batch.mean((2, 3)), 1e-6)
    assert close(outputs, adapt(model, "alpha-bn", alpha=0.8)(batch), 1e-5)


def test_a_function_that_puts_a_poisoned_sample_with_others_is_overruled():
    batch = images(8)
    clean = adapt(tiny(), partitioner="none")(batch[1:])
    batch[0] = torch.nan
    adapted = adapt(tiny(), partitioner=lambda features: torch.zeros(len(features)).long())
    assert close(adapted(batch)[1:], clean, 1e-5)


def test_a_partitioner_object_or_a_module_may_stand_for_a_function():
    class Everything(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, features):
            return torch.zeros(len(features), dtype=torch.int64)

    batch = images(8)
    expected = adapt(tiny(), partitioner="none")(batch)
    with_object = adapt(tiny(), partitioner=make_partitioner("none"))
    with_module = adapt(tiny(), partitioner=Everything())
    assert same_bits(with_object(batch), expected)
    assert same_bits(with_module(batch), expected)
    assert with_module.state_dict().keys() == adapt(tiny()).state_dict().keys()


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([0] * 8, "returned a list"),
        (torch.zeros(8), "float32"),
        (torch.zeros(8, dtype=torch.bool), "bool"),
        (torch.zeros(7, dtype=torch.int64), r"shape \(7,\)"),
        (torch.zeros(8, 1, dtype=torch.int64), r"shape \(8, 1\)"),
    ],
)
def test_a_function_that_returns_no_labels_is_refused(returned, problem):
    adapted = adapt(tiny(), partitioner=lambda _: returned)
    with pytest.raises(OptionError, match=rf"partitioner must return a tensor of 8 whole numbers.*{problem}"):
        adapted(images(8))


def test_a_function_takes_no_options():
    with pytest.raises(OptionError, match="must be left out where 'partitioner' is a function"):
        adapt(tiny(), partitioner=halves, partitioner_options={"clusters": 3})


@by_name
def test_an_adapted_model_can_be_copied_pickled_reset_and_unwrapped(name):
    model, batch = tiny(), images(10)
    adapted = adapt(model, partitioner=name)
    expected = adapted(batch)
    for other in (copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted))):
        assert same_bits(other(batch), expected)
    adapted.reset()
    assert same_bits(adapted(batch), expected)
    with torch.no_grad():
        assert same_bits(findtta.unwrap(adapted)(batch), model(batch))


# --- compilation and export


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@by_name
@pytest.mark.parametrize("method", METHODS)
def test_a_model_says_whether_it_can_be_exported_as_configured(method, name):
    adapted = adapt(tiny(), method, partitioner=name)
    if name in ("first-neighbor", "none", "instance"):
        assert adapted.export_problem() is None
    else:
        assert f"partitioner {name!r} cannot be part of a fixed graph" in adapted.export_problem()


def test_a_function_is_exportable_if_it_says_so():
    def everything(features):
        return torch.zeros(features.shape[0], dtype=torch.int64)

    assert "partitioner 'custom'" in adapt(tiny(), partitioner=everything).export_problem()
    everything.exportable = True
    assert adapt(tiny(), partitioner=everything).export_problem() is None


def one_layer():
    return filled(nn.Sequential(nn.BatchNorm2d(3)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "instance", "custom"])
def test_what_says_so_can_be_exported(name, fresh_compiler):
    def alternating(features):
        return torch.arange(features.shape[0]).remainder(2)

    adapted = adapt(one_layer(), partitioner=alternating if name == "custom" else name)
    batch_size = torch.export.Dim("batch", min=2, max=4096)
    program = torch.export.export(adapted, (images(6),), dynamic_shapes=(({0: batch_size},),), strict=False)
    for count in (2, 5, 64):
        assert close(program.module()(images(count)), adapted(images(count)), 1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["instance", "rcc"])
def test_a_compiled_model_computes_the_same(name, fresh_compiler):
    adapted = adapt(one_layer(), partitioner=name)
    compiled = torch.compile(adapted, backend="eager", fullgraph=name == "instance")
    assert close(compiled(images(6)), adapted(images(6)), 1e-5)
