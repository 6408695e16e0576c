"""The compiled functions against PyTorch's operations, and where they must not be used."""

import copy
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import findtta
import reference
from findtta.functional import components, group_moments, instance_moments, native, normalize, partition
from nets import CalledTwice, TinyNet, close, conv, filled, images, randn, same_bits, stream, tiny, without

compiled = pytest.mark.skipif(native.status() != "in use", reason=native.status())

LAYOUTS = {"contiguous": torch.contiguous_format, "last": torch.channels_last, "last-3d": torch.channels_last_3d}
# Channels and positions below, at and above the sizes of blocks in native.c.
SHAPES = [
    ("contiguous", (5, 4)),
    ("contiguous", (3, 5, 7)),
    ("contiguous", (5, 3, 7, 7)),
    ("contiguous", (2, 4, 33, 64)),
    ("contiguous", (1, 3, 128, 1)),
    ("contiguous", (2, 3, 2, 3, 4)),
    ("last", (5, 3, 7, 7)),
    ("last", (2, 16, 12, 12)),
    ("last", (3, 61, 1, 65)),
    ("last", (2, 600, 2, 2)),
    ("last", (1, 40, 33, 17)),
    ("last-3d", (2, 9, 2, 3, 4)),
]
shapes = pytest.mark.parametrize(("layout", "shape"), SHAPES, ids=str)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def maps(layout, shape, offset=3.0):
    return (offset + randn(*shape) * (1 + randn(shape[0], shape[1], *[1] * (len(shape) - 2), seed=1))).contiguous(
        memory_format=LAYOUTS[layout]
    )


def both(function):
    """Return what a function gives with the compiled functions, and without."""
    with native.disabled():
        want = function()
    return function(), want


def used(monkeypatch):
    """Return the growing list of compiled functions that are called."""
    calls = []

    class Spy:
        def __getattr__(self, name):
            def call(*arguments):
                calls.append(name)
                return getattr(library, name)(*arguments)

            return call

    library = native._library
    monkeypatch.setattr(native, "_library", Spy())
    return calls


def test_it_is_used_where_there_is_a_compiler():
    if shutil.which("cc") and os.environ.get(native.VARIABLE) != "0":
        assert native.status() == "in use"


# The same results


@compiled
@shapes
def test_moments_are_those_of_float64(layout, shape):
    features = maps(layout, shape)
    got, want = instance_moments(features), instance_moments(features.double())
    assert all(close(a.double(), b, 1e-6) for a, b in zip(got, want, strict=True))


@compiled
@pytest.mark.parametrize("layout", ["contiguous", "last"])
def test_variances_keep_their_digits_far_from_zero(layout):
    features = maps(layout, (2, 8, 64, 64), offset=1e4)
    got, want = instance_moments(features), instance_moments(features.double())
    assert close(got[1].double(), want[1], 1e-5)


@compiled
@shapes
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_normalisation_agrees(layout, shape, affine, per_sample, overwrite):
    features = maps(layout, shape)
    table = (shape[0], shape[1]) if per_sample else (shape[1],)
    mean, variance = randn(*table, seed=4), 0.5 + randn(*table, seed=5).abs()
    vectors = (randn(shape[1], seed=2), randn(shape[1], seed=3)) if affine else (None, None)

    def result():
        inputs = features.clone(memory_format=torch.preserve_format)
        outputs = normalize(inputs, mean, variance, *vectors, 1e-3, overwrite=overwrite)
        assert (outputs.data_ptr() == inputs.data_ptr()) == overwrite
        assert overwrite or same_bits(inputs, features)
        assert outputs.stride() == features.stride()
        return outputs

    got, want = both(result)
    assert close(got, want, 1e-6)


