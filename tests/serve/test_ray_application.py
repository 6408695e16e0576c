"""The Ray Serve application: its arguments, the manifests of the documentation, and failures on a real cluster."""

import concurrent.futures
import hashlib
import inspect
import io
import itertools
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray.serve", reason="the 'ray' extra is not installed")
pytest.importorskip("python_multipart", reason="the 'serve' extra is not installed")
pytest.importorskip("psutil")

import psutil
import yaml

from findtta.serve import Settings, application

ROOT = Path(__file__).parents[2]
ARGUMENTS = inspect.signature(application).parameters["arguments"].annotation
#: Images of a request, and of a batch: the predictions of each request are then those of its images alone.
IMAGES = 4
REQUESTS = 60
#: Seconds that anything may take on a busy machine.
PATIENCE_S = 200
LIMITS = {"max_batch": IMAGES, "max_queue": 8 * IMAGES}


def test_importing_the_package_needs_neither_ray_nor_torch():
    code = "import sys, findtta.serve; sys.exit(sorted({'torch', 'ray', 'pydantic'} & set(sys.modules)) or 0)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_arguments_are_the_settings_that_ray_serve_does_not_have():
    assert set(vars(Settings())) - set(ARGUMENTS.model_fields) == {
        *("host", "port", "executor", "ray_address", "drain_s"),
    }
    defaults = ARGUMENTS.model_validate({}).model_dump()
    assert defaults == {name: getattr(Settings(), name) for name in defaults}


def test_arguments_may_be_texts():
    given = {"max_batch": "32", "wait_ms": "2.5", "max_replicas": "3", "options": "alpha=0.7,partitioner=kmeans"}
    read = ARGUMENTS.model_validate(given).model_dump(exclude_unset=True)
    assert read == {
        **{"max_batch": 32, "wait_ms": 2.5, "max_replicas": 3},
        "options": {"alpha": 0.7, "partitioner": "kmeans"},
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_batch": "many"}, "max_batch must be a whole number of at least 1, got 'many'"),
        ({"maxbatch": 3}, r"'maxbatch' must be an argument of the application .*Did you mean 'max_batch'"),
        ({"port": 80}, "port is not an argument of the application"),
        ({"interpolation": "x"}, "interpolation must be 'bilinear' or 'bicubic', got 'x'"),
        ({"options": "alpha"}, "options must look like NAME=VALUE, got 'alpha'"),
        ({"wait_ms": "-1"}, "wait_ms must be a number of at least 0"),
        ({"method": "tent"}, "method 'tent' learns from every batch"),
        ({"method": "find-star", "replicas": 2}, "replicas must be 1 for 'find-star'"),
    ],
)
def test_bad_arguments_are_refused(given, message):
    with pytest.raises(ValueError, match=message) as caught:
        application(ARGUMENTS.model_validate({"api_key": "secret", **given}))
    assert "secret" not in str(caught.value)


def test_a_rollout_starts_the_new_replica_first_unless_replicas_remember():
    surge: dict[str, int] = {}
    for method in ("find", "find-star"):
        model = application(ARGUMENTS(method=method))._bound_deployment.init_args[2]
        surge[method] = model._bound_deployment._deployment_config.max_surge_percent
    assert surge == {"find": 25, "find-star": 0}


def test_the_machine_that_builds_needs_no_gpu():
    model = application(ARGUMENTS(device="cuda"))._bound_deployment.init_args[2]._bound_deployment
    assert model.ray_actor_options["num_gpus"] == 1


def test_the_manifests_of_the_documentation_are_valid():
    from ray.serve.schema import ServeDeploySchema

    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    section = page.partition("\n## On a cluster\n")[2].partition("\n## ")[0]
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]
    assert [block.get("kind") for block in blocks] == [None, "RayService"]
    for block in blocks:
        config = block if "kind" not in block else yaml.safe_load(block["spec"]["serveConfigV2"])
        (app,) = ServeDeploySchema.model_validate(config).applications
        assert app.import_path == "findtta.serve:application"
        Settings(executor="ray", **ARGUMENTS.model_validate(app.args).model_dump(exclude_unset=True))
        assert {deployment.name for deployment in app.deployments} <= {"Model", "Ingress"}


