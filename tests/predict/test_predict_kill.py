"""The command itself, killed by SIGKILL in the middle and started again."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from photos import files
from PIL import Image

from findtta.predict import Settings, predict

pytestmark = pytest.mark.slow

IMAGES, BATCH, BLOCK = 320, 8, 64
# A model that counts its batches in a file, which survives its process. Which batch it has, images tell by their
# brightness; it waits before the one whose number is in another file.
MODEL = """
import time
from pathlib import Path
import torch
from torch import nn

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        )

    def forward(self, x):
        if len(x) > 2:  # a new model is tried on less
            while round(float(x.mean()) * 255 / 6) >= int(Path({gate!r}).read_text()):
                time.sleep(0.02)
            with open({log!r}, "a") as log:
                log.write("x")
        return self.net(x)
"""


def write_images(folder):
    folder.mkdir()
    stripes = np.resize([1, -1], (36, 44, 1))  # which differ between images, and have no brightness
    for number in range(IMAGES):
        pixels = np.repeat(6 * (number // BATCH) + number % BATCH % 5 * stripes, 3, axis=2)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04d}.png")
    for broken in (7, 200):
        (folder / f"{broken:04d}.png").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("execution", "kills"),
    [(("--executor", "local"), (1, 3)), (("--executor", "ray", "--workers", "2"), (3,))],
    ids=["local", "ray"],
)
def test_a_kill_loses_no_finished_block(tmp_path, execution, kills):
    on_ray = "ray" in execution
    if on_ray:
        pytest.importorskip("ray")
    log, model, gate = tmp_path / "batches", tmp_path / "net.py", tmp_path / "gate"
    model.write_text(MODEL.format(log=str(log), gate=str(gate)))
    gate.write_text(str(IMAGES))
    images = write_images(tmp_path / "in")
    same = {"batch_size": BATCH, "block_size": BLOCK, "num_classes": 5, "image_size": 16}
    settings = Settings(model=f"{model}:Counting", executor="local", **same)
    predict(images, tmp_path / "undisturbed", settings)
    expected = files(tmp_path / "undisturbed")
    assert log.stat().st_size == IMAGES // BATCH
    log.write_text("")

    def blocks(found):
        return {name: content for name, content in found.items() if name.startswith("predictions/block")}

    flags = [word for name, value in same.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "findtta", "predict", "--input", images.as_uri(), "--output", "out", "--json"]
    command += ["--model", f"{model}:Counting", *flags]
    computed = done = 0
    for wanted in kills:
        into = wanted * (BLOCK // BATCH) + 3  # in the middle of a block
        gate.write_text(str(into))
        computed += into - done
        done = into - 3
        with subprocess.Popen([*command, *execution], cwd=tmp_path) as process:
            while len(blocks(files(tmp_path / "out"))) < wanted or log.stat().st_size < computed:
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        kept = blocks(files(tmp_path / "out"))
        assert len(kept) == wanted
        assert kept.items() <= expected.items()  # whole, as soon as they have their names
        assert log.stat().st_size == computed  # no batch of a finished block was computed again
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept}
    gate.write_text(str(IMAGES))
    # Whatever computed the blocks before, this process computes the rest.
    last = subprocess.run([*command, "--executor", "local"], cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    summary = json.loads(last.stdout)
    assert (summary["blocks_before"], summary["images"], summary["skipped"]) == (len(kept), IMAGES, 2)
    assert files(tmp_path / "out") == expected
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept} == times
