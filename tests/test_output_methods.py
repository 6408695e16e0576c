"""LAME, T3A and pairs such as find+lame; and the instance blend."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import findtta
from findtta.bench import code, naming
from findtta.bench.grid import Grid, expand
from findtta.conformance import check
from findtta.errors import FindTTAError
from findtta.layers.adaptive import AdaptiveNorm
from findtta.plugins import public_name
from findtta.registry import BUILT_IN, describe, load_method
from nets import (
    TinyNet,
    assert_same_snapshot,
    close,
    conv,
    filled,
    images,
    in_threads,
    same_bits,
    snapshot,
    stream,
)
from nets import tiny as small
from reference import ReferenceT3A, lame

EXAMPLES = Path(__file__).parents[1] / "examples"
UNDER = [name for name in BUILT_IN if name not in ("lame", "t3a") and not load_method(name).needs_grad]


def tiny() -> nn.Module:
    """Return a model that is sure enough of two classes for images to become supports."""
    model = small(torch.float64)
    with torch.no_grad():
        model.head[-1].bias.mul_(0.1)
        model.head[-1].weight.mul_(3)
    return model


def parts(method: str, batch: Tensor, **options) -> tuple[Tensor, Tensor]:
    """Features before the classifier and logits, under a method."""
    adapted, kept = findtta.adapt(tiny(), method, **options), []
    adapted.head[-1].register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    logits = adapted(batch)
    return kept[0], logits


@pytest.mark.parametrize("affinity", ["rbf", "knn", "linear"])
@pytest.mark.parametrize("count", [1, 2, 5, 17])
def test_lame_is_what_the_loops_compute(affinity, count):
    batch = images(count, dtype=torch.float64)
    for under in ("source", "find"):
        outputs = findtta.adapt(tiny(), f"{under}+lame", affinity=affinity, neighbours=3)(batch)
        expected = lame(*parts(under, batch), affinity, 3)
        assert close(outputs.exp(), expected, 1e-9)


def test_lame_stops_where_the_loops_do():
    batch = images(17, dtype=torch.float64)
    features, logits = parts("source", batch)
    for steps in (1, 2, 3, 100):
        outputs = findtta.adapt(tiny(), "lame", iterations=steps)(batch)
        assert close(outputs.exp(), lame(features, logits, steps=steps), 1e-9)
    # A loose tolerance ends it at the third iteration, the first that is compared with another.
    loose = findtta.adapt(tiny(), "lame", tolerance=1e9)(batch)
    assert close(loose.exp(), lame(features, logits, steps=3), 1e-9)
    assert not close(loose.exp(), lame(features, logits), 1e-9)


def test_lame_of_equal_images_is_finite_and_keeps_the_prediction():
    batch = images(1, dtype=torch.float64).repeat(6, 1, 1, 1)
    outputs = findtta.adapt(tiny(), "lame")(batch)
    assert outputs.isfinite().all()
    assert close(outputs.exp().sum(1), torch.ones(6), 1e-12)
    assert torch.equal(outputs.argmax(1), tiny()(batch).argmax(1))


@pytest.mark.parametrize("most", [1, 2, 6])
@pytest.mark.parametrize("under", ["source", "instance"])
def test_t3a_is_what_the_loops_compute(most, under):
    adapted = findtta.adapt(tiny(), f"{under}+t3a", supports=most)
    head = tiny().head[-1]
    reference = ReferenceT3A(head.weight.detach(), head.bias.detach(), most)
    for batch in [*stream(3, 7, torch.float64), *stream(2, 1, torch.float64), images(3, dtype=torch.float64)]:
        assert close(adapted(batch), reference(*parts(under, batch)), 1e-9)
    assert adapted.entropies.isfinite().sum(1).tolist() == [len(of_class) for of_class in reference.supports]


def test_t3a_keeps_a_fixed_size_and_starts_anew():
    adapted = findtta.adapt(tiny(), "find+t3a", supports=3)
    shapes = {name: tensor.shape for name, tensor in adapted.state_dict().items()}
    start = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    assert shapes["adaptation.supports"] == (4, 3, 5)
    first = [adapted(batch) for batch in stream(4, dtype=torch.float64)]
    assert {name: tensor.shape for name, tensor in adapted.state_dict().items()} == shapes
    assert not same_bits(adapted.state_dict()["adaptation.supports"], start["adaptation.supports"])
    adapted.reset()
    assert all(same_bits(tensor, start[name]) for name, tensor in adapted.state_dict().items())
    assert all(same_bits(adapted(b), out) for b, out in zip(stream(4, dtype=torch.float64), first, strict=True))
    other = filled(TinyNet(), seed=5, dtype=torch.float64)
    adapted.load_state_dict(other.state_dict())  # of a source model: its weight rows are the first supports
    assert same_bits(adapted.supports, findtta.adapt(other, "t3a", supports=3).supports)


@pytest.mark.parametrize("method", ["lame", "find+lame", "t3a", "instance+t3a"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_poisoned_image_changes_no_other_output(method, poison):
    batch = images(9, dtype=torch.float64)
    others = torch.arange(9) != 4
    batch[4] = poison
    dirty, clean = findtta.adapt(tiny(), method), findtta.adapt(tiny(), method)
    outputs = dirty(batch)
    assert close(outputs[others], clean(batch[others]), 1e-12)
    assert not outputs[4].isfinite().any()
    assert close(dirty(images(9, 1, torch.float64)), clean(images(9, 1, torch.float64)), 1e-12)
    assert not dirty(batch[4:5]).isfinite().any()
    assert dirty(batch[:0]).shape == (0, 4)


@pytest.mark.parametrize("top", ["lame", "t3a"])
@pytest.mark.parametrize("under", UNDER)
def test_every_normalising_method_can_be_under_both(under, top):
    pair, both = describe(load_method(f"{under}+{top}")), [describe(load_method(name)) for name in (under, top)]
    assert pair.name == f"{under}+{top}"
    assert pair.options == {**both[0].options, **both[1].options}
    assert pair.stateful == any(each.stateful for each in both)
    assert pair.exportable == all(each.exportable for each in both)
    assert pair.batch_dependent
    assert not pair.needs_grad
    assert pair.cost == both[0].cost
    adapted, alone = findtta.adapt(tiny(), pair.name), findtta.adapt(tiny(), under)
    batch = images(6, dtype=torch.float64)
    assert adapted(batch).shape == alone(batch).shape
    assert [layer.name for layer in adapted.report()] == [layer.name for layer in alone.report()]
    assert alone.state_dict().keys() <= adapted.state_dict().keys()
    assert adapted.warm_up_left == alone.warm_up_left


@pytest.mark.parametrize("name", ["find+lame:iterations=5", "find-star+t3a", "alpha-bn+t3a"])
def test_pairs_pass_every_check(name):
    assert [outcome for outcome in check(name) if outcome.status == "failed"] == []


@pytest.mark.parametrize("method", ["find+lame", "find-star+t3a"])
@pytest.mark.parametrize("carry", [copy.deepcopy, lambda adapted: pickle.loads(pickle.dumps(adapted))])
def test_copies_and_pickles_of_pairs_go_on_alike(method, carry):
    adapted = findtta.adapt(tiny(), method)
    adapted(images(5, dtype=torch.float64))
    other = carry(adapted)
    assert type(other) is type(adapted)
    for batch in stream(3, dtype=torch.float64):
        assert same_bits(other(batch), adapted(batch))


def test_threads_get_what_they_would_get_alone():
    adapted, batches = findtta.adapt(tiny(), "find+lame", iterations=10), stream(16, 5, torch.float64)
    expected = [adapted(batch) for batch in batches]
    answers = in_threads(adapted, batches, threads=4)
    assert all(same_bits(answer, output) for answer, output in zip(answers, expected, strict=True))


@pytest.mark.parametrize("method", ["lame", "find+t3a"])
def test_unwrap_gives_the_model_back(method):
    model = tiny()
    before = snapshot(model)
    adapted = findtta.adapt(model, method, inplace=True)
    adapted(images(4, dtype=torch.float64))
    assert findtta.unwrap(adapted) is model
    assert_same_snapshot(before, snapshot(model))


def test_layers_may_still_overwrite_their_inputs():
    seen = []
    adapted = findtta.adapt(tiny(), "find+lame")
    for _, layer in adapted.layers():
        layer.observers.append(lambda *_, layer=layer: seen.append(layer.call.may_overwrite))
    adapted(images(4, dtype=torch.float64))
    assert seen
    assert all(seen)


@pytest.mark.parametrize("method", ["find+lame", "instance+t3a"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_nothing_waits_for_the_device(method):
    """One graph without breaks: a value that is read on the host would break it."""
    options = {"iterations": 5} if method == "find+lame" else {}
    adapted, plain = (findtta.adapt(tiny(), method, **options) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(adapted, fullgraph=True, backend="eager")
    for batch in stream(2, dtype=torch.float64):
        assert close(compiled(batch), plain(batch), 1e-9)
    torch._dynamo.reset()


def test_half_precision_and_autocast_keep_their_dtype():
    batch = images(4)
    for method in ("lame", "t3a"):
        half = findtta.adapt(small().bfloat16(), method)(batch.bfloat16())
        assert half.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            outputs = findtta.adapt(small(), method)(batch)
        assert outputs.dtype == torch.bfloat16
        assert outputs.isfinite().all()


# The classifier.


class ConvHead(nn.Module):
    """Its classifier is a 1x1 convolution, as in fully convolutional models."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x)).flatten(1)


