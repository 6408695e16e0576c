"""``compile=True``: what an adapted model promises holds for its compiled form, or is refused by name."""

import copy
import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import findtta
from findtta.bench import RunSpec, run
from findtta.bench.plan import Planner
from findtta.compiled import Compiled, CompileError
from findtta.errors import OptionError
from findtta.export.checking import compare
from findtta.functional import first_neighbours, instance_moments, native
from findtta.predictor import PredictorSettings
from findtta.serve.settings import Choice, Settings
from nets import close, conv, filled, graded, images, randn, shallow, stream, tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SIZES = (7, 64, 1, 16, 2, 200, 15)
partitioning = import_module("findtta.functional.partition")


@pytest.fixture(autouse=True)
def graphs_without_code(request, monkeypatch):
    """Trace and guard as ever, but run the graph as it is: making code takes a minute."""
    torch._dynamo.reset()
    if "makes_code" not in request.fixturenames:
        monkeypatch.setattr(Compiled, "backend", "aot_eager")
    yield
    torch._dynamo.reset()


def pair(method="find", model=tiny, dtype=torch.float32, **options):
    """The same adapted model, as it is and compiled, after its warm-up."""
    plain = findtta.adapt(model().to(dtype), method, **options)
    compiled = findtta.adapt(model().to(dtype), method, compile=True, **options)
    for batch in stream(plain.warm_up_left, dtype=dtype):
        assert torch.equal(compiled(batch), plain(batch))
    assert compiled.compiled.graphs == 0
    return plain, compiled


each_method = pytest.mark.parametrize("method", graded(slow=("tbn",)))


@each_method
def test_two_graphs_serve_all_batch_sizes_with_the_same_outputs_and_reports(method):
    # In float64 no two similarities are equal up to rounding, so that nothing may differ.
    plain, compiled = pair(method, dtype=torch.float64)
    for size in SIZES:
        batch = images(size, seed=size, dtype=torch.float64)
        assert close(compiled(batch), plain(batch), 1e-10)
        assert str(compiled.report()) == str(plain.report())
    assert compiled.compiled.graphs == 2  # one of them for batches of one
    assert compiled.compiled.seconds > 0


class Graphs:
    """A compiled model in the place of an exported file."""

    description, state = SimpleNamespace(dtype="float32"), {}

    def __init__(self, compiled, monkeypatch):
        self.compiled, self.chosen = compiled, []
        monkeypatch.setattr(partitioning, "first_neighbours", self.first_neighbours)

    def first_neighbours(self, descriptors):
        self.chosen.append(first_neighbours(descriptors))
        return self.chosen[-1]

    def run_with_neighbours(self, batch):
        self.chosen.clear()
        with native.disabled():  # the C function does not say which neighbours it chose
            logits = self.compiled(torch.from_numpy(batch))
        return logits.numpy(), [chosen.numpy() for chosen in self.chosen]

    def __call__(self, batch):
        return self.run_with_neighbours(batch)[0]


def test_in_float32_nothing_differs_but_by_near_ties_of_first_neighbours(monkeypatch):
    plain, compiled = pair()
    compiled(images(2))  # making a graph runs the model as it is, too
    graphs = Graphs(compiled, monkeypatch)
    found = [compare(graphs, plain, "", images(size, seed=size)) for size in (2, 7, 64, 200, 300)]
    assert {outcome.verdict for outcome in found} <= {"equal", "equal but for near-ties"}


@pytest.mark.parametrize("offset", [0.0, 100.0, -1e4])
@pytest.mark.parametrize("shape", [(3, 4, 16, 16), (3, 4, 50), (3, 4, 3, 5, 4), (3, 4, 1, 1)])
def test_moments_in_one_pass_lose_no_digits_to_a_large_mean(shape, offset):
    features = randn(*shape, dtype=torch.float64) * torch.tensor([1, 1e-2, 10, 0.5]).view(
        -1, *[1] * len(shape[2:])
    )
    features = (features + offset).float()
    dims = tuple(range(2, len(shape)))
    variance, mean = torch.var_mean(features.double(), dims, correction=0)
    got_mean, got_variance = torch.compile(instance_moments, backend="eager", fullgraph=True)(features)
    assert torch.allclose(got_mean.double(), mean, rtol=1e-6, atol=1e-6)
    # What the features themselves have lost by rounding is not counted: the variance is that of what is stored.
    assert torch.allclose(got_variance.double(), variance, rtol=1e-5, atol=0)


