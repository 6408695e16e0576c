import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import findtta
import reference
from findtta.errors import UnsupportedModelError
from findtta.functional import native
from findtta.layers import AdaptiveNorm
from nets import (
    METHODS,
    ActivatedNorm,
    AsksForTensor,
    CalledTwice,
    DataDependent,
    FrozenBatchNorm2d,
    KeepsFeatures,
    ManyArguments,
    MixedCalls,
    NamedInput,
    OutputUsedTwice,
    OwnMathsNorm,
    PreActivation,
    TinyNet,
    UnusedLayer,
    WithKeywords,
    close,
    conv,
    filled,
    images,
    randn,
    replaced,
    same_bits,
    tiny,
    without,
)

ADAPTING = [method for method in METHODS if method != "source"]
LAYERS = [
    pytest.param(nn.BatchNorm1d, (7, 4), id="1d"),
    pytest.param(nn.BatchNorm1d, (7, 4, 5), id="1d-length"),
    pytest.param(nn.BatchNorm2d, (7, 4, 3, 2), id="2d"),
    pytest.param(nn.BatchNorm2d, (7, 4, 1, 1), id="2d-one-position"),
    pytest.param(nn.BatchNorm3d, (7, 4, 2, 3, 2), id="3d"),
    pytest.param(nn.SyncBatchNorm, (7, 4, 3, 2), id="sync"),
]


def find(model, **options):
    return findtta.adapt(model, "find", **options)


def reference_find(model, batch):
    with torch.no_grad():
        return replaced(model, reference.ReferenceFABN)(batch)


# Kinds of layers


@pytest.mark.parametrize(("kind", "shape"), LAYERS)
def test_layer_equals_the_reference(kind, shape):
    batch = 1 + randn(*shape, dtype=torch.float64)
    for settings in ({}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}):
        norm = filled(kind(4, **settings), dtype=torch.float64)
        assert close(find(norm)(batch), reference.fabn(batch, norm), 1e-10)