class HeadFirst(nn.Module):
    """The classifier is registered before another Linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.norm, self.project = nn.Linear(5, 4), nn.BatchNorm1d(5), nn.Linear(3 * 8 * 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.project(x.flatten(1))).relu())


class Doubled(HeadFirst):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Unused(HeadFirst):
    """The last Linear layer never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(5, 4)


class SeveralOutputs(HeadFirst):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x)}


def test_a_convolution_can_be_the_classifier():
    model, batch = filled(ConvHead(), dtype=torch.float64), images(6, dtype=torch.float64)
    assert close(findtta.adapt(model, "lame")(batch).exp(), lame(model.stem(batch).flatten(1), model(batch)), 1e-9)
    assert findtta.adapt(model, "t3a")(batch).shape == (6, 4)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (HeadFirst, {}, "layer 'project' must return the logits of the model.*classifier=NAME"),
        (Unused, {}, "layer 'auxiliary' must return the logits .* but it did not run"),
        (Doubled, {"classifier": "head"}, "layer 'head' .* returned other values than the model"),
        (SeveralOutputs, {}, "model must return logits of shape .* but it returned dict"),
        (
            HeadFirst,
            {"classifier": "haed"},
            "classifier must name a Linear layer .* got 'haed'. Did you mean 'head'",
        ),
        (HeadFirst, {"classifier": 3}, "classifier must be a text"),
        (
            lambda: nn.Sequential(conv(3, 6), nn.BatchNorm2d(6)),
            {},
            r"\(Sequential\) has no Linear layer and no 1x1",
        ),
    ],
)
@pytest.mark.parametrize("method", ["lame", "find+t3a"])
def test_a_classifier_that_cannot_be_told_is_refused(model, options, message, method):
    with pytest.raises(FindTTAError, match=message):
        findtta.adapt(filled(model()), method, **options)(images(3))