def test_moments_in_one_pass_of_a_constant_plane():
    features = torch.full((2, 3, 8, 8), 1e3 / 3)
    _, variance = torch.compile(instance_moments, backend="eager", fullgraph=True)(features)
    assert (variance == 0).all()


def test_modes_of_the_caller_make_no_graph_and_leave_the_batch_alone():
    plain, compiled = pair()
    batch = images(8)
    kept = batch.clone()
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert close(compiled(images(8)), plain(images(8)), 1e-5)
    gaps = images(16)[::2]
    assert close(compiled(gaps), plain(gaps), 1e-5)
    compiled(batch)
    assert torch.equal(batch, kept)
    assert not [name for name in vars(batch) if "dynamo" in name]
    assert compiled.compiled.graphs == 1
    with pytest.raises(findtta.FindTTAError, match="records no gradient"):
        compiled(batch.requires_grad_()).sum().backward()
    assert compiled.compiled.graphs == 1


def test_channels_last_is_a_kind_of_its_own():
    plain, compiled = pair()
    for size in (5, 9):
        batch = images(size).to(memory_format=torch.channels_last)
        assert close(compiled(batch), plain(batch), 1e-5)
        assert close(compiled(images(size)), plain(images(size)), 1e-5)
    assert compiled.compiled.graphs == 2


def test_layers_with_an_activation_of_their_own_and_parts_in_training_mode():
    from nets import ActivatedNorm

    def net():
        return filled(nn.Sequential(conv(3, 6), ActivatedNorm(6), nn.Dropout(0.5), conv(6, 6), nn.BatchNorm2d(6)))

    plain, compiled = pair(model=net)
    compiled.model[2].train()
    assert close(compiled(images(6)), plain(images(6)), 1e-5)
    compiled.model[2].train()
    assert close(compiled(images(9)), plain(images(9)), 1e-5)
    assert compiled.compiled.graphs == 1


def test_a_poisoned_sample_stays_alone_and_an_empty_batch_passes():
    plain, compiled = pair()
    batch = images(8)
    batch[3, 0, 0, 0] = torch.nan
    assert compiled(batch).isnan().any(1).tolist() == [index == 3 for index in range(8)]
    assert close(compiled(batch)[:3], plain(batch)[:3], 1e-5)
    assert compiled(images(8)[:0]).shape == (0, 4)


def test_state_dict_has_the_keys_of_the_model_and_loading_reaches_the_graph():
    plain, compiled = pair()
    assert compiled.state_dict().keys() == plain.state_dict().keys() == tiny().state_dict().keys()
    compiled(images(4))
    other = filled(tiny(), seed=5)
    for model in (plain, compiled):
        model.load_state_dict(other.state_dict())
    assert close(compiled(images(4)), plain(images(4)), 1e-5)


def test_copies_and_pickles_compile_for_themselves_and_unwrap_gives_the_source():
    _, compiled = pair()
    expected = compiled(images(4))
    for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert again.compiled.graphs == 0
        assert torch.equal(again(images(4)), expected)
        assert again.compiled.graphs == 1
    source = findtta.unwrap(compiled)
    assert torch.equal(source(images(4)), tiny()(images(4)))
    assert not [module for module in source.modules() if isinstance(module, findtta.AdaptiveNorm)]
    assert torch.equal(compiled(images(4)), expected)
    assert compiled.compiled.graphs == 1


def test_threads_share_one_graph_and_keep_their_own_reports():
    plain, compiled = pair()

    def call(size):
        batch = images(size, seed=size)
        return compiled(batch), str(compiled.report())

    sizes = [4, 9, 5, 12, 30, 7, 4, 11]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(call, sizes))
    for size, (outputs, report) in zip(sizes, results, strict=True):
        assert close(outputs, plain(images(size, seed=size)), 1e-5)
        assert report == str(plain.report())
    assert compiled.compiled.graphs == 1


def in_another_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


