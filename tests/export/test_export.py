"""Adapted models as files: what is written, what it says about itself, and that it does what the model does."""

import functools
import json
import math
import re
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import findtta
from findtta import export
from findtta.errors import InputError, MissingExtraError, OptionError
from findtta.export.checking import TOLERANCE, BatchCheck, Replay, difference_of, lost_similarity, random_images
from findtta.export.files import refuse_training_batch_norm
from findtta.export.runtimes import Description
from findtta.export.tracing import neighbour_nodes
from findtta.functional import first_neighbours
from nets import ActivatedNorm, close, conv, filled, graded, images, randn, stream, tiny

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

METHODS = {
    "find": {"alpha": 0.7},
    "find-soft": {},
    "find-star": {"cold_start": 3, "threshold": 0.3},
    "tbn": {},
    "alpha-bn": {"variance": "unbiased"},
    "iabn": {"k": 1.0},
    "source": {},
}


def adapted(method, model=None, **options):
    """An adapted model; FIND* past its cold start."""
    result = findtta.adapt(tiny() if model is None else model, method, **(options or METHODS[method]))
    for batch in stream(result.warm_up_left):
        result(batch)
    return result


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes a model of each method once, however many tests look at it."""
    folder = tmp_path_factory.mktemp("export")

    @functools.cache
    def once(method):
        model, path = adapted(method), folder / f"{method}.onnx"
        return model, path, export.onnx(model, images(2), path, images=images(70, seed=5))

    return once


@pytest.fixture(params=graded(METHODS))
def written(request, write):
    """A model, its ONNX file and what the check found."""
    return write(request.param)


@pytest.fixture
def find_file(write):
    return write("find")[:2]


def test_file_does_what_the_model_does(written):
    model, path, outcome = written
    assert [(batch.images, batch.batch_size) for batch in outcome.batches] == [
        *(("random", size) for size in (1, 2, 7, 64, 200)),
        *(("given", size) for size in (1, 2, 7, 64)),
    ]
    assert outcome.passed
    assert all(batch.difference <= TOLERANCE for batch in outcome.batches if batch.near_ties == 0)
    runtime = export.load(path, threads=1)
    for count in (3, 1, 33):
        batch = images(count, seed=count)
        assert close(torch.from_numpy(runtime(batch.numpy())), model(batch), 1e-4)


def test_no_node_normalises_in_training_mode(written):
    model, path, _ = written
    graph = onnx.load(path).graph
    kinds = {node.op_type for node in graph.node}
    assert not any(
        attribute.name == "training_mode" and attribute.i
        for node in graph.node
        if node.op_type == "BatchNormalization"
        for attribute in node.attribute
    )
    assert ("ArgMax" in kinds) == (model.name in ("find", "find-star"))
    axes = [value.type.tensor_type.shape.dim[0].dim_param for value in (*graph.input, *graph.output)]
    assert axes == ["batch"] * len(axes)


def test_a_poisoned_sample_reaches_no_other(written):
    model, path, _ = written
    for value in (math.nan, math.inf):
        batch = images(9, seed=3)
        batch[4, 1, 2, 2] = value
        got, expected = torch.from_numpy(export.load(path, threads=1)(batch.numpy())), model(batch)
        assert torch.equal(got.isnan(), expected.isnan())
        assert close(got, expected, 1e-4)
        assert not got[:4].isnan().any()


def test_no_path_of_this_machine_is_inside(written):
    _, path, _ = written
    content = path.read_bytes()
    assert b"site-packages" not in content
    assert b"adaptive.py" not in content


def test_description_is_read_back(written):
    model, path, _ = written
    described = export.describe(path)
    assert described.method == model.name
    assert described.opset == 18
    assert described.input_shape == (3, 8, 8)
    assert described.findtta == findtta.__version__
    assert described.max_batch == 1024
    assert described.labels is None
    assert {name: described.options[name] for name in METHODS[model.name]} == METHODS[model.name]
    values = {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}
    assert values["findtta.method"] == model.name


@pytest.mark.slow
@pytest.mark.parametrize("variance", ["instance-unbiased", pytest.param("unbiased", marks=pytest.mark.nightly)])
def test_other_estimators_of_the_variance_are_exported(tmp_path, variance):
    options = METHODS["find-star"] | {"alpha": 0.5}
    model = adapted("find-star", variance=variance, **options)
    assert {layer.split for layer in model.report()} == {True, False}
    assert export.onnx(model, images(2), tmp_path / "model.onnx").passed
    batch = images(9, seed=3)
    batch[4, 1, 2, 2] = math.nan
    got = torch.from_numpy(export.load(tmp_path / "model.onnx", threads=1)(batch.numpy()))
    assert close(got, model(batch), 1e-4)
    assert not close(got[:4], adapted("find-star", **options)(batch)[:4], 1e-4)


def test_find_star_exports_its_choice_of_layers(tmp_path):
    model = adapted("find-star")
    split = sum(layer.split for layer in model.report())
    assert 0 < split < len(model.report())
    assert len(neighbour_nodes(export.program(model, images(2)))) == split


@pytest.mark.slow
def test_layers_that_activate_keep_doing_so(tmp_path, timm):
    from timm.layers import BatchNormAct2d

    net = filled(nn.Sequential(conv(3, 6), BatchNormAct2d(6), conv(6, 5), ActivatedNorm(5), nn.Flatten()))
    model = findtta.adapt(net)
    assert export.onnx(model, images(2), tmp_path / "act.onnx").passed
    logits = export.load(tmp_path / "act.onnx", threads=1)(images(4).numpy())
    assert logits.min() == 0
    assert len(export.describe(tmp_path / "act.onnx").neighbours) == 2


class Windows(nn.Module):
    """Cuts each image into four windows, which its layer compares."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x):
        x = x.unflatten(2, (2, 4)).unflatten(4, (2, 4)).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
        return self.bn(x).mean((2, 3)).unflatten(0, (-1, 4)).flatten(1)


