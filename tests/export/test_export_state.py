"""Exported files of methods that learn: the state goes into the graph and comes out of it."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

import findtta
from findtta import export
from findtta.errors import InputError
from findtta.export.checking import state_difference
from findtta.export.tracing import state_of
from nets import close, conv, filled, images, stream

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIZES = (1, 2, 7, 64)


def net():
    norms = nn.BatchNorm2d(5), nn.BatchNorm2d(4)
    return filled(
        nn.Sequential(conv(3, 5), norms[0], nn.ReLU(), conv(5, 4), norms[1], nn.Flatten(), nn.Linear(256, 6))
    )


def learned(method):
    adapted = findtta.adapt(net(), method)
    for batch in stream(3):
        adapted(batch)
    return adapted


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes a model of each method once; returns it as it was exported, the file and what the check found."""
    folder = tmp_path_factory.mktemp("state")

    @functools.cache
    def once(method, suffix):
        adapted, path = learned(method), folder / f"{method}{suffix}"
        outcome = getattr(export, suffix[1:])(adapted, images(2), path, images=images(70, seed=5))
        return adapted, path, outcome

    return once


@pytest.fixture(
    params=[
        ("find-domains", ".onnx"),
        pytest.param(("tbr", ".pt2"), marks=pytest.mark.slow),
        pytest.param(("find-domains", ".pt2"), marks=pytest.mark.nightly),
        *(pytest.param((method, ".onnx"), marks=pytest.mark.nightly) for method in ("unmix-tns", "tbr")),
    ],
    ids=" as ".join,
)
def written(request, write):
    adapted, path, outcome = write(*request.param)
    return copy.deepcopy(adapted), export.load(path, threads=1), outcome


@pytest.fixture
def domains(write):
    adapted, path, _ = write("find-domains", ".onnx")
    return copy.deepcopy(adapted), path


def test_a_stream_gets_what_the_model_gives_it(written):
    adapted, runtime, _ = written
    for seed, size in enumerate(SIZES * 2):
        batch = images(size, seed=seed) + seed % 3
        assert close(torch.from_numpy(runtime(batch.numpy())), adapted(batch), 1e-4)
        assert state_difference(adapted, runtime.state) < 1e-4


def test_the_check_looks_at_the_state(written):
    _, _, outcome = written
    assert outcome.passed
    assert all(batch.state <= 1e-4 for batch in outcome.batches if not batch.near_ties)
    assert "state" in str(outcome).splitlines()[0]


def test_the_file_begins_with_the_state_of_the_model(written):
    adapted, runtime, _ = written
    assert runtime.description.state == tuple(state_of(adapted))
    assert state_difference(adapted, runtime.state) == 0
    first = runtime(images(5).numpy())
    again = runtime(images(5).numpy())
    assert state_difference(adapted, runtime.state) > 0
    runtime.reset()
    assert state_difference(adapted, runtime.state) == 0
    np.testing.assert_array_equal(runtime(images(5).numpy()), first)
    np.testing.assert_array_equal(runtime(images(5).numpy()), again)


def test_what_was_learned_is_saved_and_loaded(domains, tmp_path):
    adapted, path = domains
    one, other = export.load(path, threads=1), export.load(path, threads=1)
    for batch in stream(2):
        one(batch.numpy())
        adapted(batch)
    one.save_state(tmp_path / "state.npz")
    other.load_state(tmp_path / "state.npz")
    np.testing.assert_array_equal(one(images(5).numpy()), other(images(5).numpy()))
    # It is part of a state dict, so that a model can go on from it as well.
    fresh = learned("find-domains")
    saved = {name: torch.from_numpy(value) for name, value in np.load(tmp_path / "state.npz").items()}
    fresh.load_state_dict({**fresh.state_dict(), **saved})
    assert close(fresh(images(5)), adapted(images(5)), 1e-4)


def test_a_state_of_another_model_is_refused(domains):
    runtime = export.load(domains[1], threads=1)
    state = runtime.state
    with pytest.raises(InputError, match=r"state must have the 6 arrays .* got another adaptation\.usage"):
        runtime.state = {**state, "adaptation.usage": np.zeros(3, np.float32)}
    with pytest.raises(InputError, match=r"adaptation\.counts"):
        runtime.state = {name: value for name, value in state.items() if name != "adaptation.counts"}


def test_plain_onnxruntime_needs_no_state_to_begin(domains):
    adapted, path = domains
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits, *state = session.run(None, {"images": images(5).numpy()})
    assert close(torch.from_numpy(logits), adapted(images(5)), 1e-4)
    names = [value.name for value in session.get_outputs()][1:]
    assert names == [f"next.{name}" for name in export.describe(path).state]
    given = {name.removeprefix("next."): value for name, value in zip(names, state, strict=True)}
    logits, *_ = session.run(None, {"images": images(3, seed=1).numpy(), **given})
    assert close(torch.from_numpy(logits), adapted(images(3, seed=1)), 1e-4)


def test_an_image_with_nan_is_not_remembered(domains):
    _, path = domains
    dirty, clean = export.load(path, threads=1), export.load(path, threads=1)
    batch = images(9, seed=3)
    batch[4, 1, 2, 2] = math.nan
    others = [index for index in range(9) if index != 4]
    logits = dirty(batch.numpy())
    assert np.isnan(logits[4]).all()
    np.testing.assert_allclose(logits[others], clean(batch[others].numpy()), atol=1e-5)
    for name, value in clean.state.items():
        np.testing.assert_allclose(dirty.state[name], value, rtol=1e-4, atol=1e-5)


def test_check_notices_a_model_that_has_learned_since(domains):
    adapted, path = domains
    runtime = export.load(path, threads=1)
    runtime(images(4).numpy())
    before = runtime.state
    assert export.check(runtime, adapted, batch_sizes=(7,)).passed
    for name, value in runtime.state.items():  # what the runtime has learned is left alone
        np.testing.assert_array_equal(value, before[name])
    adapted(images(40, seed=9) * 3)
    outcome = export.check(path, adapted, batch_sizes=(7,))
    assert not outcome.passed
    assert outcome.batches[0].state > 1e-4


def test_a_file_without_state_has_none(tmp_path):
    adapted = findtta.adapt(net(), "source")
    outcome = export.pt2(adapted, images(2), tmp_path / "source.pt2")
    assert outcome.batches[0].state is None
    runtime = export.load(tmp_path / "source.pt2")
    runtime.reset()
    assert runtime.state == {}