@compiled
@pytest.mark.parametrize("batch", [1, 2, 3, 15, 16, 17, 64, 130])
@pytest.mark.parametrize("channels", [1, 3, 16, 70])
def test_groups_agree(batch, channels):
    features = randn(batch, channels, 5) + 3 * randn(1 + batch // 3, channels, 1, seed=1).repeat(4, 1, 1)[:batch]
    (labels, moments), (want_labels, want_moments) = both(
        lambda: (
            partition(instance_moments(features.double())[0].float()),
            group_moments(*instance_moments(features), torch.arange(batch) // 2),
        )
    )
    if channels > 1:  # one channel leaves the sign of the mean, and ties
        assert labels.tolist() == want_labels.tolist()
    assert all(close(a, b, 1e-6) for a, b in zip(moments, want_moments, strict=True))


@compiled
def test_exact_ties_go_to_the_lowest_index():
    for seed in range(20):
        # Their norm is 2, so that every product is exact, and many are equal.
        rows = randn(23, 4, seed=seed).sign()
        want = components(torch.tensor(reference.first_neighbours(rows.tolist())))
        assert partition(rows).tolist() == want.tolist()
    equal = randn(1, 33).repeat(40, 1)
    assert partition(equal).tolist() == [0] * 40


@compiled
@pytest.mark.parametrize("labels", [[0, 0, -1, 1], [0, 4, 0, 1], [5, 5, 5, 5]])
def test_labels_out_of_range_are_left_to_torch(labels):
    moments = instance_moments(randn(4, 3, 5))
    got, want = both(lambda: group_moments(*moments, torch.tensor(labels)))
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


@compiled
@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_a_poisoned_sample_does_not_reach_the_others(layout, poison):
    features = maps(layout, (6, 5, 4, 4))
    clean = without(features, 2)
    features[2, 1, 0, 3] = poison
    mean, variance = instance_moments(features)
    assert mean[2].isnan().all()
    assert variance[2].isnan().all()
    want_mean, want_variance = instance_moments(clean)
    assert same_bits(without(mean, 2), want_mean)
    assert same_bits(without(variance, 2), want_variance)
    labels = partition(mean)
    assert labels[2] == 2
    assert (without(labels, 2) != 2).all()
    got, want = both(lambda: group_moments(mean, variance, labels))
    assert all(close(a, b, 1e-6) for a, b in zip(got, want, strict=True))


def model_and_batch(count, layout, net=None):
    net = filled(net or TinyNet()).to(memory_format=LAYOUTS[layout])
    return net, images(count).contiguous(memory_format=LAYOUTS[layout])


@compiled
@pytest.mark.parametrize("method", ["find", "find-star", "find-soft", "tbn", "alpha-bn", "iabn", "instance"])
@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("count", [1, 2, 5, 33])
def test_models_agree(method, layout, count, monkeypatch):
    net, batch = model_and_batch(count, layout)
    options = {"cold_start": 1} if method == "find-star" else {}
    adapted = findtta.adapt(net, method, **options)
    adapted(batch)
    calls = used(monkeypatch)
    got, want = both(lambda: adapted(batch))
    assert len(calls) >= 4
    # Batch statistics of the head, with one value per image, divide by small variances: rounding errors grow.
    assert close(got, want, 1e-6 if method != "tbn" else 2e-5 if count == 1 else 2e-6)


@compiled
@pytest.mark.parametrize("method", ["find", "find-soft"])
@pytest.mark.parametrize("poisoned", [[1], [0, 1, 2, 3, 4]])
def test_models_agree_on_poisoned_samples(method, poisoned):
    net, batch = model_and_batch(
        5, "contiguous", nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), conv(6, 6), nn.BatchNorm2d(6))
    )
    batch[poisoned, 0, 0, 0] = torch.nan
    got, want = both(lambda: findtta.adapt(net, method)(batch))
    assert torch.equal(got.isnan(), want.isnan())
    assert close(got.nan_to_num(0), want.nan_to_num(0), 1e-6)


@compiled
@pytest.mark.parametrize(
    "options", [{"guard": 0.0}, {"guard": 0.5, "alpha": 0.1}, {"sharpness": 0.0}, {"alpha": 1.0}]
)
def test_find_soft_agrees_with_other_options(options):
    adapted = findtta.adapt(tiny(), "find-soft", **options)
    for batch in stream(3, count=9):
        got, want = both(lambda batch=batch: adapted(batch))
        assert close(got, want, 1e-6)


