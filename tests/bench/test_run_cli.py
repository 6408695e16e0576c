import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small import HERE, MARKER, flags, measured, save_weights, spec

from findtta.bench import Planner, Result, RunSpec, run
from findtta.bench.store import Store
from findtta.cli.main import main
from findtta.data.open import load
from findtta.models import ModelCard, build
from findtta.models.check import clean_accuracy
from findtta.models.weights import write_weights

MODEL = ["--model", f"{HERE}:net"]


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    folder = tmp_path / "runs"
    monkeypatch.setenv("FINDTTA_RUNS", str(folder))
    return folder


def test_a_run_is_summed_up_and_kept(capsys, runs):
    assert main(["run", *MODEL, *flags(option="alpha=0.5")]) == 0
    captured = capsys.readouterr()
    # No bar where there is no terminal, but how model and data are put together.
    input_line, classes = captured.err.splitlines()
    assert input_line.startswith(
        "input: 32 x 32, as the data have them, mean 0 0 0, std 1 1 1; by default no norm"
    )
    assert classes.startswith("the model has no class names: its classes 0 to 9 are taken to be disc, triangle,")
    (result,) = Store(runs).all()
    assert measured(result) == measured(run(spec(options={"alpha": 0.5})))
    for text in (
        "find (alpha=0.5): small.py:net on shapes",
        "crossmix, 3 batches of 16, seed 0",
        f"{result.accuracy:.2f} %",
        f"{result.metrics['nll']:.4f}",
        "brightness@5",
        "worst class",
        "groups per layer",
        "over 1 layers",
        "median latency of a batch",
        "peak memory",
        "collapse",
        str(runs / f"{result.digest}.json"),
    ):
        assert text in captured.out


def test_rounds_and_methods_without_groups_are_shown_as_such(capsys):
    assert main(["run", *MODEL, *flags(method="source", stream="lifelong")]) == 0
    output = capsys.readouterr().out
    assert "accuracy by round" in output
    assert "groups per layer" not in output


def test_a_run_says_that_it_takes_a_part_of_the_images(capsys):
    assert main(["run", *MODEL, *flags(images="20"), "--no-store"]) == 0
    told = capsys.readouterr().err
    assert "40 of 48 images" in told
    assert "--images all" in told
    assert main(["run", *MODEL, *flags(images="all"), "--no-store"]) == 0
    captured = capsys.readouterr()
    assert "images," not in captured.err  # nothing is left out
    assert "3 batches of 16" in captured.out


def test_by_default_a_run_of_the_shipped_dataset_takes_a_minute():
    plan = Planner().plan(RunSpec())
    assert (len(plan.dataset), plan.available) == (15_000, 150_000)
    assert len(Planner().plan(RunSpec(images="all", domains=("fog",))).dataset) == 10_000