# IABN takes the unbiased variance of the batch then, as its authors do.
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("iabn", "instance")])
def test_without_running_statistics_the_batch_is_the_source(method):
    norm = filled(nn.BatchNorm2d(4, track_running_stats=False), dtype=torch.float64)
    batch = randn(2, 4, 3, 3, dtype=torch.float64)
    want = F.batch_norm(batch, None, None, norm.weight, norm.bias, training=True, eps=norm.eps).detach()
    assert close(findtta.adapt(norm, method)(batch), want, 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_shape_is_refused_as_by_the_original(method):
    with pytest.raises(ValueError, match="expected 4D input"):
        findtta.adapt(nn.BatchNorm2d(4), method)(torch.ones(2, 4))


def test_frozen_batch_norm_is_adapted():
    frozen = filled(nn.Sequential(FrozenBatchNorm2d(4)), dtype=torch.float64)
    batch = randn(7, 4, 3, 3, dtype=torch.float64)
    assert close(find(frozen)(batch), reference.fabn(batch, frozen[0]), 1e-10)
    assert close(find(frozen, alpha=1)(batch), frozen(batch), 1e-12)


def test_subclass_keeps_what_it_does_besides_normalising():
    norm, batch = filled(ActivatedNorm(4), dtype=torch.float64), randn(7, 4, 3, 3, dtype=torch.float64)
    got = find(norm)(batch)
    assert got.min() == 0
    assert close(got, reference.fabn(batch, norm).relu(), 1e-10)


def test_timm_layer_keeps_its_activation(timm):
    from timm.layers import BatchNormAct2d

    norm, batch = filled(BatchNormAct2d(4), dtype=torch.float64), randn(7, 4, 3, 3, dtype=torch.float64)
    got = find(norm)(batch)
    assert got.min() == 0
    assert close(got, reference.fabn(batch, norm).relu(), 1e-10)
    assert close(find(norm, alpha=1)(batch), norm(batch).detach(), 1e-12)


def test_timm_network_equals_the_network_of_reference_layers(timm):
    class Activated(reference.ReferenceFABN):
        def forward(self, features):
            return self.norm.act(self.norm.drop(super().forward(features)))

    model = filled(timm.create_model("test_resnet", num_classes=5), dtype=torch.float64)
    batch = images(3, dtype=torch.float64, size=32)
    wrap = {True: Activated, False: reference.ReferenceFABN}
    with torch.no_grad():
        want = replaced(model, lambda norm: wrap[hasattr(norm, "act")](norm))(batch)
    assert close(find(model)(batch), want, 1e-9)


def test_subclass_with_its_own_maths_is_refused_by_name():
    model = nn.Sequential(conv(3, 6), nn.Sequential(OwnMathsNorm(6)))
    with pytest.raises(UnsupportedModelError, match=r"1\.0: OwnMathsNorm: .*called batch_norm 0 times"):
        find(model)


@pytest.mark.parametrize("inplace", [True, False])
def test_lazy_layer_without_a_shape_is_refused(inplace):
    with pytest.raises(UnsupportedModelError, match="lazy and has no shape yet"):
        find(nn.Sequential(conv(3, 6), nn.LazyBatchNorm2d()), inplace=inplace)


def test_lazy_layer_that_has_run_is_adapted():
    model = nn.Sequential(nn.LazyBatchNorm2d())
    model(images())
    assert find(filled(model))(images()).shape == images().shape


def test_model_that_is_a_batch_norm_layer():
    norm, batch = filled(nn.BatchNorm2d(3)), images()
    adapted = find(norm)
    assert [layer.kind for layer in adapted.report()] == ["BatchNorm2d"]
    assert close(adapted(batch), reference.fabn(batch, norm), 1e-5)


def test_layer_used_in_two_places_is_one_layer():
    model, batch = filled(CalledTwice(), dtype=torch.float64), images(dtype=torch.float64, size=4)
    adapted = find(model)
    assert [layer.name for layer in adapted.report()] == ["bn0", "other.1"]
    assert adapted.model.alias is adapted.model.bn0
    reference_layer = reference.ReferenceFABN(model.bn0)
    want = copy.deepcopy(model)
    want.bn0 = want.alias = reference_layer
    want.other[1] = reference.ReferenceFABN(want.other[1])
    with torch.no_grad():
        assert close(adapted(batch), want(batch), 1e-10)


def test_attributes_of_the_original_layer_can_be_read():
    model = tiny()
    layer = find(model).model.bn1
    assert layer.num_features == 6
    assert torch.equal(layer.weight, model.bn1.weight)
    assert torch.equal(layer.running_var, model.bn1.running_var)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = layer.nonsense


# Precision and memory


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [0.8, 1])
def test_half_precision_in_and_out_with_wide_statistics(dtype, alpha):
    batch = (50 + randn(6, 4, 5, 5)).to(dtype)
    for model_dtype in (dtype, torch.float32):
        norm = filled(nn.BatchNorm2d(4), dtype=model_dtype)
        got = find(norm, alpha=alpha)(batch)
        assert got.dtype == dtype
        assert close(got, reference.fabn(batch, norm, alpha), 3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_network_runs_in_its_dtype(method):
    for dtype in (torch.float16, torch.bfloat16):
        output = findtta.adapt(tiny(dtype), method)(images(dtype=dtype))
        assert output.dtype == dtype
        assert output.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_autocast_normalises_what_the_convolution_gives(method):
    net, batch = filled(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6))), images()
    with torch.autocast("cpu", torch.bfloat16):
        got = findtta.adapt(net, method)(batch)
        with torch.no_grad():
            features = net[0](batch)
    assert got.dtype == features.dtype == torch.bfloat16
    assert close(got, findtta.adapt(net[1], method)(features.float()), 0.02)


@pytest.mark.parametrize("method", METHODS)
def test_channels_last_stays_and_equals_contiguous(method):
    norm, batch = filled(nn.BatchNorm2d(4), dtype=torch.float64), randn(6, 4, 5, 5, dtype=torch.float64)
    adapted = findtta.adapt(norm, method)
    got = adapted(batch.to(memory_format=torch.channels_last))
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert close(got, adapted(batch), 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_channels_last_network_equals_contiguous(method):
    model, batch = tiny(torch.float64), images(dtype=torch.float64)
    want = findtta.adapt(model, method)(batch)
    model = model.to(memory_format=torch.channels_last)
    for reuse_buffers in (True, False):
        adapted = findtta.adapt(model, method, reuse_buffers=reuse_buffers)
        assert close(adapted(batch.to(memory_format=torch.channels_last)), want, 1e-11)


VIEWS = {
    "slice": lambda x: x[::2, :, 1:, ::2],
    "transpose": lambda x: x.transpose(2, 3),
    "channels": lambda x: x.transpose(0, 1)[:, :4].transpose(0, 1),
    "expanded batch": lambda x: x[:1].expand(5, -1, -1, -1),
    "expanded space": lambda x: x[:, :, :1].expand(-1, -1, 6, -1),
    "flip": lambda x: x.flip(3),
}


@pytest.mark.parametrize("method", METHODS)
def test_views_give_what_their_copies_give(method):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float16, 2e-3)):
        whole = randn(8, 4, 6, 6, dtype=dtype)
        kept = whole.clone()
        adapted = findtta.adapt(filled(nn.BatchNorm2d(4), dtype=dtype), method)
        for name, view in VIEWS.items():
            assert close(adapted(view(whole)), adapted(view(whole).contiguous()), tolerance), name
        assert same_bits(whole, kept)


