"""The classes of data and those of a model: matched by name, or refused."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from findtta.bench import RunSpec
from findtta.bench.plan import Planner
from findtta.cli.main import main
from findtta.data.dataset import CLEAN, match_classes
from findtta.errors import InputError
from findtta.models import load, preprocessing_of
from findtta.models.weights import write_weights
from findtta.predictor import PredictorSettings
from make_datasets import InMemory, rows

NAMES = ("dog", "cat", "bird")  # not in the order of the alphabet


def matched(classes, names, count=3, **options):
    data, note = match_classes(InMemory(4, classes), names, count, **options)
    assert np.array_equal(data.images(CLEAN, rows(3, 1)), InMemory(4, classes).pixels[[3, 1]])
    return data.labels(CLEAN).tolist(), data.classes, note


def test_the_same_classes_in_another_order_are_matched_by_name():
    labels, classes, note = matched(("bird", "cat", "dog"), NAMES)
    assert (labels, classes) == ([2, 1, 0, 2], NAMES)
    assert "matched by name" in note
    # Also where the user gave the order of the data's own labels.
    assert matched(("bird", "cat", "dog"), NAMES, given=True)[0] == [2, 1, 0, 2]
    assert matched(NAMES, NAMES) == ([0, 1, 2, 0], NAMES, "")


def test_a_part_of_the_classes_keeps_its_meaning():
    labels, classes, note = matched(("bird", "dog"), NAMES)
    assert (labels, classes) == ([2, 0, 2, 0], NAMES)
    assert "2 of 3 classes" in note


def test_numbers_are_positions():
    twelve = sorted(map(str, range(12)))  # "10" before "2"
    for names in (None, tuple("abcdefghijkl")):
        labels, _, note = matched(twelve, names, 12)
        assert labels == [0, 1, 10, 11]
        assert "matched by name" in note
        assert matched([*map(str, range(12))], names, 12)[::2] == ([0, 1, 2, 3], "")


@pytest.mark.parametrize(
    ("classes", "names", "count", "message"),
    [
        (("bird", "cat", "fish"), NAMES, 3, r"\(bird, cat, fish\) are not those of the model \(dog, cat, bird\)"),
        (("bird", "fish"), NAMES, 3, r"has 3 classes, but the data 'tiny' has 2 \(bird, fish\)"),
        (("bird", "cat"), None, 3, "has 3 classes, but the data"),
        (("0", "1"), None, 3, "has 3 classes, but the data"),
        (("crane", "dog"), ("crane", "crane", "dog"), 3, "has 3 classes, but the data"),  # which crane?
        (tuple("abcdefghi"), tuple("ihgfedcbx"), 9, r"\(a, b, c, d, e and 4 more\)"),
    ],
)
def test_classes_that_do_not_fit_are_refused_with_what_to_give(classes, names, count, message):
    with pytest.raises(InputError, match=f"{message}.*--data-option classes=FILE"):
        match_classes(InMemory(4, classes), names, count)


def test_an_order_that_the_user_gave_holds_where_names_differ():
    assert matched(("hound", "pussy", "fowl"), NAMES, given=True) == ([0, 1, 2, 0], ("hound", "pussy", "fowl"), "")


def test_without_names_of_the_model_the_order_is_told():
    labels, _, note = matched(("bird", "cat", "dog"), None)
    assert labels == [0, 1, 2, 0]
    assert "classes 0 to 2 are taken to be bird, cat, dog (in alphabetical order" in note
    assert "alphabetical" not in matched(NAMES, None)[2]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of the shipped model's classes in folders, whose alphabetical order is not that of the model."""
    from findtta.data.open import load as load_data

    root, shapes = tmp_path_factory.mktemp("photos"), load_data("shapes", count=60)
    images = shapes.images(CLEAN, np.arange(60))
    for number, (image, label) in enumerate(zip(images, shapes.labels(CLEAN), strict=True)):
        (root / shapes.classes[label]).mkdir(exist_ok=True)
        Image.fromarray(image).save(root / shapes.classes[label] / f"{number}.png")
    return root


RUN = ["run", "--no-store", "--domains", "clean", "--method", "source", "--batch-size", "30"]


def test_the_accuracy_on_folders_is_that_of_the_model(photos, capsys):
    assert main([*RUN, "--data", str(photos), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["metrics"]["accuracy"] > 90
    assert main([*RUN, "--data", str(photos)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["input", "classes of data and model are matched by name"]


def test_folders_of_other_names_need_an_order(photos, tmp_path, capsys):
    classes = load("shapes-resnet26").card.classes
    for name in classes:
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"a {name}").symlink_to(photos / name)
    command = [*RUN, "--data", str(tmp_path / "data"), "--json"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "(a arrow, a crescent, a cross, a disc, a heart and 5 more)" in error
    assert "(disc, triangle, square, pentagon, star and 5 more)" in error
    (tmp_path / "names.txt").write_text("".join(f"a {name}\n" for name in classes))
    assert main([*command, "--data-option", f"classes={tmp_path / 'names.txt'}"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] > 90


def test_checks_of_clean_accuracy_match_classes_too(photos, capsys):
    check = ["--check", str(photos), "--images", "60"]
    assert main(["models", "shapes-resnet26", *check, "--expected", "95"]) == 0
    assert "matched by name" in capsys.readouterr().err
    assert main([*RUN, "--data", str(photos), "--check"]) == 0
    assert "clean accuracy is as expected" in capsys.readouterr().err


def test_all_runs_of_a_bench_tell_it_once(photos, tmp_path, capsys):
    lists = ["--methods", "source,tbn", "--data", str(photos), "--batch-size", "30", "--domains", "clean"]
    assert main(["bench", *lists, "--models", "shapes-resnet26", "--runs", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert told.count("input: 32 x 32") == told.count("matched by name") == 1


def test_runs_take_the_flags_of_predict_about_images(photos):
    flags = {"image_size": 48, "crop": 0.5, "interpolation": "bicubic"}
    plan = Planner().plan(RunSpec(data=str(photos), domains=("clean",), batch_size=30, **flags))
    assert plan.dataset.preprocessing == PredictorSettings(**flags).predictor().preprocess
    assert plan.dataset.preprocessing == preprocessing_of(plan.model, *flags.values())


def test_a_model_of_another_size_gets_files_of_one_size_at_its_own(photos, tmp_path):
    model = load("shapes-resnet26")
    write_weights(
        tmp_path / "m.safetensors", model.net.state_dict(), dataclasses.replace(model.card, image_size=48)
    )
    spec = RunSpec(model=str(tmp_path / "m.safetensors"), data=str(photos), domains=("clean",), batch_size=30)
    plan = Planner().plan(spec)
    assert plan.dataset.image_size == (48, 48)
