"""A model in one file: every command takes it, flags win over it, and what is wrong with it is said."""

import argparse
import dataclasses
import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from findtta import export
from findtta.bench.plan import Planner, RunSpec
from findtta.cli import export as command
from findtta.cli.config import LIMITS, ModelFile, read_config
from findtta.cli.flags import given
from findtta.cli.main import main
from findtta.data.shapes import Shapes
from findtta.errors import InputError, MissingExtraError
from findtta.models import build, load, preprocessing_of
from findtta.models.weights import write_weights
from findtta.predictor import PredictorSettings
from findtta.serve import Settings

OWN = """
import torch
from torch import nn

def make(classes=3):
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 32 * 32, classes))
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), *head)

def no_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
"""
CONFIG = """
model = "own_net.py:make"
weights = "own.pt"
classes = "classes.txt"
image_size = 32
crop = 0.8
mean = [0.4, 0.5, 0.6]
std = [0.2, 0.25, 0.3]
method = "alpha-bn"
options = { alpha = 0.3 }

[limits]
max_batch = 16
max_pixels = 5000
timeout_s = 5
"""
CLASSES = ("tulip", "daisy", "rose")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a config file and all it names; the working directory is another."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "own_net.py").write_text(OWN)
    names: dict = {}
    exec(OWN, names)
    torch.save({key: value + 0.1 for key, value in names["make"]().state_dict().items()}, folder / "own.pt")
    (folder / "classes.txt").write_text("\n".join(CLASSES))
    (folder / "model.toml").write_text(CONFIG)
    for label in CLASSES:
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (40, 48, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / label / f"{number}.png")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("FINDTTA_API_KEY", raising=False)
    return folder


def parsed(name: str, *words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"findtta.cli.{name}").add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_serve_takes_the_file_and_flags_win(folder):
    from findtta.cli.serve import settings_of

    file = folder / "model.toml"
    settings = settings_of(parsed("serve", "--config", file, "--timeout-s", 7, "--option", "alpha=0.9"))
    assert (settings.method, settings.options) == ("alpha-bn", {"alpha": 0.9})
    assert (settings.max_batch, settings.max_pixels, settings.timeout_s) == (16, 5000, 7)
    predictor = settings.predictor()
    assert predictor.labels == CLASSES
    assert (predictor.preprocess.size, predictor.preprocess.resize) == ((32, 32), 40)
    assert predictor.input.endswith("; from model.toml; by default bilinear")
    flags = ("--crop", 1, "--normalization", "half")
    predictor = settings_of(parsed("serve", "--config", file, *flags)).predictor()
    assert (predictor.preprocess.resize, predictor.card.mean) == (32, (0.5, 0.5, 0.5))
    assert "given --crop, --normalization; from model.toml" in predictor.input


@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_the_same_in_yaml_is_read_the_same(folder, suffix):
    file = folder / f"model.{suffix}"
    file.write_text(yaml.safe_dump(tomllib.loads(CONFIG)))
    expected = read_config(folder / "model.toml")
    expected["card"]["source"] = file.name
    assert read_config(file) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a list", "at its top there must be names with values"),
        ("1: a number", "at its top there must be names with values"),
        ("", "at its top there must be names with values"),
        ("model: [", "must be YAML in UTF-8: while parsing"),
        ("model: !!python/object:os.system x", "could not determine a constructor"),
    ],
)
def test_what_is_wrong_with_yaml_is_said(tmp_path, text, reason):
    (tmp_path / "model.yaml").write_text(text)
    with pytest.raises(InputError, match=re.escape(reason)):
        read_config(tmp_path / "model.yaml")


def test_without_its_extra_yaml_is_refused(folder, monkeypatch):
    (folder / "model.yaml").write_text("model: resnet26")
    monkeypatch.setattr("findtta._extras.installed", lambda module: module != "yaml")
    with pytest.raises(MissingExtraError, match=r"a file in YAML needs the 'yaml' extra: pip install"):
        read_config(folder / "model.yaml")


def test_predict_takes_the_file_and_flags_win(folder, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["predict", "--config", folder / "model.toml", "--input", folder / "photos", "-o", out]
    assert main([*map(str, words), "--format", "jsonl", "--method", "find"]) == 0
    assert "12 predicted" in capsys.readouterr().out
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["method"], manifest["options"]["alpha"]) == ("find", 0.8)  # not the options of alpha-bn
    assert manifest["classes"] == list(CLASSES)
    assert manifest["normalization"] == [[0.4, 0.5, 0.6], [0.2, 0.25, 0.3]]
    assert manifest["max_pixels"] == 5000
    assert str(folder) not in json.dumps(manifest)