@pytest.mark.parametrize("method", METHODS)
def test_the_input_is_never_changed(method):
    for dtype, first in ((torch.float32, []), (torch.float16, []), (torch.float32, [nn.Identity()])):
        batch = images(dtype=dtype)
        kept = batch.clone()
        adapted = findtta.adapt(filled(nn.Sequential(*first, nn.BatchNorm2d(3)), dtype=dtype), method)
        for _ in range(2):
            adapted(batch)
            assert same_bits(batch, kept)


# Reusing the memory of inputs


NETS = [
    TinyNet,
    PreActivation,
    OutputUsedTwice,
    CalledTwice,
    DataDependent,
    AsksForTensor,
    UnusedLayer,
    MixedCalls,
]


@pytest.mark.filterwarnings("ignore::findtta.errors.UnusedLayerWarning")
@pytest.mark.parametrize("net", NETS)
def test_reusing_buffers_changes_no_result(net):
    model, batch = filled(net(), dtype=torch.float64), images(dtype=torch.float64)
    for method in ADAPTING:
        apart = findtta.adapt(model, method, reuse_buffers=False)(batch)
        assert close(findtta.adapt(model, method)(batch), apart, 1e-12), method


@pytest.mark.parametrize("net", [PreActivation, OutputUsedTwice, DataDependent, AsksForTensor])
def test_inputs_that_are_read_twice_equal_the_reference(net):
    model, batch = filled(net(), dtype=torch.float64), images(5, dtype=torch.float64, size=4)
    assert close(find(model)(batch), reference_find(model, batch), 1e-10)


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (TinyNet, {"stem.1", "bn1", "bn2", "head.1"}),
        (PreActivation, set()),
        (OutputUsedTwice, set()),
        (CalledTwice, {"bn0", "other.1"}),
        (DataDependent, set()),
        (ManyArguments, set()),
        (WithKeywords, {"bn0"}),
    ],
)
def test_only_sole_readers_of_fresh_tensors_may_overwrite(net, expected):
    assert {name for name, layer in find(filled(net())).layers() if layer.sole_reader} == expected


def test_a_model_is_traced_without_a_trace_of_it_in_other_threads():
    other, batch = tiny(), images(2)
    expected, outputs = other(batch), []

    class RunsAnother(nn.Sequential):
        def forward(self, x):
            with ThreadPoolExecutor(1) as pool:
                outputs.append(pool.submit(other, batch).result())
            return super().forward(x)

    adapted = find(filled(RunsAnother(conv(3, 6), nn.BatchNorm2d(6))))
    assert all(layer.sole_reader for _, layer in adapted.layers())
    assert outputs
    assert all(same_bits(output, expected) for output in outputs)


def test_hooks_see_no_placeholder_of_the_trace():
    model, seen = filled(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6))), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    model[1].register_forward_pre_hook(lambda module, inputs: seen.extend(inputs))
    find(model)
    assert not seen
    model(images(2))
    assert len(seen) == 2


def test_no_layer_may_overwrite_when_reuse_is_off():
    assert not any(layer.sole_reader for _, layer in find(tiny(), reuse_buffers=False).layers())


