import copy
import pickle
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

import findtta
from findtta import plugins
from findtta.algorithms.alpha_bn import AlphaBN
from findtta.algorithms.tbn import TBN
from findtta.errors import FindTTAError, OptionError, UnknownNameError, UnsupportedModelError
from nets import (
    METHODS,
    OwnMathsNorm,
    TinyNet,
    assert_same_snapshot,
    conv,
    filled,
    images,
    same_bits,
    snapshot,
    stream,
    tiny,
)

# Plain and wrapped models


def model_in_mixed_modes():
    model = tiny().train()
    model.stem.eval()
    model.head[1].eval()
    model.conv1.weight.requires_grad_(False)
    model.bn1.register_forward_hook(lambda *_: None)
    model.conv2.register_forward_pre_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("method", METHODS)
def test_the_users_model_is_not_touched(method):
    model = model_in_mixed_modes()
    before = snapshot(model)
    adapted = findtta.adapt(model, method)
    for batch in stream(3):
        adapted(batch)
    adapted.reset()
    findtta.unwrap(adapted)
    assert_same_snapshot(before, snapshot(model))


@pytest.mark.parametrize("method", METHODS)
def test_unwrapping_in_place_gives_the_very_same_model_back(method):
    model = model_in_mixed_modes()
    before = snapshot(model)
    adapted = findtta.adapt(model, method, inplace=True)
    for batch in stream(3):
        adapted(batch)
    assert findtta.unwrap(adapted) is model
    assert_same_snapshot(before, snapshot(model))


def test_unwrapping_in_place_a_model_that_is_a_batch_norm_layer():
    norm = nn.BatchNorm2d(3)
    assert findtta.unwrap(findtta.adapt(norm, inplace=True)) is norm
    assert norm.training


@pytest.mark.parametrize("method", METHODS)
def test_unwrapping_a_copy_equals_the_source_and_leaves_the_adapted_model(method):
    model, batch = tiny(), images()
    adapted = findtta.adapt(model, method)
    first = adapted(batch)
    plain = findtta.unwrap(adapted)
    assert plain is not model
    assert [type(module) for module in plain.modules()] == [type(module) for module in model.modules()]
    with torch.no_grad():
        assert same_bits(plain(batch), model(batch))
    assert same_bits(adapted(batch), first)


def test_unwrapping_a_compiled_model():
    adapted = findtta.adapt(tiny())
    assert type(findtta.unwrap(torch.compile(adapted, backend="eager"))) is TinyNet


def test_unwrapping_a_plain_model_is_refused():
    with pytest.raises(UnsupportedModelError, match="got a TinyNet, which is not adapted"):
        findtta.unwrap(tiny())


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), nn.GroupNorm(1, 3), OwnMathsNorm(3)])
def test_a_refused_model_is_not_touched_even_in_place(layer):
    model = nn.Sequential(layer).train()
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError):
        findtta.adapt(model, inplace=True)
    assert_same_snapshot(before, snapshot(model))


# Names and options


def test_an_unknown_method_is_refused_with_close_matches():
    with pytest.raises(UnknownNameError, match=r"one of .*find.*, got 'fnd'\. Did you mean .*'find'") as error:
        findtta.adapt(tiny(), "fnd")
    assert all(method in str(error.value) for method in METHODS)


def test_an_unknown_option_is_refused_with_close_matches_and_meanings():
    with pytest.raises(UnknownNameError, match=r"'find-star' has no option 'treshold'") as error:
        findtta.adapt(tiny(), "find-star", treshold=0.1)
    message = str(error.value)
    assert "Did you mean 'threshold'?" in message
    for option, (default, meaning) in findtta.methods()["find-star"].options.items():
        assert f"{option} (default {default!r}): {meaning}" in message


@pytest.mark.parametrize("method", ["source", "tbn"])
def test_a_method_without_options_says_so(method):
    with pytest.raises(UnknownNameError, match="It has no options"):
        findtta.adapt(tiny(), method, alpha=0.5)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("find", {"alpha": 1.1}, "alpha must be a number from 0 to 1, got 1.1"),
        ("find", {"alpha": -0.1}, "alpha"),
        ("find", {"alpha": "high"}, "got 'high'"),
        ("find", {"alpha": True}, "got True"),
        ("find", {"alpha": None}, "got None"),
        ("alpha-bn", {"alpha": float("nan")}, "got nan"),
        ("find-star", {"alpha": 2}, "alpha"),
        ("find-star", {"threshold": "0.1"}, "threshold must be a number"),
        ("find-star", {"threshold": float("nan")}, "threshold"),
        ("find-star", {"cold_start": 0}, "cold_start must be a whole number of at least 1, got 0"),
        ("find-star", {"cold_start": 2.5}, "cold_start"),
        ("find-star", {"cold_start": True}, "cold_start"),
    ],
)
def test_an_option_outside_its_range_is_refused(method, options, message):
    with pytest.raises(OptionError, match=message):
        findtta.adapt(tiny(), method, **options)


