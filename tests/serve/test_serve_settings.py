"""Settings that cannot work are refused with a reason, before anything is loaded."""

import argparse
import re
import socket
import subprocess
import sys
import textwrap
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from findtta.cli import serve as command
from findtta.errors import FindTTAError, MissingExtraError, OptionError, UnknownNameError
from findtta.predictor import Predictions
from findtta.serve import Settings, serve
from findtta.serve.engine import Description, Replica


def read(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.settings_of(parser.parse_args(arguments))


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv(command.KEY_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_batch": 0}, "max_batch must be a whole number of at least 1, got 0"),
        ({"max_batch": True}, "max_batch must be a whole number"),
        ({"threads": 1.5}, "threads must be a whole number"),
        ({"port": 70_000}, "port must be a whole number from 0 to 65535"),
        ({"wait_ms": -1}, "wait_ms must be a number of at least 0"),
        ({"wait_ms": float("nan")}, "wait_ms must be a number"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"max_body_mb": 0}, "max_body_mb must be above 0"),
        ({"api_key": " "}, "api_key must be ASCII and not blank"),
        ({"api_key": "schl\u00fcssel"}, "api_key must be ASCII"),
        ({"max_images": 65}, r"max_images must be at most max_batch \(64\), got 65"),
        ({"max_batch": 2048}, r"max_batch must be at most max_queue \(1024\)"),
        ({"replicas": 3, "max_replicas": 2}, "replicas must be at most max_replicas"),
        ({"executor": "cloud"}, "executor must be 'embedded' or 'ray'"),
        ({"executor": "embedded", "ray_address": "auto"}, "ray_address is for the executor 'ray'"),
        ({"executor": "embedded", "max_replicas": 2}, "max_replicas is for the executor 'ray'"),
    ],
)
def test_what_makes_no_sense(changes, message):
    with pytest.raises(OptionError, match=message):
        Settings(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "tent"}, "learns from every batch"),
        ({"method": "find-star", "max_replicas": 2}, "replicas must be 1 for 'find-star', got 2"),
        ({"options": {"alpha": 2}}, "alpha must be a number from 0 to 1"),
        ({"method": "fnd"}, "Did you mean 'find'"),
        ({"options": {"alfa": 0.5}}, "has no option 'alfa'"),
    ],
)
def test_a_replica_refuses_what_cannot_be_served(changes, message):
    with pytest.raises(FindTTAError, match=message):
        Replica(Settings(**changes))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "embedded"),
        ({"replicas": 2}, "embedded"),
        ({"ray_address": "auto"}, "ray"),
        ({"max_replicas": 2}, "ray"),
        ({"executor": "ray"}, "ray"),
    ],
)
def test_the_executor(changes, kind):
    assert Settings(**changes).kind == kind