def test_export_takes_the_file_and_flags_win(folder):
    arguments = parsed("export", "--config", folder / "model.toml", "-o", "net.pt2", "--max-batch", 12)
    settings = command.ExportSettings(output=arguments.output, **given(arguments, command.ExportSettings))
    assert (settings.method, settings.options, settings.max_batch) == ("alpha-bn", {"alpha": 0.3}, 12)
    assert command._load(settings).card.classes == CLASSES
    # A graph needs no number of classes, but the normalization that the file gives.
    unnamed = dataclasses.replace(settings, card={"mean": [0.4] * 3, "std": [0.2] * 3})
    assert command._load(unnamed).card.mean == (0.4,) * 3


@pytest.mark.slow
def test_an_exported_file_has_what_the_config_file_says(folder, tmp_path, capsys):
    assert main(["export", "--config", str(folder / "model.toml"), "-o", str(tmp_path / "net.pt2")]) == 0
    described = export.describe(tmp_path / "net.pt2")
    assert (described.method, described.options["alpha"], described.max_batch) == ("alpha-bn", 0.3, 16)
    assert (described.labels, described.mean, described.input_shape) == (CLASSES, (0.4, 0.5, 0.6), (3, 32, 32))
    assert described.model == "own_net.py:make"
    assert "from model.toml" in capsys.readouterr().err


def test_run_takes_the_file_and_flags_win(folder, capsys):
    photos = ["--data", str(folder / "photos"), "--domains", "fog,contrast", "--batch-size", "8"]
    words = ["run", "--config", str(folder / "model.toml"), *photos, "--no-store", "--json"]
    assert main([*words, "--option", "alpha=0.5"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["config"]["method"] == "alpha-bn"
    assert result["config"]["options"]["alpha"] == 0.5
    assert result["config"]["model"]["name"] == "own_net.py:make"
    assert result["config"]["model"]["input"]["mean"] == [0.4, 0.5, 0.6]
    spec = RunSpec(**given(parsed("run", *words[1:]), RunSpec))
    plan = Planner().plan(RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))))  # as workers get it
    assert plan.dataset.classes == CLASSES  # the order of the model, not that of the folders
    assert plan.dataset.preprocessing == preprocessing_of(plan.model)
    assert plan.config["data"] == result["config"]["data"]


def test_images_of_a_dataset_of_arrays_stay_as_they_are_though_the_file_says_a_size(folder):
    (folder / "shapes.toml").write_text('model = "shapes-resnet26"\nimage_size = 32\ncrop = 0.9\n')
    words = (
        "--config",
        folder / "shapes.toml",
        "--data-option",
        "count=10",
        "--batch-size",
        8,
        "--domains",
        "fog",
    )
    assert Planner().plan(RunSpec(**given(parsed("run", *words), RunSpec))).dataset.preprocessing is None


def test_another_model_or_method_replaces_what_belongs_to_the_one_of_the_file(folder):
    words = ("--config", folder / "model.toml", "--input", "x", "-o", "y")
    other = given(parsed("predict", *words, "--model", "shapes-resnet26"), PredictorSettings)
    assert other == {
        "model": "shapes-resnet26", "method": "alpha-bn", "options": {"alpha": 0.3}, "max_pixels": 5000
    }  # fmt: skip
    other = given(parsed("predict", *words, "--method", "tbn"), PredictorSettings)
    assert (other["method"], "options" in other, "weights" in other) == ("tbn", False, True)
    same = given(parsed("predict", *words, "--method", "alpha-bn"), PredictorSettings)
    assert same["options"] == {"alpha": 0.3}


