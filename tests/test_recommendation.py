"""Recommending a method: from batches, and on the command line."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import findtta
from findtta.cli.main import main
from findtta.data import load
from findtta.errors import InputError, OptionError, UnknownNameError, UnsupportedModelError
from findtta.estimates import Evidence
from findtta.recommendation import JUDGES, MARGIN, Candidate, Collected, Recommendation, Traffic, judge
from nets import assert_same_snapshot, images, randn, snapshot, tiny

FEW = ("tbn", "find", "find:alpha=0.9", "find-soft")


def batches(count: int = 4, size: int = 32) -> list[torch.Tensor]:
    return [images(size, seed=number) for number in range(count)]


def test_all_candidates_and_the_unadapted_model_are_compared():
    model = tiny()
    before = snapshot(model)
    found = findtta.recommend(model, batches(), FEW)
    assert {candidate.name for candidate in found.candidates} == {"source", *FEW}
    estimates = [candidate.estimate for candidate in found.candidates]
    assert estimates == sorted(estimates, reverse=True)
    assert next(c for c in found.candidates if c.name == "source").gain == 0
    assert (found.traffic.images, found.traffic.batches, found.traffic.batch_size) == (128, 4, 32)
    assert_same_snapshot(before, snapshot(model))


def test_the_same_batches_give_the_same_recommendation_in_any_mode():
    model = tiny()
    assert findtta.recommend(model, batches(), FEW) == findtta.recommend(model.train(), iter(batches()), FEW)


def test_labels_of_a_data_loader_are_not_looked_at():
    inputs = torch.cat(batches())
    plain = findtta.recommend(tiny(), inputs.split(32), FEW)
    loader = DataLoader(TensorDataset(inputs, torch.full((len(inputs),), -1)), 32)
    assert findtta.recommend(tiny(), loader, FEW) == plain


def test_the_order_of_images_in_a_batch_and_of_methods_does_not_matter():
    plain = findtta.recommend(tiny(), batches(), FEW)
    mixed = [batch[torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))] for batch in batches()]
    by_name = {candidate.name: candidate for candidate in plain.candidates}
    for found in (
        findtta.recommend(tiny(), mixed, FEW),
        findtta.recommend(tiny(), batches(), ("find-soft", "find", "find:alpha=0.9", "tbn")),
    ):
        assert found.best.name == plain.best.name
        for candidate in found.candidates:
            assert candidate.estimate == pytest.approx(by_name[candidate.name].estimate, abs=1e-3)


def test_images_that_are_not_finite_are_left_out():
    spoilt = batches()
    spoilt[1][3] = torch.nan
    found = findtta.recommend(tiny(), spoilt, FEW)
    assert found.traffic.images == 127
    assert np.isfinite([candidate.estimate for candidate in found.candidates]).all()


def test_a_method_that_settles_can_be_compared():
    found = findtta.recommend(tiny(), batches(), ["find", "find-star:cold_start=1"])
    star = next(candidate for candidate in found.candidates if candidate.method == "find-star")
    assert star.options == {"cold_start": 1}
    assert star.python == 'model = findtta.adapt(model, "find-star", cold_start=1)'
    assert star.flags == "--method find-star --option cold_start=1"


def test_other_inputs_than_images():
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5)).eval()
    vectors = randn(128, 8).split(32)
    assert findtta.recommend(net, vectors, FEW).traffic.images == 128


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (batches(3), "at least 100 images in at least 2 batches, got 96 in 3"),
        ([images(128)], "at least 100 images in at least 2 batches, got 128 in 1"),
        ([], "got 0 in 0"),
        ([np.zeros((4, 3, 8, 8))], "must be float tensors as the model gets them, got ndarray"),
        ([torch.zeros(4, 3, 8, 8, dtype=torch.uint8)], "must be float tensors .* got torch.uint8 tensors"),
    ],
)
def test_batches_that_cannot_be_used(given, message):
    with pytest.raises(InputError, match=message):
        findtta.recommend(tiny(), given, FEW)


def test_fewer_images_than_classes():
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 300)).eval()
    found = findtta.recommend(net, randn(128, 8).split(32), FEW)
    assert found.traffic.images == 128
    assert all(0 <= candidate.evidence.spread <= 1 for candidate in found.candidates)


def test_candidates_that_cannot_be_used():
    with pytest.raises(OptionError, match=r"candidates must keep nothing .* got 'tent', which learns"):
        findtta.recommend(tiny(), batches(), ["find", "tent"])
    with pytest.raises(UnknownNameError, match="Did you mean 'find'"):
        findtta.recommend(tiny(), batches(), ["fnd"])
    with pytest.raises(UnknownNameError, match="no option 'alhpa'"):
        findtta.recommend(tiny(), batches(), ["find:alhpa=0.9"])


def test_a_model_that_returns_no_logits_is_refused():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    with pytest.raises(UnsupportedModelError, match="must return logits"):
        findtta.recommend(net, batches(), FEW)


def collected(gain: int, over_soft: int = 0) -> Collected:
    """Predictions for 400 images, of which the unadapted model and find-soft take these numbers for class 0."""
    classes = np.arange(400) % 4
    places = np.arange(400) * 7 % 400  # so that batches are alike
    source, soft = (np.where(places < wrong, 0, classes) for wrong in (gain, over_soft))
    one_hot = {"source": source} | dict.fromkeys(JUDGES, classes) | {"find-soft": soft}
    methods = {name: (name.partition(":")[0], {}) for name in one_hot}
    predictions = {name: np.eye(4)[labels] for name, labels in one_hot.items()}
    return Collected(methods, predictions, np.ones((400, 3)), None, (100,) * 4)


def test_another_method_is_only_preferred_if_it_is_clearly_better():
    found = judge(collected(0))
    assert found.best.name == "source"
    assert found.sentence.startswith("Use the unadapted model: no method is estimated clearly better; the highest")
    found = judge(collected(200))
    assert found.best.name == "find-soft"
    assert found.best.gain > MARGIN / 20  # of 400 images
    assert found.sentence.startswith("Use find-soft: its accuracy is estimated at ")


def test_find_soft_is_recommended_unless_another_method_is_clearly_better():
    near, far = judge(collected(200, 1)), judge(collected(200, 100))
    assert near.candidates[0].name != "find-soft"
    assert near.best.name == "find-soft"
    assert f"; {near.candidates[0].name} is estimated only " in near.sentence
    assert far.best is far.candidates[0]
    assert far.best.name != "find-soft"


def candidate(name: str, gain: float, **options: float) -> Candidate:
    return Candidate(name, name.partition(":")[0], options, Evidence(0.5, 0.5, 0.0), 50 + gain, gain)


def shown(*found: Candidate) -> Recommendation:
    traffic = Traffic(128, 4, 32.0, 0.2, 0.5, 0.9, 3.0, 4.0)
    return Recommendation(found[0], found, traffic)


def test_what_is_said_about_find():
    source, find = candidate("source", 0.0), candidate("find", -2.5)
    high = candidate("find:alpha=0.95", 0.4, alpha=0.95)
    said = shown(source, find, high).about_find
    assert said.startswith("FIND at its default is estimated 2.5 points below the unadapted model")
    assert said.endswith("the evidence supports 0.95 (+0.4).")
    assert shown(candidate("find", 3.0), source, high).about_find.endswith(
        "no other alpha that was tried is better."
    )
    assert shown(source, candidate("tbn", -1.0)).about_find == ""
    assert "the highest is find (-2.5)" in shown(source, find).sentence


def test_a_recommendation_prints_and_becomes_json():
    found = shown(candidate("find:alpha=0.9", 4.0, alpha=0.9), candidate("source", 0.0))
    text = str(found)
    assert text.startswith("Use find:alpha=0.9: its accuracy is estimated at 54%, 4.0 points above")
    assert "128 images in 4 batches of 32; drift 0.20 (50% of the images have drifted)" in text
    assert 'model = findtta.adapt(model, "find", alpha=0.9)' in text
    assert "findtta serve --method find --option alpha=0.9 ..." in text
    unknown = dataclasses.replace(found, traffic=dataclasses.replace(found.traffic, drift=None, drifted=None))
    assert "unknown drift" in str(unknown)
    read = json.loads(json.dumps(found.to_dict()))
    assert (read["method"], read["options"]) == ("find", {"alpha": 0.9})
    assert [each["name"] for each in read["candidates"]] == ["find:alpha=0.9", "source"]


# --- the command line


MODEL_FILE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 10)
    )
"""


