"""The command itself, killed by SIGKILL in the middle and started again."""

import json
import signal
import subprocess
import sys
import time

import pytest
from photos import files, fill

from findtta.predict import Settings, predict

pytestmark = pytest.mark.slow

IMAGES, BATCH, BLOCK = 320, 8, 64
# A model that counts its batches in a file, which survives its process.
MODEL = """
import time
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
            with open({log!r}, "a") as log:
                log.write("x")
            time.sleep({seconds})
        return self.net(x)
"""


@pytest.mark.parametrize(
    ("execution", "kills"),
    [
        pytest.param(("--executor", "local"), (1, 3), id="local"),
        # test_predict_ray.py kills workers of Ray in CI
        pytest.param(("--executor", "ray", "--workers", "2"), (2,), id="ray", marks=pytest.mark.nightly),
    ],
)
def test_a_kill_loses_no_finished_block(tmp_path, execution, kills):
    on_ray = "ray" in execution
    if on_ray:
        pytest.importorskip("ray")
    log, model = tmp_path / "batches", tmp_path / "net.py"
    model.write_text(MODEL.format(log=str(log), seconds=0.2 if on_ray else 0.05))
    images = fill(tmp_path / "in", IMAGES, broken=(7, 200))
    same = {"batch_size": BATCH, "block_size": BLOCK, "num_classes": 5, "image_size": 16}
    settings = Settings(model=f"{model}:Counting", executor="local", **same)
    predict(images, tmp_path / "undisturbed", settings)
    expected = files(tmp_path / "undisturbed")
    assert log.stat().st_size == IMAGES // BATCH
    log.unlink()

    def blocks(found):
        return {name: content for name, content in found.items() if name.startswith("predictions/block")}

    flags = [word for name, value in same.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "findtta", "predict", "--input", images.as_uri(), "--output", "out", "--json"]
    command += ["--model", f"{model}:Counting", *flags]
    done_before = computed_before = 0
    for wanted in kills:
        with subprocess.Popen([*command, *execution], cwd=tmp_path) as process:
            while len(blocks(files(tmp_path / "out"))) < wanted:
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            time.sleep(0.08)  # in the middle of a block
            process.send_signal(signal.SIGKILL)
            computed = log.stat().st_size  # workers of Ray take a while to notice
        assert process.returncode == -signal.SIGKILL
        kept = blocks(files(tmp_path / "out"))
        assert wanted <= len(kept) < IMAGES // BLOCK
        assert kept.items() <= expected.items()  # whole, as soon as they have their names
        done = len(kept) * (BLOCK // BATCH)
        if not on_ray:  # whose workers may be ahead of what is written
            assert (computed - computed_before) - (done - done_before) <= BLOCK // BATCH
        done_before, computed_before = done, computed
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept}
    # Whatever computed the blocks before, this process computes the rest.
    last = subprocess.run([*command, "--executor", "local"], cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    summary = json.loads(last.stdout)
    assert (summary["blocks_before"], summary["images"], summary["skipped"]) == (len(kept), IMAGES, 2)
    assert files(tmp_path / "out") == expected
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept} == times