@pytest.mark.parametrize("reuse_buffers", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_memory_is_reused_where_it_may_be_and_only_there(monkeypatch, reuse_buffers, compiled):
    seen, normalize = [], AdaptiveNorm._normalize

    def spy(layer, features, **kwargs):
        result = normalize(layer, features, **kwargs)
        seen.append(result.data_ptr() == features.data_ptr())
        return result

    monkeypatch.setattr(AdaptiveNorm, "_normalize", spy)
    adapted = find(
        filled(nn.Sequential(PreActivation(), conv(6, 6), nn.BatchNorm2d(6))), reuse_buffers=reuse_buffers
    )
    with nullcontext() if compiled else native.disabled():
        adapted(images())
    assert seen == [False, False, reuse_buffers]


def wrapped_convolution():
    """A convolution inside a container, whose hook sees the convolution's own output."""
    return nn.Sequential(nn.Sequential(conv(3, 6)), nn.BatchNorm2d(6))


class OwnConv(nn.Conv2d):
    """A convolution class of the user's, which a trace looks into."""

    def forward(self, x):
        return F.conv2d(x, self.weight, None, padding=1)


HOOKED = {
    "convolution": (lambda: nn.Sequential(conv(3, 6), nn.BatchNorm2d(6)), "0", "output"),
    "container of the convolution": (wrapped_convolution, "0", "output"),
    "own convolution": (lambda: nn.Sequential(OwnConv(3, 6, 3, bias=False), nn.BatchNorm2d(6)), "0", "output"),
    "input of the layer": (lambda: nn.Sequential(conv(3, 6), nn.BatchNorm2d(6)), "1", "input"),
    "input of the layer by forward hook": (lambda: nn.Sequential(conv(3, 6), nn.BatchNorm2d(6)), "1", "both"),
}


@pytest.mark.parametrize("method", ["find", "tbn"])
@pytest.mark.parametrize("case", HOOKED)
@pytest.mark.parametrize("before_adapting", [True, False])
def test_hooks_keep_unmodified_features(method, case, before_adapting):
    make, place, what = HOOKED[case]
    model, batch, kept = filled(make()), images(), []
    with torch.no_grad():
        want = model[0](batch)

    def register(owner):
        module = owner.get_submodule(place)
        if what == "output":
            module.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
        elif what == "input":
            module.register_forward_pre_hook(lambda _module, inputs: kept.append(inputs[0]))
        else:
            module.register_forward_hook(lambda _module, inputs, _output: kept.append(inputs[0]))

    if before_adapting:
        register(model)
        adapted = findtta.adapt(model, method, inplace=True)
    else:
        adapted = findtta.adapt(model, method, inplace=True)
        register(adapted.model)
    adapted(batch)
    assert close(kept[-1], want, 1e-5)


def test_global_hooks_keep_unmodified_features():
    adapted, kept = find(filled(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6)))), []
    with nn.modules.module.register_module_forward_hook(lambda _m, _i, output: kept.append(output)):
        adapted(images())
    with torch.no_grad():
        assert same_bits(kept[0], adapted.model[0](images()))


def test_attributes_kept_by_the_model_are_not_overwritten():
    model, batch = filled(KeepsFeatures()), images()
    adapted = find(model)
    adapted(batch)
    with torch.no_grad():
        assert close(adapted.model.features, model.conv0(batch), 1e-6)


@pytest.mark.parametrize("method", sorted({*ADAPTING} - {"find-soft"}))
def test_layers_run_by_hand_leave_their_input_alone(method):
    adapted = findtta.adapt(filled(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6))), method)
    adapted(images())
    with torch.no_grad():
        features = adapted.model[0](images())
        kept = features.clone()
        adapted.model[1](features)
    assert same_bits(features, kept)


def test_layers_leave_their_input_alone_after_a_failed_call():
    adapted = find(filled(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), nn.Linear(3, 3))))
    with pytest.raises(RuntimeError):
        adapted(images())
    features = randn(4, 6, 3, 3)
    kept = features.clone()
    with torch.no_grad():
        adapted.model[1](features)
    assert same_bits(features, kept)


# Ways to call a model


def test_keyword_arguments_reach_the_model():
    model, batch = filled(WithKeywords(), dtype=torch.float64), images(5, dtype=torch.float64, size=4)
    with torch.no_grad():
        reference_model = replaced(model, reference.ReferenceFABN)
        want, twice = reference_model(batch, scale=2.0), reference_model(batch, twice=True)
    adapted = find(model)
    assert close(adapted(batch, scale=2.0), want, 1e-10)
    assert close(adapted(x=batch, scale=2.0), want, 1e-10)
    assert close(adapted(batch, 2.0), want, 1e-10)
    assert close(adapted(batch, twice=True), twice, 1e-10)
    assert close(adapted(batch, 1.0, True), twice, 1e-10)