def test_several_rows_per_image_get_their_jumps():
    program = export.program(findtta.adapt(filled(Windows())), images(2), max_batch=16)
    jumps = sum(node.target is torch.ops.aten.gather.default for node in program.graph.nodes)
    assert jumps == 6 + 1  # 16 images are 64 windows; one more step looks where the walk ended


def test_program_serves_all_batch_sizes_and_has_no_subgraph():
    model = adapted("find")
    program = export.program(model, images(1))
    for count in (1, 2, 9):
        assert close(program.module()(images(count)), model(images(count)), 1e-5)
    assert all("wrap_with" not in str(node.target) for node in program.graph.nodes)


def test_pt2_file(tmp_path):
    model = adapted("find")
    steps = []
    outcome = export.pt2(model, images(2), tmp_path / "find.pt2", max_batch=64, progress=steps.append)
    assert [step.split()[0] for step in steps] == ["tracing", "writing", "checking"]
    assert outcome.passed
    assert max(batch.batch_size for batch in outcome.batches) == 64
    described = export.describe(tmp_path / "find.pt2")
    assert (described.method, described.opset, described.max_batch) == ("find", None, 64)
    runtime = export.load(tmp_path / "find.pt2")
    logits, neighbours = runtime.run_with_neighbours(images(12).numpy())
    assert close(torch.from_numpy(logits), model(images(12)), 1e-5)
    assert [len(chosen) for chosen in neighbours] == [12] * 4
    with zipfile.ZipFile(tmp_path / "find.pt2") as archive:
        assert not any(b"site-packages" in archive.read(name) for name in archive.namelist())


def test_model_is_not_changed(find_file):
    model, path = find_file
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    functions = [layer.partition for _, layer in model.layers()]
    export.check(path, model, batch_sizes=(4,))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert functions == [layer.partition for _, layer in model.layers()]


@pytest.mark.slow
def test_convolutions_can_be_quantised(tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        *(part for _ in range(3) for part in (torch.nn.Conv2d(3, 3, 3, bias=False), torch.nn.BatchNorm2d(3))),
        torch.nn.Flatten(),
    )
    model, path = findtta.adapt(net.eval(), "find"), tmp_path / "find.onnx"
    export.onnx(model, images(2), path)
    assert {len(node.input) for node in onnx.load(path).graph.node if node.op_type == "Conv"} == {2}

    class Batches(quantization.CalibrationDataReader):
        left = iter([{"images": images(8, seed=seed).numpy()} for seed in range(2)])

        def get_next(self):
            return next(self.left, None)

    quantization.quantize_static(path, tmp_path / "int8.onnx", Batches(), op_types_to_quantize=["Conv"])
    small = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "int8.onnx")
    (found,) = small.run(None, {"images": images(8).numpy()})
    expected = model(images(8)).numpy()
    # Eight bits can change which samples are neighbours, and so some outputs by more than rounding.
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9


# What does not work, and how it is said


def test_methods_that_learn_refuse():
    with pytest.raises(export.ExportError, match="'tent' learns from every batch"):
        export.program(findtta.adapt(tiny(), "tent"), images(2))