def test_every_key_is_a_flag_of_serve_of_the_same_type():
    flags = {field.name for field in dataclasses.fields(Settings) if "meaning" in field.metadata}
    assert flags.issuperset(LIMITS)
    shared = {field.name for field in dataclasses.fields(ModelFile)} - {"classes", "mean", "std", "limits"}
    assert shared <= flags
    here, there = (get_type_hints(kind, include_extras=True) for kind in (ModelFile, Settings))
    for name in ("num_classes", "image_size", "crop", "interpolation"):
        assert here[name] == there[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("image_size = 32", "imge_size = 32"), "has no option 'imge_size'. Did you mean 'image_size'"),
        (("image_size = 32", 'image_size = "32"'), "image_size must be a whole number of at least 1, got '32'"),
        (("crop = 0.8", "crop = 1.5"), "crop must be above 0 and at most 1, got 1.5"),
        (("crop = 0.8", 'interpolation = "lanczos"'), "interpolation must be 'bilinear' or 'bicubic'"),
        (("mean = [0.4, 0.5, 0.6]", "mean = [123.7, 116.3, 103.5]"), "mean must be a number from 0 to 1, got"),
        (("mean = [0.4, 0.5, 0.6]", "mean = [0.4, 0.5]"), "three numbers each"),
        (("mean = [0.4, 0.5, 0.6]", ""), "mean and std must be given together"),
        (("crop = 0.8", 'normalization = "half"'), "normalization must not be given beside mean and std"),
        (("crop = 0.8", "num_classes = 4"), "classes must name 4 classes (num_classes), got 3"),
        (('"classes.txt"', '"missing.txt"'), "missing.txt' cannot be read as one"),
        (('"classes.txt"', "[1, 2, 3]"), "classes must be a text, got 1"),
        (('model = "own_net.py:make"', ""), "model must be given: a shipped model"),
        (("max_batch = 16", "max_bach = 16"), "limits must be one of max_image_mb"),
        (("max_batch = 16", "port = 80"), "got 'port'"),
        (("max_batch = 16", "max_batch = 1.5"), "max_batch must be a whole number of at least 1, got 1.5"),
        (("max_batch = 16", "max_batch = 16\nmax_images = 17"), "max_images must be at most max_batch (16)"),
        (("[limits]", "[limits"), "must be TOML in UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(folder, capsys, change, message):
    assert change[0] in CONFIG
    (folder / "model.toml").write_text(CONFIG.replace(*change))
    for words in (
        ["models", "check", str(folder / "model.toml")],
        ["run", "--config", str(folder / "model.toml")],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith("findtta: config: ")
        assert "model.toml" in error
        assert message in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"own.pt"', '"none.pt"'), "none.pt' does not exist"),
        (('"classes.txt"', '["a", "b"]'), "num_classes: the model has 3 classes, not 2"),
        (("image_size = 32", "image_size = 33"), "image_size: the model cannot compute images of 33 x 33 pixels"),
        (("image_size = 32", ""), "image_size must be given"),
        (('make"\nweights = "own.pt"', 'no_norm"'), "has no BatchNorm layer"),
        (("own_net.py:make", "own_net.py:mak"), "Did you mean 'make'"),
        (("{ alpha", "{ alfa"), "has no option 'alfa'. Did you mean 'alpha'"),
        (('"alpha-bn"', '"alfa-bn"'), "Did you mean 'alpha-bn'"),
        (("[0.2, 0.25, 0.3]", "[1e-45, 1e-45, 1e-45]"), "must be finite"),
    ],
)
def test_check_says_what_does_not_work_with_the_model(folder, capsys, change, message):
    assert change[0] in CONFIG
    (folder / "model.toml").write_text(CONFIG.replace(*change))
    assert main(["models", "check", str(folder / "model.toml")]) == 2
    assert message in capsys.readouterr().err


def test_check_predicts_images_and_measures_where_it_can(folder, capsys):
    file, photos = str(folder / "model.toml"), folder / "photos"
    assert main(["models", "check", file, "--images", str(photos)]) == 0
    printed = capsys.readouterr().out
    assert "3 classes (tulip, daisy, rose)\ninput: 32 x 32 (" in printed
    assert "method: alpha-bn, alpha=0.3; 1 of 1 normalisation layers are adapted" in printed
    source, adapted = (int(number) for number in re.findall(r"% \((\d+) correct\)", printed))
    # Images are the same in every class: a third is right whatever the model predicts.
    assert (source, adapted) == (4, 4)
    assert "accuracy on 12 images: source model 33.3%" in printed
    assert "model.toml can be used" in printed

    assert main(["models", "check", file, "--images", str(photos / "rose")]) == 0
    printed = capsys.readouterr().out
    assert "3.png" in printed
    assert "accuracy" not in printed
    assert main(["models", "check", file]) == 0  # drawn shapes, which are of other classes
    printed = capsys.readouterr().out
    assert "64 images were predicted" in printed
    assert "accuracy" not in printed
    (photos / "violet").mkdir()
    Image.new("RGB", (9, 9)).save(photos / "violet" / "1.png")
    assert main(["models", "check", file, "--images", str(photos)]) == 2
    assert "has 4 (daisy, rose, tulip, violet)" in capsys.readouterr().err


