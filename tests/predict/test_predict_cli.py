import argparse
import json

import pytest
from photos import fill, rows

from findtta.cli import predict as command
from findtta.errors import OptionError


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


def test_a_folder_from_end_to_end(tmp_path, capsys):
    photos = fill(tmp_path / "my photos", 7, broken=(3,))
    words = ("--input", photos, "--output", tmp_path / "out", "--format", "jsonl", "--batch-size", 4, "--top", 2)
    assert run(*words, "--option", "alpha=0.9", "--block-size", 4) == 0
    told = capsys.readouterr()
    assert "computing in this process (fewer than 10,000 images)" in told.err
    assert told.err.count("input: ") == 1
    assert ", mean " in told.err.splitlines()[0]
    assert "7 images: 6 predicted, 1 could not be read" in told.out
    assert "blocks: 2 computed" in told.out
    assert f"unreadable images in {tmp_path / 'out' / 'errors'}" in told.out
    assert [len(row["top_indices"]) for row in rows(tmp_path / "out")] == [2] * 6
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["options"]["alpha"] == 0.9

    assert run(*words, "--option", "alpha=0.9", "--block-size", 4, "--strict", "--json") == 1
    told = capsys.readouterr()
    assert told.err == ""
    summary = json.loads(told.out)
    assert (summary["blocks_before"], summary["blocks_now"], summary["skipped"]) == (2, 0, 1)

    with pytest.raises(OptionError, match=r"'alpha': 0.9"):
        run(*words, "--block-size", 4)


def test_a_model_of_ones_own(tmp_path):
    file = tmp_path / "own_net.py"
    file.write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(\n        nn.Conv2d(3, 4, 3), "
        "nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)\n    )\n"
    )
    words = ("--input", fill(tmp_path / "photos", 3), "--output", tmp_path / "out", "--format", "jsonl")
    model = ("--model", f"{file}:make", "--method", "find-soft", "--image-size", 16)
    with pytest.raises(OptionError, match="num_classes must be given"):
        run(*words, *model)
    assert run(*words, *model, "--num-classes", 5) == 0
    assert [len(row["probabilities"]) for row in rows(tmp_path / "out")] == [5] * 3


def test_limits_and_executors_of_the_command_line(tmp_path, capsys):
    photos = fill(tmp_path / "in", 2)
    words = ("--input", photos, "--method", "source", "--format", "jsonl")
    assert run(*words, "--output", tmp_path / "out", "--executor", "local", "--max-pixels", 5) == 0
    assert "2 images: 0 predicted, 2 could not be read" in capsys.readouterr().out
    with pytest.raises(OptionError, match="workers must not be given"):
        run(*words, "--output", tmp_path / "out", "--executor", "local", "--max-pixels", 5, "--workers", 2)
    with pytest.raises(OptionError, match="--option must look like NAME=VALUE"):
        run(*words, "--output", tmp_path / "out", "--option", "alpha")