@compiled
@pytest.mark.parametrize("options", [{}, {"domains": 3, "memory": 5}, {"alpha": 0.1, "sharpness": 0.0}])
@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("net", [TinyNet, CalledTwice])
def test_find_domains_agrees_over_a_stream(options, layout, net, monkeypatch):
    model = filled(net()).to(memory_format=LAYOUTS[layout])
    one, other = (findtta.adapt(model, "find-domains", **options) for _ in range(2))
    calls = used(monkeypatch)
    for seed, count in enumerate((5, 1, 2, 33)):
        batch = images(count, seed=seed)
        batch[count // 2 :] *= 1 + seed
        if count == 5:
            batch[2, 0, 0, 0] = torch.nan
        batch = batch.contiguous(memory_format=LAYOUTS[layout])
        got = one(batch)
        with native.disabled():
            want = other(batch)
        assert torch.equal(got.isnan(), want.isnan())
        assert close(got.nan_to_num(0), want.nan_to_num(0), 1e-6)
        for value, same in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(value, same, rtol=1e-5, atol=1e-5)
    assert calls.count("find_domains") == 4 * len([name for name, _ in one.layers()]) + 4 * (net is CalledTwice)


@compiled
@pytest.mark.parametrize("layout", ["contiguous", "last"])
def test_threads_change_no_bit_of_find_domains(layout):
    adapted = findtta.adapt(filled(nn.Sequential(nn.BatchNorm2d(40))), "find-domains")
    for shape in ((2, 40, 64, 64), (96, 40, 8, 8)):
        inputs = maps(layout, shape)
        want = copy.deepcopy(adapted)(inputs)
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            assert same_bits(copy.deepcopy(adapted)(inputs), want)
        finally:
            torch.set_num_threads(before)


@compiled
@pytest.mark.parametrize("method", ["find", "find-soft", "find-domains"])
def test_reports_and_observers_see_the_same(method):
    adapted = findtta.adapt(tiny(), method)
    seen = []
    for _, layer in adapted.layers():
        layer.observers.append(lambda mean, variance: seen.append((mean.clone(), variance.clone())))

    def reported():
        seen.clear()
        adapted.reset()
        adapted(images(9))
        return [(layer.groups, layer.score) for layer in adapted.report()], list(seen)

    (report, moments), (want_report, want_moments) = both(reported)
    assert report == [(groups, score and pytest.approx(score, rel=1e-5)) for groups, score in want_report]
    assert len(moments) == 4
    for pair, want in zip(moments, want_moments, strict=True):
        assert all(close(a, b, 1e-6) for a, b in zip(pair, want, strict=True))


@compiled
@pytest.mark.parametrize("method", ["find", "find-soft"])
@pytest.mark.parametrize("layout", ["contiguous", "last"])
def test_threads_change_no_bit(method, layout):
    adapted = findtta.adapt(filled(nn.Sequential(nn.BatchNorm2d(40))), method)
    for shape in ((1, 40, 64, 64), (2, 40, 64, 64), (96, 40, 8, 8)):
        inputs = maps(layout, shape)
        want = adapted(inputs)
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            assert same_bits(adapted(inputs), want)
        finally:
            torch.set_num_threads(before)
        with ThreadPoolExecutor(4) as pool:
            assert all(same_bits(got, want) for got in pool.map(adapted, [inputs] * 8))


# Where they are not used


@pytest.fixture
def forbidden(monkeypatch):
    """Fail if a compiled function is called."""

    class Forbidden:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was called")

    monkeypatch.setattr(native, "_library", Forbidden())


@pytest.mark.parametrize(
    "unfit",
    [
        lambda x: x.double(),
        lambda x: x.half(),
        lambda x: x.bfloat16(),
        lambda x: x.to("meta"),
        lambda x: x[:, :, ::2],
        lambda x: x.transpose(0, 2),
        lambda x: x[:0],
        lambda x: x.as_subclass(type("Own", (torch.Tensor,), {})),
        lambda x: torch._neg_view(x),
        lambda x: x.to_mkldnn(),
    ],
    ids=["double", "half", "bfloat16", "meta", "strided", "transposed", "empty", "subclass", "negated", "mkldnn"],
)
def test_other_tensors_are_left_to_torch(unfit, forbidden):
    tensor = unfit(randn(4, 4, 4, 4))
    assert native.instance_moments(tensor) is None
    rows = (torch.zeros(4), torch.ones(4), None, None)
    assert not native.takes(tensor) or native.Layer(1e-5).prepare(tensor, rows) is None


@pytest.mark.parametrize(
    "vector", [torch.ones(3), torch.ones(4).double(), torch.ones(4, device="meta"), torch.ones(8)[::2]]
)
def test_other_vectors_are_left_to_torch(vector, forbidden):
    features, good = randn(2, 4, 3, 3), torch.ones(4)
    for place in range(4):
        vectors = [vector if index == place else good for index in range(4)]
        assert native.Layer(1e-5).prepare(features, vectors) is None
    assert native.normalize(features, good, good, vector, good, 1e-5, False) is None
    assert native.normalize(features, vector, good, good, good, 1e-5, False) is None


def test_gradients_are_left_to_torch(forbidden):
    with torch.enable_grad():
        features = randn(4, 3, 5).requires_grad_()
        instance_moments(features)[1].sum().backward()
    assert features.grad.abs().sum() > 0


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modes_and_traces_see_operations(forbidden):
    adapted = findtta.adapt(tiny(), "find")
    with Watching():
        adapted(images())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert adapted(torch.empty(4, 3, 8, 8)).shape == (4, 4)
    traced = torch.jit.trace(lambda x: normalize(x, x[:, :, 0], torch.ones(2, 3)), randn(2, 3, 4))
    other = randn(2, 3, 4, seed=1)
    assert close(traced(other), normalize(other.double(), other[:, :, 0].double(), torch.ones(2, 3)).float(), 1e-5)


@compiled
def test_a_subclass_of_a_layer_keeps_its_statistics(monkeypatch):
    from findtta.algorithms.find import FABN, FIND

    class Shifted(FABN):
        def statistics(self, mean, variance, features):
            mean, variance = super().statistics(mean, variance, features)
            return mean + 1, variance

    class ShiftedFIND(FIND):
        def make_layer(self, norm):
            return Shifted(norm, 0.8)

    net = filled(nn.Sequential(nn.BatchNorm2d(3)))
    calls = used(monkeypatch)
    got = ShiftedFIND(filled(nn.Sequential(nn.BatchNorm2d(3))), FIND.options_type())(images())
    assert "find" not in calls
    assert not close(got, findtta.adapt(net, "find")(images()), 1e-3)


# Compiling


@pytest.fixture
def not_loaded(monkeypatch, tmp_path):
    """As in a new process, with an empty cache."""
    monkeypatch.setattr(native, "_library", None)
    monkeypatch.setattr(native, "_problem", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.VARIABLE, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({native.VARIABLE: "0"}, "FINDTTA_NATIVE=0"),
        ({"PATH": "", "CC": ""}, "no C compiler"),
        ({"CC": "false"}, "false failed"),
        ({"CC": "no-such-compiler"}, "no-such-compiler"),
    ],
)
def test_without_a_compiler_torch_computes(not_loaded, variables, why):
    for name, value in variables.items():
        not_loaded.setenv(name, value)
    assert close(findtta.adapt(tiny(), "find")(images(1)), reference_find(images(1)), 1e-5)
    assert native.status().startswith("not in use: ")
    assert why in native.status()