def test_check_of_a_shipped_model_measures_the_shapes(folder, capsys):
    (folder / "shapes.toml").write_text('model = "shapes-resnet26"\n')
    assert main(["models", "check", str(folder / "shapes.toml")]) == 0
    found = [int(number) for number in re.findall(r"\((\d+) correct\)", capsys.readouterr().out)]
    assert len(found) == 2
    assert min(found) > 55


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check"], "a config file must follow 'check'"),
        (["check", "no.toml"], "'no.toml' cannot be read"),
        (["shapes-resnet26", "no.toml"], "must follow 'check'"),
        (["shapes-resnet26", "--images", "photos"], "--images must be a whole number"),
        (["check", "{file}", "--images", "nowhere"], "--images must be a folder after 'check', got 'nowhere'"),
    ],
)
def test_wrong_calls_of_check(folder, capsys, words, message):
    assert main(["models", *(word.format(file=folder / "model.toml") for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_a_timm_model_gets_what_timm_says_unless_the_file_says_it(timm, tmp_path):
    from timm.data import resolve_model_data_config

    net = build("timm:mobilenetv3_small_050", num_classes=3).net
    torch.save(net.state_dict(), tmp_path / "net.pt")
    file, config = tmp_path / "net.toml", resolve_model_data_config(net)
    text = 'model = "timm:mobilenetv3_small_050"\nweights = "net.pt"\nclasses = ["a", "b", "b"]\n'
    file.write_text(text)
    model = PredictorSettings(**read_config(file)).load_model()
    card = model.card
    assert card.classes == ("a", "b", "b")  # as ImageNet has two cranes
    assert (card.mean, card.std, card.crop) == (config["mean"], config["std"], config["crop_pct"])
    assert (card.image_size, card.interpolation) == (config["input_size"][1], config["interpolation"])
    assert model.source == "timm's configuration of mobilenetv3_small_050.lamb_in1k"
    file.write_text(text + 'crop = 0.5\nnormalization = "half"\n')
    model = PredictorSettings(**read_config(file)).load_model()
    assert model.card == dataclasses.replace(card, crop=0.5, mean=(0.5,) * 3, std=(0.25,) * 3)
    assert model.source.startswith("net.toml and timm's configuration of ")


def test_the_file_goes_before_the_card_of_the_weights(tmp_path):
    model = build("resnet20", num_classes=10, normalization="cifar10")
    write_weights(tmp_path / "net.safetensors", model.net.state_dict(), model.card)
    said = {"classes": Shapes().classes, "crop": 0.875, "mean": [0.5] * 3, "std": [0.25] * 3, "source": "here"}
    loaded = load(str(tmp_path / "net.safetensors"), card=said)
    assert (loaded.card.classes, loaded.card.mean) == (Shapes().classes, (0.5,) * 3)
    assert torch.equal(loaded.mean.flatten(), torch.full((3,), 0.5))
    assert (loaded.card.crop, loaded.card.image_size) == (0.875, 32)
    assert loaded.source == "here and the card in net.safetensors"
    (tmp_path / "net.toml").write_text('model = "net.safetensors"\nclasses = ["a", "b"]\n')
    assert main(["models", "check", str(tmp_path / "net.toml")]) == 2


def test_the_example_of_the_page(timm, tmp_path, capsys):
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text()
    ((example,),) = [re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    (tmp_path / "flowers.toml").write_text(example)
    (tmp_path / "classes.txt").write_text("daisy\nrose\ntulip\n")
    torch.save(build("timm:resnet18", num_classes=3).net.state_dict(), tmp_path / "flowers.pt")
    (tmp_path / "photos").mkdir()
    for number in range(2):
        Image.new("RGB", (240, 260), (9 * number, 80, 200)).save(tmp_path / "photos" / f"{number}.png")
    words = ["models", "check", str(tmp_path / "flowers.toml"), "--images", str(tmp_path / "photos")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "from flowers.toml" in printed
    assert "20 of 20 normalisation layers are adapted" in printed
    assert all(f"`{name}`" in page for name in LIMITS)
