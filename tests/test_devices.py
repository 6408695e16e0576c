"""A device that torch cannot use fails at once, in every command and setting, before anything is started."""

import pytest
import torch

from findtta._ray import require_gpus
from findtta.bench import RunSpec, run
from findtta.bench.executors import Execution
from findtta.cli.main import main
from findtta.errors import OptionError
from findtta.options import require_device
from findtta.predict.settings import Settings as PredictSettings
from findtta.predictor import PredictorSettings
from findtta.serve.settings import Settings as ServeSettings

#: None of them can be used on any machine, but torch knows the names of all but the first.
UNUSABLE = ["toaster", "", "meta", "cuda:77", "vulkan"]


@pytest.mark.parametrize("device", UNUSABLE)
@pytest.mark.parametrize("kind", [PredictorSettings, PredictSettings, ServeSettings])
def test_settings_refuse_devices_that_cannot_be_used(kind, device):
    with pytest.raises(OptionError, match=f"device must be one that torch can use here .*got '{device}'"):
        kind(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", "mps"])
def test_without_a_gpu_its_devices_are_refused(device):
    with pytest.raises(OptionError, match=r"torch can use here \(cpu\)"):
        PredictorSettings(device=device)


def test_usable_devices_are_taken():
    assert require_device("cpu") == torch.device("cpu")
    assert require_device("cuda:1", elsewhere=True) == torch.device("cuda:1")
    with pytest.raises(OptionError, match="toaster"):
        require_device("toaster", elsewhere=True)


@pytest.fixture
def nothing_starts(monkeypatch):
    """Fail if a model is opened, a port listened on, or Ray started."""

    def started(*_, **__):
        raise AssertionError("something was started")

    for place in (
        "findtta.bench.plan.load",
        "findtta.models.open.load",
        "findtta.models.build",
        "findtta.models.open.build",
        "findtta.serve.listening",
        "findtta._ray.start_ray",
        "findtta.predict.pipeline.open_source",
    ):
        monkeypatch.setattr(place, started)


@pytest.mark.parametrize("device", ["toaster", "cuda:77"])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--no-store"],
        ["bench", "--methods", "find,source"],
        ["bench", "--methods", "find", "--workers", "2"],
        ["bench", "--methods", "find", "--executor", "ray"],
        ["bench", "quick"],
        ["predict", "--input", "images", "-o", "out"],
        ["predict", "--input", "images", "-o", "out", "--executor", "ray"],
        ["serve", "--port", "0"],
        ["train", "shapes"],
        ["paper", "table1", "--quick"],
    ],
    ids=" ".join,
)
def test_commands_refuse_it_before_anything_starts(words, device, nothing_starts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main([*words, "--device", device]) == 2
    error = capsys.readouterr().err
    assert error.startswith("findtta: device must be one that torch can use here")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_from_python_refuses_it_before_the_model_is_opened(nothing_starts):
    with pytest.raises(OptionError, match="device must be"):
        run(RunSpec(device="cuda:77"))


def test_a_cluster_may_have_other_devices(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ServeSettings(device="cuda:77", ray_address="there:6379")
    Execution(ray_address="there:6379").check_device("cuda:77")
    with pytest.raises(OptionError, match="device must be"):
        Execution(executor="ray").check_device("cuda:77")


def test_a_cluster_without_gpus_is_not_waited_for():
    class Cluster:
        @staticmethod
        def cluster_resources():
            return {"CPU": 4.0, "GPU": 1.0}

    require_gpus(Cluster, 1)
    with pytest.raises(OptionError, match="2 GPUs are needed, but Ray has 1"):
        require_gpus(Cluster, 2)