def test_find_star_refuses_before_its_choice():
    model = findtta.adapt(tiny(), "find-star", cold_start=2)
    model(images())
    with pytest.raises(
        export.ExportError, match=r"find-star warms up .* 2 batches .*cold_start=2.*, and 1 of them .*--data"
    ):
        export.program(model, images(2))


def test_other_partitioners_and_plain_models_refuse():
    with pytest.raises(export.ExportError, match="'random' cannot be part of a fixed graph"):
        export.program(findtta.adapt(tiny(), partitioner="random"), images(2))
    with pytest.raises(export.ExportError, match="method 'source'"):
        export.program(tiny(), images(2))


def test_wrong_arguments_are_named(tmp_path):
    model = adapted("find")
    with pytest.raises(OptionError, match=r"path must end in \.onnx"):
        export.onnx(model, images(2), tmp_path / "model.pb")
    with pytest.raises(OptionError, match="folder"):
        export.onnx(model, images(2), tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(OptionError, match="opset must be a whole number from 18"):
        export.onnx(model, images(2), tmp_path / "model.onnx", opset=11)
    with pytest.raises(OptionError, match="max_batch"):
        export.program(model, images(2), max_batch=1)
    with pytest.raises(InputError, match="example must be a batch"):
        export.program(model, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(OptionError, match="float16"):
        export.pt2(model, images(2).half(), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_model_that_torch_cannot_trace():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.bn(x) if x.sum() > 0 else x

    with pytest.raises(export.ExportError, match=r"torch\.export cannot trace the model: ."):
        export.program(findtta.adapt(filled(Branches())), images(2) + 9)


def test_wrong_batches_are_refused(find_file):
    runtime = export.load(find_file[1], threads=1)
    with pytest.raises(InputError, match=r"\(batch, 3, 8, 8\)"):
        runtime(np.zeros((2, 3, 9, 9), np.float32))
    with pytest.raises(InputError, match="uint8"):
        runtime(np.zeros((2, 3, 8, 8), np.uint8))
    with pytest.raises(InputError, match="1 to 1024"):
        runtime(np.zeros((1025, 3, 8, 8), np.float32))


def test_wrong_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        export.load(tmp_path / "none.onnx")
    with pytest.raises(InputError, match="must end in"):
        export.describe(tmp_path / "model.pth")
    for name in ("bad.onnx", "bad.pt2"):
        (tmp_path / name).write_bytes(b"not a model")
        with pytest.raises(InputError, match="bad"):
            export.describe(tmp_path / name)
    onnx.save(onnx.ModelProto(ir_version=8), tmp_path / "foreign.onnx")
    with pytest.raises(InputError, match="no description"):
        export.describe(tmp_path / "foreign.onnx")
    with pytest.raises(OptionError, match="threads"):
        export.load(tmp_path / "foreign.onnx", threads=0)


def test_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("findtta._extras.installed", lambda name: name != "onnxruntime")
    with pytest.raises(MissingExtraError, match=r"onnxruntime.*\[export\]"):
        export.onnx(adapted("find"), images(2), tmp_path / "model.onnx")


def test_training_batch_norm_is_noticed():
    helper = onnx.helper
    node = helper.make_node("BatchNormalization", list("xsbmv"), list("ynw"), name="bad", training_mode=1)
    graph = helper.make_graph([node], "g", [], [])
    with pytest.raises(export.ExportError, match=r"'bad'.*training mode"):
        refuse_training_batch_norm(helper.make_model(graph))
    inside = helper.make_node("If", ["c"], ["z"], then_branch=graph, else_branch=graph)
    with pytest.raises(export.ExportError, match="'bad'"):
        refuse_training_batch_norm(helper.make_model(helper.make_graph([inside], "outer", [], [])))


def test_a_file_that_differs_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("findtta.export.checking.TOLERANCE", -1.0)
    with pytest.raises(export.ExportError, match=r"(?s)not kept.*DIFFERENT"):
        export.onnx(adapted("source"), images(2), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


# The check itself


def test_check_notices_another_model(find_file):
    _, path = find_file
    outcome = export.check(path, findtta.adapt(tiny(seed=1)), batch_sizes=(16,))
    assert not outcome.passed
    assert "DIFFERENT" in str(outcome)
    with pytest.raises(InputError, match="batch_sizes"):
        export.check(path, find_file[0], batch_sizes=(5000,))
    with pytest.raises(InputError, match="images must be floats of shape"):
        export.check(path, find_file[0], images(4, size=9))


def test_a_forced_near_tie_is_traced(find_file):
    """All samples alike: neighbours are decided by rounding alone."""
    model, path = find_file
    runtime = export.load(path, threads=1)
    batch = images(1).expand(24, -1, -1, -1) + 1e-6 * randn(24, 3, 8, 8)
    logits, neighbours = runtime.run_with_neighbours(batch.numpy())
    repeated = Replay(model, batch, neighbours)
    assert repeated.margin <= 1e-6
    assert close(repeated.logits, torch.from_numpy(logits), 1e-4)
    assert export.check(runtime, model, batch, batch_sizes=(24,)).passed


def test_replay_needs_the_right_number_of_choices(find_file):
    model, path = find_file
    _, neighbours = export.load(path, threads=1).run_with_neighbours(images(6).numpy())
    assert not Replay(model, images(6), neighbours[:-1]).complete
    assert Replay(model, images(6), neighbours).choices == 0


def test_wrong_neighbours_have_a_large_margin(find_file):
    model, path = find_file
    _, neighbours = export.load(path, threads=1).run_with_neighbours(images(6).numpy())
    wrong = [(chosen + 1) % 6 for chosen in neighbours]
    repeated = Replay(model, images(6), wrong)
    assert repeated.choices > 0
    assert repeated.margin > 1e-3


def test_lost_similarity():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [math.nan, 0.0]])
    assert lost_similarity(features, first_neighbours(features)) == 0
    assert lost_similarity(features, torch.tensor([1, 2, 0, 3])) == pytest.approx(math.sqrt(0.5))
    assert lost_similarity(features, torch.tensor([2, 2, 3, 3])) == math.inf  # a poisoned neighbour
    assert lost_similarity(features, torch.tensor([0, 2, 0, 3])) == math.inf  # itself, with others there
    assert lost_similarity(features[:1], torch.tensor([0])) == 0


def test_difference_of_logits():
    a = torch.tensor([[1.0, 4.0], [2.0, 0.0]])
    assert difference_of(a, a) == (0.0, 0)
    assert difference_of(a, a + torch.tensor([[0.0, 0.4], [0.0, 0.0]])) == (pytest.approx(0.1), 0)
    assert difference_of(a, a.flip(1)) == (pytest.approx(0.75), 2)
    assert difference_of(a, torch.tensor([[math.nan, 4.0], [2.0, 0.0]])) == (math.inf, 1)
    tie = torch.tensor([[1.0, 1.0 + 1e-6]])
    assert difference_of(tie, tie.flip(1))[1] == 0


@pytest.mark.parametrize(
    ("batch", "verdict"),
    [
        (BatchCheck("random", 2, 1e-5, 0), "equal"),
        (BatchCheck("random", 2, 1e-5, 1), "DIFFERENT"),
        (BatchCheck("random", 2, 1e-2, 0), "DIFFERENT"),
        (BatchCheck("random", 2, 1e-2, 1, 3, 1e-8, 1e-6), "equal but for near-ties"),
        (BatchCheck("random", 2, 1e-2, 1, 3, 1e-5, 1e-6), "DIFFERENT"),
        (BatchCheck("random", 2, 1e-2, 1, 3, 1e-8, 1e-2), "DIFFERENT"),
        (BatchCheck("random", 2, 1e-2, 1, 0, 0.0, 1e-6), "DIFFERENT"),
    ],
)
def test_verdicts(batch, verdict):
    assert batch.verdict == verdict
    assert export.Check((batch,)).passed == (verdict != "DIFFERENT")


def test_random_images_are_reproducible_and_in_range():
    first = random_images(5, (3, 8, 8), seed=1)
    assert torch.equal(first, random_images(5, (3, 8, 8), seed=1))
    assert 0 <= first.min() < first.max() <= 1
    assert random_images(4, (6,), seed=0).shape == (4, 6)


def test_files_of_the_first_version_can_be_described():
    described = Description.of(adapted("tbn"), images(2), max_batch=8, neighbours=())
    written = described.to_json()
    written["largest_batch"] = written.pop("max_batch")
    assert Description.from_json(written) == described


def test_infinite_options_are_written_as_text():
    described = Description.of(adapted("iabn", k=math.inf), images(2), max_batch=8, neighbours=("a", "b"))
    assert described.options["k"] == "inf"
    assert Description.from_json(described.to_json()) == described
    assert "Infinity" not in "".join(described.to_json().values())


def test_check_prints_one_line_per_batch(written):
    lines = str(written[2]).splitlines()
    assert len(lines) == 2 + 9
    assert all(re.search(r"equal", line) for line in lines[2:])