def test_the_classifier_can_be_named():
    model, batch = filled(HeadFirst(), dtype=torch.float64), images(6, dtype=torch.float64)
    features = model.norm(model.project(batch.flatten(1))).relu()
    outputs = findtta.adapt(model, "lame", classifier="head")(batch)
    assert close(outputs.exp(), lame(features, model(batch)), 1e-9)


def test_a_model_without_batchnorm_will_do():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5), nn.ReLU(), nn.Linear(5, 4)).eval()
    assert findtta.adapt(model, "lame")(images(4)).shape == (4, 4)
    with pytest.raises(FindTTAError, match="no BatchNorm layer"):
        findtta.adapt(model, "find+lame")


# Names.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tent+lame", "'tent' must be a method that only changes normalisation, such as find, but it learns"),
        ("lame+t3a", "'lame' must be .* but it changes outputs itself"),
        ("find+tbn", "'tbn' must be a method that changes outputs"),
        ("find+lam", "got 'lam'. Did you mean 'lame'"),
        ("fnd+lame", "got 'fnd.lame'"),
        ("find+", "got ''"),
    ],
)
def test_pairs_that_make_no_sense_are_refused(name, message):
    with pytest.raises(FindTTAError, match=message):
        findtta.adapt(tiny(), name)


def test_options_of_a_pair_are_those_of_both():
    adapted = findtta.adapt(tiny(), "find+lame", alpha=0.5, affinity="knn")
    assert (adapted.options.alpha, adapted.options.affinity) == (0.5, "knn")
    with pytest.raises(FindTTAError, match=re.escape("method 'find+lame' has no option 'alhpa'")):
        findtta.adapt(tiny(), "find+lame", alhpa=0.5)
    with pytest.raises(FindTTAError, match="affinity must be 'rbf' or 'knn' or 'linear', got 'cosine'"):
        findtta.adapt(tiny(), "find+lame", affinity="cosine")