class Cluster:
    """A cluster of two nodes on this machine, and the application on it."""

    def __init__(self, folder: Path) -> None:
        from ray import cluster_utils

        # Room for all replicas twice, so that a rollout need not wait for those that stop.
        size = {"num_cpus": 4, "object_store_memory": 80 * 2**20}
        self.nodes = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"include_dashboard": False, **size}
        )
        self.worker = self.nodes.add_node(**size)
        self.file = folder / "serve.yaml"
        self.command("build", "findtta.serve:default_application", "--output-path", str(self.file))
        self.config = yaml.safe_load(self.file.read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.config["http_options"] = {"host": "127.0.0.1", "port": free.getsockname()[1]}
        self.url = f"http://127.0.0.1:{self.config['http_options']['port']}"
        self.app = self.config["applications"][0]
        self.app |= {"name": "findtta", "import_path": "findtta.serve:application"}
        for deployment in self.app["deployments"]:
            deployment["autoscaling_config"] |= {"min_replicas": 2, "max_replicas": 2}
            deployment |= {
                "max_surge_percent": 100,
                "rolling_update_percentage": 1.0,
            }  # all at once: it is quicker

    def command(self, *words: str) -> None:
        """Run Ray's command ``serve`` in this process, which has imported everything."""
        from ray.serve.scripts import cli

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path])  # to which it adds
            cli.main(words, standalone_mode=False)

    def deploy(self, **arguments) -> None:
        self.app["args"] = {**LIMITS, **arguments}
        self.file.write_text(yaml.safe_dump(self.config))
        self.command("run", str(self.file), "--non-blocking", "--address", self.nodes.address)

    def wait_until_running(self) -> None:
        from ray import serve

        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            status = serve.status()
            if status.applications and status.applications["findtta"].status == "RUNNING":
                deployments = status.applications["findtta"].deployments.values()
                states = [deployment.replica_states for deployment in deployments]
                if states == [{"RUNNING": 2}] * 2 and {"STARTING", "UNHEALTHY"}.isdisjoint(
                    status.proxies.values()
                ):
                    return
            time.sleep(0.2)
        raise AssertionError(f"it does not run: {status}")

    def models(self) -> list[psutil.Process]:
        """The processes of replicas of the model."""
        name = "ray::ServeReplica:findtta:Model"
        return [one for one in psutil.Process().children(recursive=True) if name in " ".join(_words(one))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    import ray
    from ray import serve

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            **{"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"},
            "RAY_prestart_worker_first_driver": "0",  # replicas start processes of their own
            # On a busy machine a proxy that serves already may be slow to say so; Ray Serve would kill it.
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(PATIENCE_S),
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": str(PATIENCE_S),
            # All proxies share a port here, so that clients cannot leave one that is about to stop.
            "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": str(PATIENCE_S),
        }.items():
            patch.setenv(name, value)
        cluster = Cluster(tmp_path_factory.mktemp("ray"))
        try:
            ray.init(cluster.nodes.address, log_to_driver=False, logging_level="ERROR")
            cluster.deploy(method="source")
            cluster.wait_until_running()
            yield cluster
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.nodes.shutdown()


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(5).integers(0, 256, (REQUESTS, IMAGES, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def offline(images):
    """The probabilities of the images of each request, by method."""
    predictors = {method: Settings(method=method).predictor() for method in ("source", "find")}
    return {name: [one(batch).probabilities for batch in images] for name, one in predictors.items()}


def _npy(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, image)
    return file.getvalue()


def post(url: str, batch: np.ndarray, retries: int) -> tuple[dict, int]:
    """Send images, again if the server fails; returns the response, and how often they were sent again."""
    files = [_npy(image) for image in batch]
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.npy"\r\n\r\n' + file + b"\r\n"
        for file in files
    ]
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    request = urllib.request.Request(f"{url}/v1/predict?top=10", b"".join(parts) + b"--x--\r\n", headers)
    for tries in range(retries + 1):
        try:
            with urllib.request.urlopen(request, timeout=70) as response:
                content = json.load(response)
            digests = [hashlib.sha256(file).hexdigest()[:16] for file in files]
            assert [row["digest"] for row in content["predictions"]] == digests
            return content, tries
        except (urllib.error.URLError, OSError) as error:
            if tries == retries or getattr(error, "code", 500) < 500:
                raise
            time.sleep(0.5)
    raise AssertionError


class Load:
    """Clients that send requests until they are stopped; each response must be that of the method it names."""

    def __init__(self, cluster: Cluster, images: np.ndarray, offline: dict, retries: int = 0) -> None:
        self.offline, self.labels = offline, Settings().predictor().labels
        self.methods, self.again, self.stopped = [], 0, False
        numbers = itertools.count()

        def client() -> None:
            while not self.stopped:
                number = next(numbers) % len(images)
                content, tries = post(cluster.url, images[number], retries)
                self.check(number, content)
                self.again += tries > 0
                time.sleep(0.02)  # leaves the cores to what is being started

        self.clients = concurrent.futures.ThreadPoolExecutor(4)
        self.ends = [self.clients.submit(client) for _ in range(4)]

    def check(self, number: int, content: dict) -> None:
        given = [[row["probabilities"][label] for label in self.labels] for row in content["predictions"]]
        np.testing.assert_allclose(given, self.offline[content["method"]][number], atol=1e-5)
        assert content["batch_size"] == IMAGES
        self.methods.append(content["method"])

    def wait_for(self, condition) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition(self.methods):
            assert time.monotonic() < end
            assert not any(one.done() for one in self.ends), [one.exception() for one in self.ends if one.done()]
            time.sleep(0.02)

    def more(self, count: int) -> None:
        """Wait for this many more responses."""
        least = len(self.methods) + count
        self.wait_for(lambda methods: len(methods) >= least)

    def stop(self) -> int:
        """Require that all requests were answered; returns how many were sent again."""
        self.stopped = True
        for one in self.ends:
            one.result(timeout=90)
        return self.again


@pytest.mark.slow
def test_batches_mix_requests_and_are_told_right(cluster, images):
    single = images[:8].reshape(-1, 1, 32, 32, 3)[:24]
    with concurrent.futures.ThreadPoolExecutor(24) as clients:
        contents = [one.result()[0] for one in [clients.submit(post, cluster.url, image, 0) for image in single]]
    shared = Counter(content["batch_id"] for content in contents)
    assert all(shared[content["batch_id"]] == content["batch_size"] for content in contents)
    assert max(shared.values()) > 1


@pytest.mark.slow
def test_an_overload_is_refused_as_documented(cluster, images):
    def ask(batch: np.ndarray) -> tuple[int, str | None, dict]:
        try:
            return 200, None, post(cluster.url, batch, 0)[0]
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Retry-After"], json.load(error)

    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as clients:
        answers = list(clients.map(ask, images))
    refused = [(after, content) for status, after, content in answers if status == 503]
    assert {status for status, _, _ in answers} == {200, 503}
    for after, content in refused:
        assert int(after) >= 1
        assert content["error"]["code"] == "busy"
        assert content["request_id"]


@pytest.mark.slow
def test_a_killed_model_replica_loses_nothing(cluster, images, offline):
    load = Load(cluster, images, offline)
    load.more(20)
    cluster.models()[0].kill()
    load.more(80)
    assert load.stop() == 0
    cluster.wait_until_running()


@pytest.mark.slow
def test_ray_publishes_the_metrics(cluster):
    import ray

    def published() -> str:
        texts = []
        for node in ray.nodes():
            with urllib.request.urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics") as response:
                texts.append(response.read().decode())
        return "".join(texts)

    end = time.monotonic() + PATIENCE_S
    names = {
        *("ray_findtta_batch_size_bucket{", "ray_findtta_requests_total{", "ray_findtta_layer_drift{"),
        *("ray_findtta_predictions_total{", "ray_findtta_request_seconds_bucket{"),
    }
    while not all(name in published() for name in names):
        assert time.monotonic() < end, published()
        time.sleep(1)


@pytest.mark.slow
def test_a_rolling_update_loses_nothing_and_every_response_names_its_method(cluster, images, offline):
    load = Load(cluster, images, offline)
    load.more(20)
    cluster.deploy(method="find")
    load.wait_for(lambda methods: methods[-20:] == ["find"] * 20)
    assert load.stop() == 0
    assert "source" in load.methods
    cluster.wait_until_running()


@pytest.mark.slow
def test_a_killed_node_costs_clients_at_most_another_try(cluster, images, offline):
    load = Load(cluster, images, offline, retries=5)
    load.more(20)
    cluster.nodes.remove_node(cluster.worker, allow_graceful=False)
    load.more(100)
    assert load.stop() < 50