def test_the_http_side_comes_without_torch_and_without_ray():
    """Its import would cost seconds and memory; only replicas need it."""
    code = (
        "import sys; from findtta.cli.main import main, build_parser; build_parser('serve'); "
        "import findtta.serve.server, findtta.serve.embedded; from findtta.serve import Settings; Settings(); "
        "sys.exit(sorted({'torch', 'ray'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_names_that_do_not_exist():
    with pytest.raises(UnknownNameError, match="Did you mean 'shapes-resnet26'"):
        Settings(model="shapes-resnet2").load_model()
    with pytest.raises(OptionError, match="device must be one that torch can use"):
        Settings(device="toaster")


def test_the_defaults_of_the_command_line_are_those_of_the_settings():
    assert read() == Settings()


def test_the_command_line():
    settings = read(
        *("--model", "resnet20", "--weights", "w.pt", "--num-classes", "10", "--normalization", "cifar10"),
        *(
            "--method",
            "alpha-bn",
            "--option",
            "alpha=0.5",
            "--device",
            "cuda:1",
            "--image-size",
            "40",
            "--crop",
            "0.9",
        ),
        *("--host", "0.0.0.0", "--port", "80", "--max-batch", "16", "--wait-ms", "3.5", "--replicas", "2"),
        *("--executor", "ray", "--max-replicas", "5", "--interpolation", "bicubic", "--max-pending-mb", "700"),
        *("--threads", "4", "--ray-address", "auto", "--drain-s", "2", "--max-queue", "99", "--max-images", "3"),
        *("--max-body-mb", "600", "--max-json-mb", "2", "--max-image-mb", "3", "--max-pixels", "4"),
        *("--timeout-s", "9", "--access-log", "-"),
    )
    assert settings == Settings(
        model="resnet20",
        weights="w.pt",
        num_classes=10,
        normalization="cifar10",
        method="alpha-bn",
        options={"alpha": 0.5},
        device="cuda:1",
        image_size=40,
        crop=0.9,
        interpolation="bicubic",
        host="0.0.0.0",
        port=80,
        max_batch=16,
        wait_ms=3.5,
        replicas=2,
        executor="ray",
        max_replicas=5,
        threads=4,
        ray_address="auto",
        drain_s=2,
        max_queue=99,
        max_images=3,
        max_body_mb=600,
        max_pending_mb=700,
        max_json_mb=2,
        max_image_mb=3,
        max_pixels=4,
        timeout_s=9,
        access_log="-",
    )


def test_the_documentation_names_every_option_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    tables = "\n".join(line for line in page.splitlines() if line.startswith("| `--"))
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    known = {name for action in parser._actions for name in action.option_strings}
    assert set(re.findall(r"--[a-z][a-z-]*", tables)) == known


def test_the_documentation_names_every_metric_and_no_other():
    pytest.importorskip("prometheus_client")
    from findtta.serve.telemetry import Telemetry

    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    telemetry = Telemetry((), ("a",))
    nothing = np.zeros((1, 0))
    met = ({"place": 0, "samples": 1.0, "share": 1.0, "drift": 1.0},)  # some metrics begin with the first domain
    telemetry.count_batch(Predictions(np.ones((1, 1), np.float32), nothing.astype(np.int64), nothing, met))
    lines = telemetry.text(0).decode().splitlines()
    known = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    named = set(re.findall(r"^\| `(findtta_\w+)", page, re.MULTILINE))
    assert named == {name for name in known if not name.endswith("_created")}


def test_sizes_are_in_mebibytes_and_one_body_always_fits():
    settings = Settings(max_body_mb=600, max_json_mb=0.5, max_image_mb=2)
    assert settings.max_body_bytes == settings.max_pending_bytes == 600 * 2**20
    assert settings.max_json_bytes == 2**19
    assert settings.image_limits.max_bytes == 2**21


@pytest.mark.parametrize(("method", "batches"), [("find", 0), ("find-star", 5)])
def test_a_method_that_warms_up_says_so_when_the_server_is_ready(monkeypatch, capsys, method, batches):
    def ready(settings, on_ready):
        on_ready("http://somewhere", Description.of(settings, settings.predictor()), "here")
        return True

    monkeypatch.setattr(command, "serve", ready)
    words = ["--method", method, *(["--option", f"cold_start={batches}"] if batches else [])]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(words)) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("serves at http://somewhere\n")
    assert (f"warms up on its first {batches} batches" in printed.err) == bool(batches)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_text("from-file\n")
    monkeypatch.setenv(command.KEY_VARIABLE, "from-environment\n")
    assert read("--api-key-file", str(file)).api_key == "from-file"
    assert read().api_key == "from-environment"
    file.write_text("\n")
    with pytest.raises(OptionError, match="is empty"):
        read("--api-key-file", str(file))
    with pytest.raises(OptionError, match="cannot be read"):
        read("--api-key-file", str(tmp_path / "none"))


@pytest.fixture
def own_model(tmp_path):
    file = tmp_path / "own_net.py"
    file.write_text(
        textwrap.dedent(
            """
            from torch import nn

            def make():
                return nn.Sequential(
                    nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 7)
                )
            """
        )
    )
    return f"{file}:make"


def test_a_model_of_ones_own(own_model):
    settings = Settings(model=own_model, num_classes=7, image_size=16)
    description = Replica(settings).description
    assert description.model == "own_net.py:make"
    assert description.labels == tuple("0123456")
    assert description.layers == ("net.1",)
    assert description.preprocessing.size == (16, 16)
    assert description.input.startswith("input: 16 x 16 (shorter side resized to 16, bilinear;")
    with pytest.raises(OptionError, match="num_classes must be given"):
        Settings(model=own_model).load_model()
    with pytest.raises(OptionError, match="the model has 7 classes, not 5"):
        Replica(Settings(model=own_model, num_classes=5, image_size=16))


def test_a_port_in_use_shows_before_anything_is_loaded():
    pytest.importorskip("uvicorn")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(FindTTAError, match=f"port: 127.0.0.1:{port} cannot be used"):
            serve(Settings(model="no-such-model", port=port))


def test_the_extra_is_named_when_something_is_missing(monkeypatch):
    for module in ("fastapi", "prometheus_client", "python_multipart"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
        sys.modules[module].__spec__ = ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"uvicorn.*\[serve\]"):
        serve(Settings())


def test_rays_extra_is_named_when_it_is_missing(monkeypatch):
    pytest.importorskip("uvicorn")
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(MissingExtraError, match=r"executor 'ray'.*\[ray\]"):
        serve(Settings(port=0, executor="ray"))