def test_a_pair_is_named_like_a_method_in_grids_and_tables():
    grid = Grid().changed({"methods": ["find+lame:alpha=0.7,affinity=knn"]}, {})
    (spec,) = expand(grid)
    assert (spec.method, spec.options) == ("find+lame", {"alpha": 0.7, "affinity": "knn"})
    assert naming._method_defaults("find+lame")["neighbours"] == 5
    order = naming.ordered(["method"], [("find+lame",), ("find",), ("lame",)])
    assert order == [("find",), ("lame",), ("find+lame",)]


def test_a_method_of_a_file_can_be_under_lame(monkeypatch):
    name = f"{EXAMPLES}/my_norm.py:InstanceBlend+lame"
    batch = images(5, dtype=torch.float64)
    outputs = findtta.adapt(tiny(), name, alpha=0.8)(batch)
    assert close(outputs, findtta.adapt(tiny(), "instance+lame")(batch), 1e-12)
    assert public_name(name) == "my_norm.py:InstanceBlend+lame"
    monkeypatch.chdir(EXAMPLES)
    assert naming._method_defaults("my_norm.py:InstanceBlend+lame") is None  # to show a result runs no code


def test_the_digest_of_a_pair_is_of_the_code_of_both():
    method = load_method("find+lame")
    behind = code.module_files(code.behind_method(method, method.options_type()))
    assert {"find.py", "lame.py", "outputs.py", "base.py", "first_neighbor.py"} <= {path.name for path in behind}


# The instance blend.


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_instance_is_find_with_every_image_a_group(alpha):
    batch = images(9, dtype=torch.float64)
    batch[3] = torch.nan
    outputs = findtta.adapt(tiny(), "instance", alpha=alpha)(batch)
    expected = findtta.adapt(tiny(), "find", alpha=alpha, partitioner="instance")(batch)
    assert close(outputs, expected, 1e-12)
    assert outputs[3].isnan().all()
    assert outputs.isfinite().all(1).sum() == 8


def test_instance_has_the_default_of_find_and_does_not_depend_on_the_batch():
    adapted = findtta.adapt(tiny(), "instance")
    assert adapted.options.alpha == findtta.adapt(tiny(), "find").options.alpha
    assert all(isinstance(layer, AdaptiveNorm) for _, layer in adapted.layers())
    batch = images(6, dtype=torch.float64)
    assert close(adapted(batch), torch.cat([adapted(image[None]) for image in batch]), 1e-12)