@pytest.fixture
def words(tmp_path) -> list[str]:
    """A command for a small model."""
    file = tmp_path / "own.py"
    file.write_text(MODEL_FILE)
    model = ["--model", f"{file}:make", "--num-classes", "10", "--image-size", "32"]
    return ["recommend", "--candidates", "tbn,find,find:alpha=0.9", "--batch-size", "32", *model]


def test_arrays_and_a_folder_of_images_give_the_same(words, tmp_path, capsys):
    pixels = load("shapes", count=128).images("clean", np.arange(128))
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.zeros(128))
    assert main([*words, "--input", str(tmp_path / "images.npz"), "--json"]) == 0
    from_arrays = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in from_arrays["candidates"]} == {"source", "tbn", "find", "find:alpha=0.9"}
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number:03}.png")
    assert main([*words, "--input", str(tmp_path), "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert json.loads(told.out) == from_arrays
    assert main([*words, "--input", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Use ")
    assert "128 images in 4 batches of 32" in told.out
    assert "input: 32 x 32" in told.err
    assert told.out.rstrip().endswith(f"--image-size 32 --model {words[6]} --num-classes 10")


def test_a_stream_of_a_dataset_with_a_config_file(words, tmp_path, capsys):
    (tmp_path / "model.toml").write_text(f'model = "{words[6]}"\nnum_classes = 10\nmethod = "tbn"\n')
    stream = ("--data", "shapes", "--images", "320", "--domains", "fog,contrast", "--batches", "4")
    config = ("--config", str(tmp_path / "model.toml"))
    assert main([*words[:5], *config, *stream]) == 0
    told = capsys.readouterr().out
    assert "128 images in 4 batches of 32" in told  # of twenty, evenly spread
    assert told.rstrip().endswith(f"--config {tmp_path / 'model.toml'}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "input must be given, such as a folder of images, or else a stream"),
        (("--input", "x", "--data", "shapes"), "not both, got input, data"),
        (("--input", "missing"), "does not exist; give a folder"),
        (("--input", "missing.npz"), "must be an .npz file with an array 'images'"),
        (("--data", "shapes", "--candidates", "tent"), "which learns from each batch"),
    ],
)
def test_errors_of_the_command_line(words, message, capsys):
    assert main(["recommend", "--batch-size", "32", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK broken", b"\x93NUMPY"])
def test_a_file_that_is_no_npz_is_an_error_of_the_input(content, tmp_path, capsys):
    (tmp_path / "images.npz").write_bytes(content)
    assert main(["recommend", "--input", str(tmp_path / "images.npz")]) == 2
    told = capsys.readouterr().err
    assert "must be an .npz file with an array 'images': it is another kind of file." in told
    assert "unsafe" not in told


def test_images_that_cannot_be_read_are_left_out_and_told(words, tmp_path, capsys):
    pixels = load("shapes", count=160).images("clean", np.arange(160))
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number:03}.png")
    for number in (*range(32), 40):  # a whole batch, and one of the next
        (tmp_path / f"{number:03}.png").write_bytes(b"broken")
    assert main([*words, "--input", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "32 images of batch 1 cannot be read and are left out" in told.err
    assert "1 images of batch 2 cannot be read and are left out" in told.err
    assert "127 images in 4 batches" in told.out


def test_arrays_are_used_at_their_size(words, tmp_path, capsys):
    np.savez(tmp_path / "images.npz", images=np.zeros((64, 48, 48, 3), np.uint8))
    assert main([*words, "--input", str(tmp_path / "images.npz")]) == 2
    assert "the images of an .npz are used as they are, 48 x 48" in capsys.readouterr().err


def test_arrays_of_another_shape_are_refused(tmp_path, capsys):
    np.savez(tmp_path / "images.npz", images=np.zeros((8, 32, 32), np.uint8))
    assert main(["recommend", "--input", str(tmp_path / "images.npz")]) == 2
    assert (
        "must be uint8 of shape (images, height, width, 3), got uint8 of shape (8, 32, 32)"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("method", "told"), [("find", True), ("tbn", False)])
def test_options_of_a_config_file_that_were_not_compared_are_told(
    method, told, words, tmp_path, capsys, monkeypatch
):
    file = tmp_path / "model.toml"
    file.write_text(f'model = "{words[6]}"\nnum_classes = 10\nmethod = "{method}"\noptions = {{alpha = 0.2}}\n')
    best = SimpleNamespace(best=SimpleNamespace(method="find"), text=lambda flags: flags)
    monkeypatch.setattr("findtta.cli.recommend.recommend", lambda *_, **__: best)
    assert main(["recommend", "--config", str(file), "--data", "shapes", "--images", "64"]) == 0
    assert ("Take the options of find out of the file first" in capsys.readouterr().out) == told