@pytest.mark.parametrize("error", [UnknownNameError, OptionError])
def test_errors_about_arguments_are_value_errors(error):
    assert issubclass(error, ValueError)
    assert issubclass(error, FindTTAError)


# Models that cannot be adapted


def fused_model():
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(conv(3, 6), nn.ReLU()), r"model \(Sequential\) has no BatchNorm layer"),
        (fused_model, "fused into the convolutions. In that case, adapt it before fusing"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), "normalises with LayerNorm"),
        (lambda: nn.Sequential(conv(3, 6), nn.GroupNorm(2, 6)), "normalises with GroupNorm"),
        (lambda: findtta.adapt(tiny()), r"already adapted \(method 'find'\).*findtta.unwrap"),
        (
            lambda: torch.compile(tiny(), backend="eager"),
            r"compiled already.*torch.compile\(findtta.adapt\(model\)\)",
        ),
        (lambda: "resnet50", "must be a torch.nn.Module, got str"),
        (lambda: TinyNet, "must be a torch.nn.Module, got type"),
        (lambda: tiny().state_dict(), "must be a torch.nn.Module, got OrderedDict"),
    ],
)
def test_a_model_that_cannot_be_adapted_is_refused_with_the_reason(make, message):
    with pytest.raises(UnsupportedModelError, match=message):
        findtta.adapt(make())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused():
    scripted = torch.jit.trace(tiny(), images())
    with pytest.raises(UnsupportedModelError, match="TorchScript"):
        findtta.adapt(scripted)


def test_a_part_that_is_adapted_already_is_refused():
    with pytest.raises(UnsupportedModelError, match="already adapted"):
        findtta.adapt(nn.Sequential(findtta.adapt(tiny()), nn.BatchNorm1d(4)))


def test_a_model_that_cannot_be_copied_can_be_adapted_in_place():
    model = tiny()
    model.stuck = open(__file__)  # noqa: SIM115, PTH123
    with pytest.raises(UnsupportedModelError, match=r"cannot be copied .* Pass inplace=True"):
        findtta.adapt(model)
    assert findtta.adapt(model, inplace=True)(images()).shape == (8, 4)
    model.stuck.close()


# The adapted model as a module


@pytest.mark.parametrize("method", METHODS)
def test_attributes_of_the_model_can_be_read(method):
    adapted = findtta.adapt(tiny(), method)
    assert adapted.classes == 4
    assert adapted.conv1 is adapted.model.conv1
    with pytest.raises(AttributeError, match="nonsense"):
        _ = adapted.nonsense


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("carry", [copy.deepcopy, lambda adapted: pickle.loads(pickle.dumps(adapted))])
def test_copies_and_pickles_go_on_alike(method, carry):
    adapted, batches = findtta.adapt(tiny(), method), stream(3)
    adapted(batches[0])
    other = carry(adapted)
    assert all(same_bits(other(batch), adapted(batch)) for batch in batches[1:])


def test_repr_names_the_method_and_its_options():
    assert "method='find', alpha=0.7" in repr(findtta.adapt(tiny(), alpha=0.7))


def test_the_layers_of_a_copy_share_its_call_state_and_not_the_originals():
    adapted = findtta.adapt(tiny())
    duplicate = copy.deepcopy(adapted)
    assert duplicate.call is not adapted.call
    assert all(layer.call is duplicate.call for _, layer in duplicate.layers())


# The report


@pytest.mark.parametrize("method", METHODS)
def test_report_lists_the_adapted_layers(method):
    report = findtta.adapt(tiny(), method).report()
    expected = [("stem.1", "BatchNorm2d", 6), ("bn1", "BatchNorm2d", 6), ("bn2", "BatchNorm2d", 6)]
    expected = [] if method == "source" else [*expected, ("head.1", "BatchNorm1d", 5)]
    assert [(layer.name, layer.kind, layer.channels) for layer in report] == expected
    assert all(name in str(report) for name, _, _ in expected)


def test_report_of_find_counts_the_groups_of_the_last_batch():
    adapted = findtta.adapt(filled(nn.BatchNorm1d(2)))
    assert adapted.report()[0].groups is None
    two_directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.1, 3.0]])
    adapted(two_directions)
    assert adapted.report()[0].groups == 2
    adapted(two_directions[:2])
    assert adapted.report()[0].groups == 1
    adapted.reset()
    assert adapted.report()[0].groups is None


def test_report_prints_as_an_aligned_table():
    adapted = findtta.adapt(tiny())
    adapted(images())
    lines = str(adapted.report()).splitlines()
    assert lines[0].split() == ["name", "kind", "channels", "groups", "score", "split"]
    assert len(lines) == 2 + 4
    assert len({line.index(line.split()[1]) for line in lines[2:]}) == 1


# The catalogue