def test_calls_of_other_threads_while_a_graph_is_made(monkeypatch):
    plain, compiled = pair()
    batch = images(4)
    expected = plain(batch)
    groups = str(plain.report())
    compiled(batch)  # its graph for batches of several is there
    ran = []

    def call():
        for model in (plain, compiled):
            assert close(model(batch), expected, 1e-5)
            assert str(model.report()) == groups
        ran.append(True)

    def backend(graph, inputs):
        in_another_thread(call)
        return graph.forward

    monkeypatch.setattr(Compiled, "backend", staticmethod(backend))
    other = findtta.adapt(tiny(), compile=True)
    assert close(other(batch), expected, 1e-5)
    assert ran


class Interrupted(nn.Module):
    """Runs a function in another thread in the middle of its forward."""

    function = None

    def __init__(self):
        super().__init__()
        self.model = tiny()

    def forward(self, x):
        in_another_thread(Interrupted.function)
        return self.model(x)


def test_calls_of_other_threads_while_a_model_is_exported(monkeypatch):
    plain, compiled = pair()
    batch = images(4)
    expected = compiled(batch)
    ran = []

    def call():
        for model in (plain, compiled):
            assert close(model(batch), expected, 1e-5)
            assert model.report()[0].groups
        ran.append(torch.compiler.is_exporting())

    monkeypatch.setattr(Interrupted, "function", call)
    findtta.export.program(findtta.adapt(Interrupted()), batch)
    assert True in ran


def test_one_graph_is_made_at_a_time(monkeypatch):
    making, most = [], []

    def backend(graph, inputs):
        making.append(graph)
        most.append(len(making))
        time.sleep(0.2)
        making.remove(graph)
        return graph.forward

    monkeypatch.setattr(Compiled, "backend", staticmethod(backend))
    models = [findtta.adapt(tiny(), compile=True) for _ in range(3)]
    plain = findtta.adapt(tiny())
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda model: model(images(4)), models * 2))
    assert all(close(result, plain(images(4)), 1e-5) for result in results)
    assert [model.compiled.graphs for model in models] == [1, 1, 1]
    assert most == [1, 1, 1]


@pytest.mark.slow
def test_find_star_compiles_after_its_cold_start_and_again_after_a_reset():
    plain, compiled = pair("find-star", cold_start=3)
    assert close(compiled(images(6)), plain(images(6)), 1e-5)
    assert compiled.compiled.graphs == 1
    for model in (plain, compiled):
        model.reset()
        assert model.warm_up_left == 3
    for batch in stream(3, count=5):
        assert torch.equal(compiled(batch), plain(batch))
    assert close(compiled(images(6)), plain(images(6)), 1e-5)
    assert [layer.split for layer in compiled.report()] == [layer.split for layer in plain.report()]


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("tent", {}, "'tent' learns from every batch"),
        ("unmix-tns", {}, "'unmix-tns' learns from every batch"),
        ("t3a", {}, "'t3a' learns from every batch"),
        ("find", {"partitioner": "random"}, "'random' cannot be part of a fixed graph"),
    ],
)
def test_methods_that_cannot_be_compiled_are_named(method, options, reason):
    with pytest.raises(CompileError, match=f"compile must be False: .*{reason}"):
        findtta.adapt(tiny(), method, compile=True, **options)


def test_a_missing_compiler_is_said_at_once(monkeypatch):
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none(*_):
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(CompileError, match=r"needs a C\+\+ compiler for the CPU, and found none.*Install one"):
        findtta.adapt(tiny(), compile=True)


class Branching(nn.Module):
    """Looks at the values of its batch."""

    def __init__(self):
        super().__init__()
        self.norm = filled(nn.BatchNorm2d(3))

    def forward(self, x):
        return self.norm(x) if x.sum() > 0 else self.norm(-x)


class Functional(nn.Module):
    """Calls F.batch_norm with the tensors of a layer."""

    def __init__(self):
        super().__init__()
        self.bn = filled(nn.BatchNorm2d(3))

    def forward(self, x):
        return F.batch_norm(x, self.bn.running_mean, self.bn.running_var, self.bn.weight, self.bn.bias)


