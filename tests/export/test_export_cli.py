"""The command that exports, and the page about it."""

import argparse
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from findtta import export
from findtta.cli import export as command
from findtta.errors import OptionError, UnknownNameError
from nets import shallow

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "export.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash-run\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
TINY_MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4 * 28 * 28, 10),
    )
"""


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.fixture
def tiny_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.py").write_text(TINY_MODEL)
    return "tiny.py:make"


@pytest.mark.parametrize(
    "whole", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_run(line, whole, tmp_path, monkeypatch, capsys):
    if not whole:
        monkeypatch.setattr(command.ExportSettings, "load_model", lambda settings: shallow())
    monkeypatch.chdir(tmp_path)
    program, name, *arguments = shlex.split(line, comments=True)
    assert (program, name) == ("findtta", "export")
    assert run(*arguments) == 0
    (written,) = tmp_path.iterdir()
    described = export.describe(written)
    assert described.labels is not None
    assert len(described.labels) == 10
    assert described.mean == (0.5, 0.5, 0.5)
    printed = capsys.readouterr().out
    assert f"{written.name}: {described.method}" in printed
    assert "DIFFERENT" not in printed


@pytest.mark.slow
def test_find_star_needs_data_and_takes_its_cold_start_from_it(tiny_file, capsys):
    options = ("--model", tiny_file, "--method", "find-star", "--option", "cold_start=2", "-o", "star.onnx")
    with pytest.raises(export.ExportError, match="--data NAME"):
        run(*options, "--image-size", "32")
    assert run(*options, "--data", "shapes", "--data-option", "count=40") == 0
    assert "given" in capsys.readouterr().out
    assert export.describe("star.onnx").options["cold_start"] == 2


def test_own_model_as_a_program(tiny_file, capsys):
    words = ("--model", tiny_file, "--method", "tbn", "--image-size", "32", "-o")
    assert run(*words, "tbn.pt2") == 0
    captured = capsys.readouterr()
    assert "torch.export" in captured.out
    told = captured.err.splitlines()[0]  # lines of progress may follow
    assert told == "input: 32 x 32, normalized as the model takes it: the file adds no normalization"
    assert export.describe("tbn.pt2").input_shape == (3, 32, 32)
    # A normalization is added if it is given, and needs no number of classes.
    assert run(*words, "norm.pt2", "--normalization", "0.1,0.2,0.3/1,2,4") == 0
    assert "mean 0.1 0.2 0.3, std 1 2 4; given --image-size, --normalization" in capsys.readouterr().err
    assert export.describe("norm.pt2").mean == pytest.approx((0.1, 0.2, 0.3))


def test_a_method_with_state_learns_first(tiny_file, capsys):
    words = ("--model", tiny_file, "--method", "tbr", "--data", "shapes", "--data-option", "count=40", "-o")
    assert run(*words, "fresh.pt2") == 0
    assert run(*words, "learned.pt2", "--warm-up", "2") == 0
    assert "state in 4 inputs" in capsys.readouterr().out
    fresh, learned = (export.load(f"{name}.pt2").state for name in ("fresh", "learned"))
    assert all(np.isnan(value).all() for value in fresh.values())
    assert all(np.isfinite(value).all() for value in learned.values())
    with pytest.raises(OptionError, match="--warm-up is 50 batches of 64, but --data has 10"):
        run(*words, "more.pt2", "--warm-up", "50")
    with pytest.raises(OptionError, match="--warm-up needs --data"):
        run("--model", tiny_file, "--warm-up", "2", "-o", "model.pt2")


def test_wrong_arguments(tiny_file, tmp_path):
    with pytest.raises(OptionError, match=r"--output must end in \.onnx or \.pt2"):
        run("-o", "model.pth")
    with pytest.raises(OptionError, match=r"--opset is for \.onnx"):
        run("-o", "model.pt2", "--opset", "18")
    with pytest.raises(OptionError, match="image_size must be given"):
        run("--model", tiny_file, "-o", "model.onnx")
    with pytest.raises(OptionError, match="threads must be a whole number of at least 1"):
        run("--model", tiny_file, "--threads", "0", "-o", "model.onnx")
    with pytest.raises(OptionError, match="--image-size is 64"):
        run(
            "--model",
            tiny_file,
            "--image-size",
            "64",
            "--data",
            "shapes",
            "--data-option",
            "count=20",
            "-o",
            "m.onnx",
        )
    with pytest.raises(UnknownNameError, match="shapes-resnet26"):
        run("--model", "shapes-resnet", "-o", "model.onnx")
    with pytest.raises(export.ExportError, match="learns from every batch"):
        run("--model", tiny_file, "--method", "tent", "--image-size", "32", "-o", "model.onnx")
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["tiny.py"]