def test_model_with_any_number_of_arguments():
    model, batch = filled(ManyArguments(), dtype=torch.float64), images(5, dtype=torch.float64, size=4)
    with torch.no_grad():
        want = replaced(model, reference.ReferenceFABN)(batch, batch, batch)
    assert close(find(model)(batch, batch, batch), want, 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_layer_called_by_the_name_of_its_argument(method):
    named, plain = filled(NamedInput()), filled(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6)))
    assert close(findtta.adapt(named, method)(images()), findtta.adapt(plain, method)(images()), 1e-6)


# Unusual batches


@pytest.mark.parametrize("shape", [(4,), (4, 1, 1), (4, 3, 3)])
def test_short_and_long_batches_equal_the_reference(shape):
    norm = filled((nn.BatchNorm1d if len(shape) == 1 else nn.BatchNorm2d)(4), dtype=torch.float64)
    for count in (1, 2, 3, 5, 150):
        batch = randn(count, *shape, dtype=torch.float64)
        assert close(find(norm)(batch), reference.fabn(batch, norm), 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_changing_size(method):
    adapted = findtta.adapt(tiny(), method, **({"cold_start": 2} if method == "find-star" else {}))
    for count in (8, 3, 1, 16, 2):
        output = adapted(images(count))
        assert output.shape == (count, 4)
        assert output.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_gives_empty_outputs(method):
    adapted = findtta.adapt(tiny(), method)
    assert adapted(images(0)).shape == (0, 4)


@pytest.mark.parametrize("method", METHODS)
def test_constant_batches_stay_finite(method):
    for options in [{"alpha": 0.0}, {"alpha": 0.8}] if "alpha" in findtta.methods()[method].options else [{}]:
        for value in (0.0, 3.0):
            output = findtta.adapt(tiny(), method, **options)(torch.full((6, 3, 8, 8), value))
            assert output.isfinite().all()
            assert close(output, output[:1].expand_as(output), 1e-5)


BARE = {
    "2d": (lambda: nn.BatchNorm2d(3), lambda x: x),
    "1d": (lambda: nn.BatchNorm1d(3), lambda x: x[:, :, 0, 0]),
    "2d-one-position": (lambda: nn.BatchNorm2d(3), lambda x: x[:, :, :1, :1]),
}


@pytest.mark.parametrize("method", ADAPTING)
@pytest.mark.parametrize("model", ["net", *BARE])
def test_a_bad_sample_does_not_change_the_outputs_of_the_others(method, model):
    make, crop = BARE.get(model, (tiny, lambda x: x))
    net = filled(make())
    # find-star is looked at both while it splits and after it stopped.
    options = {"cold_start": 1, "threshold": 1.1} if method == "find-star" else {}
    dirty, clean = findtta.adapt(net, method, **options), findtta.adapt(net, method, **options)
    for poison in (torch.nan, torch.inf, -torch.inf, 1e30):
        for part in ((4,), (4, 1, 0, 0)):  # a sample, or one of its pixels
            dirty.reset(), clean.reset()
            batch = images(9)
            batch[part] = poison
            for _ in range(2):
                got, want = dirty(crop(batch)), clean(crop(without(batch, 4)))
                assert want.isfinite().all()
                assert close(without(got, 4), want, 1e-4), (poison, part)


def test_a_bad_sample_does_not_count_in_the_unbiased_variance_of_iabn():
    net, batch = tiny(torch.float64), images(9, dtype=torch.float64)
    batch[4] = torch.nan
    adapted = findtta.adapt(net, "iabn", base="batch")
    assert close(without(adapted(batch), 4), adapted(without(batch, 4)), 1e-12)


@pytest.mark.parametrize("method", ADAPTING)
def test_a_batch_of_bad_samples_only_does_not_harm_the_next(method):
    options = {"cold_start": 2} if method == "find-star" else {}
    adapted, batch = findtta.adapt(tiny(), method, **options), images()
    adapted(torch.full_like(batch, torch.nan))
    assert adapted(batch).isfinite().all()
    assert adapted(batch).isfinite().all()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_a_bad_sample_does_not_change_the_scores(poison):
    clean, dirty = (findtta.adapt(tiny(), "find-star", cold_start=1) for _ in range(2))
    batch = images(9)
    clean(without(batch, 4))
    batch[4] = poison
    dirty(batch)
    want = [layer.score for layer in clean.report()]
    assert [layer.score for layer in dirty.report()] == pytest.approx(want, abs=1e-4)