def reference_find(batch):
    from nets import replaced

    return replaced(tiny(), reference.ReferenceFABN)(batch)


@compiled
def test_it_is_compiled_once_and_kept_by_what_the_cpu_can_do(not_loaded, tmp_path):
    assert native.status() == "in use"
    kept = list((tmp_path / "cache" / "findtta" / "native").iterdir())
    assert [path.suffix for path in kept] == [".so"]
    not_loaded.setattr(native, "_library", None)
    not_loaded.setenv("CC", "false")
    assert native.status() == "in use"
    not_loaded.setattr(native, "_library", None)
    not_loaded.setattr(native, "_cpu", lambda: "flags : another machine")
    assert native.status().startswith("not in use: false failed")


@compiled
def test_it_does_not_load_what_others_can_write(not_loaded, tmp_path):
    assert native.status() == "in use"
    (kept,) = (tmp_path / "cache" / "findtta" / "native").iterdir()
    kept.unlink()  # what is loaded from it stays
    kept.write_bytes(b"not a library")
    kept.chmod(0o666)
    not_loaded.setattr(native, "_library", None)
    assert native.status() == "in use"  # compiled anew, elsewhere
    assert kept.read_bytes() == b"not a library"


@compiled
def test_a_cache_that_cannot_be_written_is_not_needed(not_loaded, tmp_path):
    (tmp_path / "cache").write_text("a file in its place")
    assert native.status() == "in use"
    assert close(instance_moments(randn(2, 3, 4))[0], randn(2, 3, 4).mean(2), 1e-6)


@compiled
def test_the_number_of_threads_is_that_of_torch():
    code = (
        "import ctypes, torch\n"
        "from findtta.functional import native\n"
        "assert native.status() == 'in use'\n"
        "runtimes = {line.split()[-1] for line in open('/proc/self/maps') if 'gomp' in line or 'iomp' in line}\n"
        "print(len(runtimes))\n"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs Linux")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ran.stdout) <= 1
