import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import findtta
from findtta.cli.main import main
from findtta.models.zoo import build
from nets import randn

MODEL_FILE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6))

def no_norm():
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))

def number():
    return 3

ready = make()
"""


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "my_models.py"
    path.write_text(MODEL_FILE)
    return path


def test_methods_lists_all(capsys):
    assert main(["methods"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in findtta.methods())


def test_methods_shows_one_with_its_options(capsys):
    assert main(["methods", "find"]) == 0
    output = capsys.readouterr().out
    assert "find: groups of similar features" in output
    assert "alpha = 0.8" in output
    assert "NeurIPS 2025" in output


def test_an_unknown_method_is_an_error_on_stderr(capsys):
    assert main(["methods", "fnd"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("findtta: method must be one of")
    assert "Did you mean 'find'" in captured.err


def test_the_module_is_the_command():
    run = subprocess.run([sys.executable, "-m", "findtta", "--help"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout[:14]) == (0, "usage: findtta")


def test_inspect_takes_shipped_models(capsys):
    assert main(["inspect", "shapes-resnet26"]) == 0
    assert "layers can be adapted" in capsys.readouterr().out


@pytest.fixture
def photos(tmp_path):
    """A clean folder whose images have several sizes."""
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for side in (40, 44):
            Image.new("RGB", (side, 40)).save(tmp_path / "photos" / label / f"{side}.png")
    return tmp_path / "photos"


def test_models_check_has_the_option_that_it_advises(capsys, tmp_path, photos):
    file = tmp_path / "tiny.py"
    layers = "nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()"
    file.write_text(f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n")
    check = ["models", f"{file}:make", "--num-classes", "2", "--check", str(photos), "--expected", "50"]
    assert main(check) == 2
    assert "--image-size" in capsys.readouterr().err
    assert main([*check, "--image-size", "32"]) == 0
    assert "50.0% on 4 clean images" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["make", "ready"])
def test_inspect_prints_the_layers_of_a_model_in_a_file(capsys, model_file, name):
    assert main(["inspect", f"{model_file}:{name}"]) == 0
    output = capsys.readouterr().out
    assert "BatchNorm2d" in output
    assert "have their initial values" in output


def test_inspect_imports_a_module(capsys, model_file, monkeypatch):
    monkeypatch.syspath_prepend(model_file.parent)
    assert main(["inspect", "my_models:make"]) == 0
    assert "BatchNorm2d" in capsys.readouterr().out


def test_inspect_exits_with_1_if_the_model_cannot_be_adapted(capsys, model_file):
    assert main(["inspect", f"{model_file}:no_norm"]) == 1
    assert "LayerNorm" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_inspect_loads_weights(capsys, model_file, tmp_path, suffix):
    trained, path = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)), tmp_path / f"weights{suffix}"
    trained[1].running_mean.fill_(0.5)
    if suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(trained.state_dict(), path)
    else:
        torch.save(trained.state_dict(), path)
    assert main(["inspect", f"{model_file}:make", "--weights", str(path)]) == 0
    assert "initial values" not in capsys.readouterr().out


def test_inspect_takes_weights_of_any_number_of_classes(capsys, tmp_path):
    torch.save(build("resnet20", num_classes=7, normalization="none").net.state_dict(), tmp_path / "seven.pt")
    words = ["inspect", "resnet20", "--weights", str(tmp_path / "seven.pt")]
    assert main(words) == 2
    assert main([*words, "--num-classes", "7"]) == 0


def test_a_folder_that_cannot_be_made_is_one_line(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["data", "get", "cifar10", "--root", str(tmp_path / "file")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("findtta: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_inspect_looks_at_a_saved_batch(capsys, model_file, tmp_path, suffix):
    batch, path = 255 * randn(8, 3, 8, 8).sigmoid(), tmp_path / f"batch{suffix}"
    if suffix == ".npy":
        np.save(path, batch.numpy())
    else:
        torch.save(batch, path)
    assert main(["inspect", f"{model_file}:make", "--inputs", str(path)]) == 0
    assert "0..255" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("resnet5", "model 'resnet5' is unknown"),
        ("no_such_module:make", "'no_such_module' cannot be imported"),
        ("no/such/file.py:make", "cannot be imported"),
        ("{file}:missing", "has no 'missing'"),
        ("{file}:number", "must give a torch.nn.Module, but gave a int"),
        ("{bad}:make", "cannot be imported"),
    ],
)
def test_inspect_refuses_bad_targets(capsys, model_file, tmp_path, target, message):
    bad = tmp_path / "bad_models.py"
    bad.write_text("def make(:\n")
    assert main(["inspect", target.format(file=model_file, bad=bad)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("findtta: ")
    assert message in captured.err


def test_inspect_suggests_timm_names(capsys, timm):
    assert main(["inspect", "timm:test_resne"]) == 2
    assert "Did you mean 'test_resnet'" in capsys.readouterr().err


def test_inspect_builds_timm_models(capsys, timm):
    assert main(["inspect", "timm:test_resnet"]) == 0
    assert "BatchNorm2d" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--weights", "--inputs"])
@pytest.mark.parametrize("content", [None, b"nonsense"], ids=["missing", "damaged"])
def test_inspect_refuses_unreadable_files(capsys, model_file, tmp_path, option, content):
    path = tmp_path / "file.pt"
    if content:
        path.write_bytes(content)
    assert main(["inspect", f"{model_file}:make", option, str(path)]) == 2
    error = capsys.readouterr().err
    assert option.removeprefix("--") in error
    assert str(path) in error


def test_inspect_refuses_inputs_that_are_no_tensor(capsys, model_file, tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "batch.pt")
    assert main(["inspect", f"{model_file}:make", "--inputs", str(tmp_path / "batch.pt")]) == 2
    assert "holds a dict" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    output = capsys.readouterr().out
    assert output.startswith(f"findtta {findtta.__version__}, Python {sys.version_info.major}.")
    assert f"torch {torch.__version__}, devices: cpu" in output


COMPLETED = """
source script.sh
complete_line() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_findtta; echo "${COMPREPLY[@]}"
}
complete_line findtta ser
complete_line findtta run --batch
complete_line findtta run --method find-
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_flags_and_methods(capsys, tmp_path):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script.sh").write_text(capsys.readouterr().out)
    shell = subprocess.run(["bash", "-c", COMPLETED], capture_output=True, text=True, check=False, cwd=tmp_path)
    commands, flags, methods = shell.stdout.splitlines()
    assert commands.split() == ["serve"]
    assert flags.split() == ["--batch-size"]
    assert methods.split() == ["find-star", "find-soft", "find-domains"]


@pytest.mark.parametrize("arguments", [[], ["no-such-command"]])
def test_usage_errors_exit_with_2(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: findtta" in capsys.readouterr().err