def test_json_is_all_that_is_printed(capsys, runs):
    assert main(["run", *MODEL, *flags(severity="3", seed="4", images="20"), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["spec"]["severity"] == [3]
    assert Result.from_json(captured.out) == next(Store(runs).all())


def test_a_run_that_is_there_is_shown_and_not_repeated(capsys, runs):
    command = ["run", *MODEL, *flags()]
    assert main(command) == 0
    shown = capsys.readouterr().out
    (file,) = runs.iterdir()
    written = file.stat().st_mtime_ns
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.out == shown
    assert "stored already" in captured.err
    assert file.stat().st_mtime_ns == written
    assert main([*command, "--again"]) == 0
    assert file.stat().st_mtime_ns != written
    assert len(list(runs.iterdir())) == 1


def test_nothing_is_kept_if_nothing_is_to_be(capsys, runs):
    assert main(["run", *MODEL, *flags(), "--no-store"]) == 0
    assert not runs.exists()
    assert "result in" not in capsys.readouterr().out


def test_the_folder_of_results_can_be_named(tmp_path, runs):
    assert main(["run", *MODEL, *flags(runs=str(tmp_path / "other" / "place"))]) == 0
    assert len(list(Store(tmp_path / "other" / "place").all())) == 1
    assert not runs.exists()


def test_threads_can_be_set(runs):
    before = torch.get_num_threads()
    assert main(["run", *MODEL, *flags(threads="2")]) == 0
    (result,) = Store(runs).all()
    assert result.environment["threads"] == 2
    assert torch.get_num_threads() == before


def card_weights(path: Path, offset: float) -> Path:
    """Write the weights of a network whose card is off by so many per cent."""
    torch.manual_seed(0)
    model = build("resnet20", num_classes=10, normalization="half").eval()
    right, count = clean_accuracy(model, load("shapes", count=24), 24)
    card = model.card
    described = ModelCard(
        arch=card.arch, num_classes=10, mean=card.mean, std=card.std, clean_accuracy=100 * right / count + offset
    )
    write_weights(path, model.net.state_dict(), described)
    return path


def test_a_model_as_good_as_its_card_says_goes_on(tmp_path, capsys):
    weights = card_weights(tmp_path / "net.safetensors", 0)
    assert main(["run", "--model", "resnet20", *flags(weights=str(weights)), "--check"]) == 0
    assert "clean accuracy is as expected" in capsys.readouterr().err


def test_a_model_worse_than_its_card_says_does_not(tmp_path, capsys, runs):
    weights = card_weights(tmp_path / "net.safetensors", 60)
    assert main(["run", "--model", "resnet20", *flags(weights=str(weights)), "--check"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "findtta: --check: clean accuracy is too low" in captured.err
    assert not runs.exists()


def test_a_model_without_a_card_cannot_be_checked(capsys):
    assert main(["run", *MODEL, *flags(), "--check"]) == 2
    assert "card does not say how accurate it is" in capsys.readouterr().err


@pytest.fixture
def wrong(tmp_path):
    """Files that are not what they should be."""
    save_weights(tmp_path / "small.pt")
    (tmp_path / "file").write_text("")
    return tmp_path


WRONG = {
    "method": (["--method", "fnd"], "Did you mean 'find'"),
    "option": (["--option", "alpa=1"], "Did you mean 'alpha'"),
    "option without a value": (["--option", "alpha"], "--option must look like NAME=VALUE"),
    "stream": (["--stream", "crossmx"], "Did you mean 'crossmix'"),
    "data": (["--data", "shape"], "Did you mean 'shapes'"),
    "missing data folder": (["--data", "nowhere/at/all"], "'nowhere/at/all' does not exist"),
    "data that were not fetched": (["--data", "cifar10-c"], "findtta data get cifar10-c"),
    "model": (["--model", "resnet-26"], "Did you mean 'resnet26'"),
    "file of the model": (["--model", "nowhere.py:net"], "'nowhere.py' cannot be imported"),
    "too few samples": (["--batch-size", "49"], "take a smaller batch_size or more samples"),
    "domain that is not there": (["--domains", "fog,fgo"], "has no 'fgo@5'"),
    "domain of another set": (["--domains", "fog,sketch"], "has no 'sketch@5'"),
    "too few domains": (["--domains", "fog", "--stream", "random:variant=paper"], "needs at least 2 domains"),
    "weights that do not fit": (
        ["--model", "resnet20", "--normalization", "half", "--weights", "{0}/small.pt"],
        "small.pt",
    ),
    "no normalization": (["--model", "resnet20", "--weights", "{0}/small.pt"], "normalization must be given"),
    "size of what has no files": (
        ["--image-size", "48"],
        "image_size, crop and interpolation are for image files",
    ),
    "missing weights": (["--model", "resnet20", "--weights", "{0}/no.pt"], "does not exist"),
    "weights too many": (["--model", "shapes-resnet26", "--weights", "{0}/small.pt"], "brings its own"),
    "device": (["--device", "gpu"], "device must be one that torch can use"),
    "threads": (["--threads", "0"], "threads must be a whole number of at least 1"),
    "images": (["--images", "0"], "images must be a whole number of at least 1"),
    "severity": (["--severity", "high"], "--severity must be whole numbers"),
    "unwritable folder": (["--runs", "{0}/file/runs"], "runs must be a folder that can be written to"),
}


def test_more_domains_than_there_are_is_a_mistake(tmp_path, capsys):
    images, labels = load("shapes", count=24).batch(np.zeros(24, np.int64), np.arange(24))
    np.savez(tmp_path / "two.npz", one=images, other=images, labels=labels)
    command = ["run", *MODEL, "--data", str(tmp_path / "two.npz"), "--batch-size", "8", "--domains"]
    assert main([*command, "one,other,third"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "two has no 'third@5'" in captured.err
    assert "It has one, other" in captured.err
    assert main([*command, "one,other"]) == 0


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_ends_with_one_message(wrong, capsys, monkeypatch, mistake):
    monkeypatch.setenv("FINDTTA_DATA", str(wrong))
    arguments, message = WRONG[mistake]
    assert main(["run", *MODEL, *flags(), *(part.format(wrong) for part in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    told, found, error = captured.err.partition("findtta: ")
    assert found
    assert message in error
    assert not told or mistake == "unwritable folder"  # found out after the plan, which is told
    assert "Traceback" not in captured.err


def test_a_damaged_result_is_named(capsys, runs):
    command = ["run", *MODEL, *flags()]
    assert main(command) == 0
    (file,) = runs.iterdir()
    file.write_text("{")
    capsys.readouterr()
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(file) in captured.err
    assert "Delete it" in captured.err


def test_ctrl_c_ends_the_run(tmp_path, capsys, monkeypatch, runs):
    monkeypatch.setenv(MARKER, str(tmp_path))
    assert main(["run", "--model", f"{HERE}:interrupted", *flags()]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "findtta: stopped"
    assert list(Store(runs).all()) == []