def test_catalogue_describes_the_built_in_methods():
    catalogue = findtta.methods()
    assert set(METHODS) <= set(catalogue)
    for name in METHODS:
        info = catalogue[name]
        assert info.name == name
        assert info.summary
        assert info.citation
        assert all(meaning for _, meaning in info.options.values())
        assert name in str(catalogue)
    assert {name: default for name, (default, _) in catalogue["find-star"].options.items()} == {
        "alpha": 0.8,
        "threshold": 0.1,
        "cold_start": 10,
        "partitioner": "first-neighbor",
        "partitioner_options": None,
        "variance": "biased",
    }
    assert "alpha = 0.8" in str(catalogue["find"])


def test_defaults_are_those_of_the_catalogue():
    model, batch = tiny(), images()
    assert same_bits(findtta.adapt(model)(batch), findtta.adapt(model, "find", alpha=0.8)(batch))


class Mine(TBN):
    name = "mine"
    summary = "batch statistics, under another name"


class Settable(AlphaBN):
    name = "settable"


def test_a_class_can_be_given_as_the_method():
    model, batch = tiny(), images()
    adapted = findtta.adapt(model, Mine)
    assert isinstance(adapted, Mine)
    assert same_bits(adapted(batch), findtta.adapt(model, "tbn")(batch))
    assert findtta.adapt(model, Settable, alpha=0.25).options.alpha == 0.25
    with pytest.raises(UnknownNameError, match="'settable' has no option 'beta'"):
        findtta.adapt(model, Settable, beta=1)


@pytest.mark.parametrize("method", [nn.BatchNorm2d, 3, None])
def test_something_else_as_the_method_is_refused(method):
    with pytest.raises(FindTTAError, match="method"):
        findtta.adapt(tiny(), method)


@pytest.fixture
def third_party(monkeypatch):
    def install(**points):
        found = [EntryPoint(name, value, "findtta.methods") for name, value in points.items()]
        monkeypatch.setattr(plugins, "installed", lambda group: found)

    return install


def test_methods_of_other_packages_are_found(third_party):
    third_party(mine=f"{__name__}:Mine")
    assert findtta.methods()["mine"].summary == Mine.summary
    assert type(findtta.adapt(tiny(), "mine")) is Mine
    with pytest.raises(UnknownNameError, match="Did you mean 'mine'"):
        findtta.adapt(tiny(), "min")


def test_a_built_in_name_cannot_be_taken_over(third_party):
    third_party(find=f"{__name__}:Mine")
    assert findtta.adapt(tiny(), "find").name == "find"


def test_an_entry_point_that_is_no_method_is_refused_by_name(third_party):
    third_party(broken=f"{__name__}:tiny")
    with pytest.raises(FindTTAError, match=r"'broken' must name a subclass of findtta\.Adapted"):
        findtta.adapt(tiny(), "broken")


@pytest.mark.filterwarnings("ignore:.*broken")
def test_a_broken_package_does_not_hide_the_other_methods(third_party):
    third_party(broken="no_such_package:Method")
    assert set(METHODS) <= set(findtta.methods())
    assert findtta.adapt(tiny(), "find").name == "find"


class CachesResults(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.bn = nn.BatchNorm1d(4)
        self.cache = {}

    def forward(self, x):
        if "scale" not in self.cache:
            self.cache["scale"] = self.scale * 3
        return self.bn(x * self.cache["scale"])


def test_a_model_that_has_cached_results_with_gradients_can_be_adapted():
    model, batch = CachesResults().eval(), torch.ones(3, 4)
    model(batch)
    cached = model.cache["scale"]
    adapted = findtta.adapt(model, alpha=1.0)
    assert torch.equal(adapted(batch), model(batch).detach())
    assert model.cache["scale"] is cached


# A method of one's own


class MedianNorm(findtta.AdaptiveNorm):
    """Normalises every channel by the median of all its values."""

    needs_features = True

    def __init__(self, norm, calls):
        super().__init__(norm)
        self.calls = calls

    def statistics(self, mean, variance, features):
        self.calls.append(features.shape)
        centre = features.transpose(0, 1).flatten(1).median(1).values
        return centre, self.source_statistics(mean, variance)[1]


class Median(findtta.Adapted):
    name = "median"
    summary = "medians in place of means"
    citation = "none"

    def prepare(self, model, sites):
        self.calls = []
        self.names = [site.name for site in sites]

    def make_layer(self, norm):
        return MedianNorm(norm, self.calls)


def test_a_method_of_ones_own_prepares_before_its_layers_and_gets_the_features():
    model, batch = filled(nn.Sequential(nn.BatchNorm2d(3))), images(5)
    adapted = findtta.adapt(model, Median)
    assert adapted.names == ["0"]
    got = adapted(batch)
    assert adapted.calls == [batch.shape]
    median = batch.transpose(0, 1).flatten(1).median(1).values
    want = nn.functional.batch_norm(batch, median, model[0].running_var, model[0].weight, model[0].bias)
    assert torch.allclose(got, want, atol=1e-6)


def test_layers_are_found_once(monkeypatch):
    from findtta.layers import surgery

    calls, find_norms = [], surgery.find_norms
    monkeypatch.setattr(surgery, "find_norms", lambda model: calls.append(model) or find_norms(model))
    findtta.adapt(tiny(), "find")
    assert len(calls) == 1
