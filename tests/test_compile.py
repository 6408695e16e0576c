"""Adapted models under torch.compile and torch.export."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import findtta
from nets import ActivatedNorm, close, conv, filled, graded, images, stream, tiny

# Warnings of torch about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

BATCH_SIZES = (4, 7, 16, 33, 5, 64)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def adapted(method, model=None):
    """An adapted model; FIND* past its cold start, with split and unsplit layers."""
    result = findtta.adapt(tiny() if model is None else model, method)
    if method == "find-star":
        for batch in stream(10):
            result(batch)
        assert {layer.split for layer in result.report()} == {True, False}
    return result


def activated_net():
    return filled(nn.Sequential(conv(3, 6), ActivatedNorm(6), conv(6, 6), nn.BatchNorm2d(6)))


each_method = pytest.mark.parametrize("method", graded())


@each_method
def test_one_graph_serves_all_batch_sizes(method):
    model, counter = adapted(method), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for count in BATCH_SIZES:
        batch = images(count, seed=count)
        assert close(compiled(batch), model(batch), 1e-5)
    assert 1 <= counter.frame_count <= 3


@each_method
def test_layers_that_do_more_than_normalise_compile(method):
    model, counter = adapted(method, activated_net()), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for count in BATCH_SIZES:
        assert close(compiled(images(count)), model(images(count)), 1e-5)
    assert counter.frame_count <= 3


@pytest.mark.slow
def test_timm_layers_compile(timm):
    from timm.layers import BatchNormAct2d

    model = findtta.adapt(filled(nn.Sequential(conv(3, 6), BatchNormAct2d(6))))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert close(compiled(images()), model(images()), 1e-5)


SIZES = (1, 2, 7, 64)


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        *(("find", sizes) for sizes in (SIZES, (5, 64, 6, 1))),
        pytest.param("find", SIZES[::-1], marks=pytest.mark.nightly),
        *(pytest.param(*case.values, SIZES, marks=case.marks) for case in graded() if case.values != ("find",)),
    ],
)
def test_graphs_do_not_grow_with_the_batch_sizes(method, sizes):
    model, counter = adapted(method), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for count in sizes:
        assert close(compiled(images(count)), model(images(count)), 1e-5)
    assert counter.frame_count <= 3


def test_compiled_model_leaves_its_input_alone():
    batch = images()
    kept = batch.clone()
    torch.compile(findtta.adapt(tiny()), backend="eager")(batch)
    assert torch.equal(batch, kept)


@pytest.mark.slow
def test_compiling_while_find_star_still_scores_selects_the_same_layers():
    eager = findtta.adapt(tiny(), "find-star", cold_start=3)
    compiled = torch.compile(findtta.adapt(tiny(), "find-star", cold_start=3), backend="eager")
    for batch in stream(6):
        assert close(compiled(batch), eager(batch), 1e-5)
    assert [layer.split for layer in compiled.report()] == [layer.split for layer in eager.report()]


@each_method
def test_exported_program_serves_all_batch_sizes(method):
    model = adapted(method)
    batch_size = torch.export.Dim("batch", min=2, max=4096)
    # One more pair of brackets: the adapted model takes any number of arguments.
    program = torch.export.export(model, (images(6),), dynamic_shapes=(({0: batch_size},),), strict=False)
    for count in (2, 5, 64):
        assert close(program.module()(images(count)), model(images(count)), 1e-5)


@pytest.mark.slow
def test_exported_program_can_be_saved(tmp_path):
    model = findtta.adapt(tiny())
    program = torch.export.export(model, (images(6),), strict=False)
    torch.export.save(program, tmp_path / "find.pt2")
    loaded = torch.export.load(tmp_path / "find.pt2").module()
    assert close(loaded(images(6, seed=1)), model(images(6, seed=1)), 1e-5)