def test_models_that_cannot_be_compiled_are_told_when_called():
    with pytest.raises(CompileError, match="cannot make one graph of it"):
        findtta.adapt(Branching(), compile=True)(images(4))
    with pytest.raises(CompileError, match=r"calls F\.batch_norm"):
        findtta.adapt(Functional(), compile=True)(images(4))
    with pytest.raises(CompileError, match="must be called with one tensor"):
        findtta.adapt(tiny(), compile=True)(images(4), 1)
    with pytest.raises(RuntimeError, match="channels") as found:  # what is wrong with a batch is said as ever
        findtta.adapt(tiny(), compile=True)(images(4)[:, :2])
    assert not isinstance(found.value, CompileError)


SPEC = RunSpec(data_options={"count": 20}, domains=("fog", "snow"), batch_size=16)
SMALL = f"{Path(__file__).parent / 'bench' / 'small.py'}:net"


def test_a_compiled_run_has_another_digest():
    plans = [Planner().plan(spec) for spec in (SPEC, dataclasses.replace(SPEC, compile=True))]
    assert [plan.config["device"] for plan in plans] == ["cpu", "cpu, compiled"]
    assert plans[0].digest != plans[1].digest
    assert plans[1].spec.label.endswith(", compiled")


@pytest.mark.slow
def test_a_compiled_run_has_the_same_accuracy_and_groups():
    small = dataclasses.replace(SPEC, model=SMALL)
    plain, other = (run(spec) for spec in (small, dataclasses.replace(small, compile=True)))
    assert other.metrics["accuracy"] == pytest.approx(plain.metrics["accuracy"], abs=5)
    assert all(layer["groups_mean"] for layer in other.layers)
    assert other.cost["compile_seconds"] > 0 == plain.cost["compile_seconds"]
    assert other.cost["latency_ms"]["mean"] < 1e3 * other.cost["compile_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["find", pytest.param("source", marks=pytest.mark.nightly)])
def test_a_compiled_predictor_still_knows_groups_and_drift(method):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    plain, compiled = (
        PredictorSettings(model=shallow(), method=method, compile=on).predictor()(pixels) for on in (False, True)
    )
    assert np.allclose(plain.probabilities, compiled.probabilities, atol=1e-4)
    assert (plain.groups == compiled.groups).all()
    assert np.allclose(plain.drift, compiled.drift, atol=1e-4)


def test_the_server_compiles_the_method_that_it_starts_with_and_nothing_while_clients_wait():
    settings = Settings(compile=True)
    settings.require_servable()
    assert not settings.under(Choice.of("tbn", {})).compile
    with pytest.raises(OptionError, match="compile must not be given with 'find-star'"):
        Settings(method="find-star", compile=True).require_servable()


CODE = """
import json, re, torch, findtta
from torch import nn
from torch._inductor.utils import run_and_get_code
from nets import close, conv, filled, images

def kernels(method, *sizes):
    net = filled(nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU()))
    plain, compiled = findtta.adapt(net, method), findtta.adapt(net, method, compile=True)
    _, code = run_and_get_code(compiled, images(64))
    for size in sizes:
        assert close(compiled(images(size)), plain(images(size)), 1e-4), size
    assert compiled.compiled.graphs == 1 + (1 in sizes)
    (body,) = [text[text.index("def call(") :] for text in code]
    return len(re.findall(r"cpp_fused\\w*\\(|extern_kernels\\.\\w+\\(|torch\\.ops\\.\\w+\\.\\w+\\.\\w+\\(", body))

sizes = {"source": (), "find": (64, 7, 1, 200), "find-soft": (64, 7)}
print(json.dumps({method: kernels(method, *some) for method, some in sizes.items()}))

# A method that is compiled by its user.
model = findtta.adapt(filled(nn.BatchNorm2d(3)), "iabn")
compiled = torch.compile(model, fullgraph=True, dynamic=True)
for size in (7, 64):
    assert close(compiled(images(size)), model(images(size)), 1e-4), size
"""


@pytest.fixture
def makes_code():
    """Marks tests that generate code."""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_generated_code_gives_the_same_outputs_with_few_kernels_per_layer(makes_code, tmp_path):
    # A process of its own can be stopped, and its cache is empty. All in one: what they share is compiled once.
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=480,  # generous: a traced chain of gathers would not end at all
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout)
    assert all(2 <= counts[method] - counts["source"] <= 14 for method in ("find", "find-soft")), counts
