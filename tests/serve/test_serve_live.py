"""The whole server: batches, killed replicas, the load test, and the end; once more on Ray Serve."""

import concurrent.futures
import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("psutil")
pytest.importorskip("aiohttp")

from live_server import LiveServer, live_server

from findtta.serve import Settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SIZE = 160
ARGUMENTS = ("--max-batch", "8", "--wait-ms", "20", "--image-size", str(SIZE), "--clean-images", "none")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("serve") / "stderr.txt"
    # Large images keep the model busy, so that it is killed while it predicts a batch.
    with live_server(*ARGUMENTS, log=log) as running:
        yield running


def wait_until(condition, patience_s: float = 200.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def npy(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, image)
    return file.getvalue()


def post(server: LiveServer, body: bytes, kind: str) -> dict:
    request = urllib.request.Request(f"{server.url}/v1/predict?top=10", body, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)


def get(server: LiveServer, path: str) -> str:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=30) as answer:
        return answer.read().decode()


def queued(server: LiveServer) -> int:
    """How many images wait or are being predicted."""
    return int(float(re.search(r"^findtta_queue_images ([0-9.]+)", get(server, "/metrics"), re.MULTILINE)[1]))


def require_offline_predictions(server: LiveServer) -> None:
    batch = images(6)
    answer = post(server, json.dumps({"images": batch.tolist()}).encode(), "application/json")
    predictor = Settings(image_size=SIZE).predictor()
    expected = predictor(np.stack([predictor.preprocess(image) for image in batch]))
    assert answer["batch_size"] == 6
    assert [row["index"] for row in answer["predictions"]] == expected.indices.tolist()
    assert [row["group"] for row in answer["predictions"]] == expected.last_groups.tolist()
    for row, probabilities, drift in zip(
        answer["predictions"], expected.probabilities, expected.sample_drift, strict=True
    ):
        given = [row["probabilities"][label] for label in predictor.labels]
        np.testing.assert_allclose(given, probabilities, atol=1e-5)
        assert row["drift"] == pytest.approx(drift, rel=1e-4)


def test_a_batch_is_answered_as_offline(server):
    require_offline_predictions(server)


def test_the_example_of_the_documentation(server, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "serving.md").read_text()
    (example,) = re.findall(r"```\n(import json.*?)```", page, re.DOTALL)
    Image.fromarray(images(1)[0]).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(example.replace("http://127.0.0.1:8000", server.url), {})
    assert capsys.readouterr().out.strip() in json.loads(get(server, "/v1/info"))["labels"]


def test_the_load_test_passes_with_poisoned_inputs_and_a_killed_replica(server):
    command = [sys.executable, str(ROOT / "benchmarks" / "loadtest.py"), "--url", server.url]
    words = ["--requests", "150", "--rate", "30", "--bad", "0.2", "--kill-every", "1", "--kills", "3"]
    done = subprocess.run(
        [*command, *words, "--pid", str(server.process.pid)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replicas killed: 3" in done.stdout
    assert "memory of the server" in done.stdout


def test_killed_replicas_lose_no_request_and_predictions_are_those_of_the_images(tmp_path):
    """Under this method a prediction depends on its own image only, whatever shares its batch."""
    batch = images(160)
    predictor = Settings(method="source").predictor()
    expected = predictor(batch).probabilities
    with (
        live_server("--method", "source", "--max-batch", "8", log=tmp_path / "stderr.txt") as server,
        concurrent.futures.ThreadPoolExecutor(12) as clients,
    ):
        started = [clients.submit(post, server, npy(image), "application/x-npy") for image in batch]
        killed = set()
        for share in (10, 50, 90, 130):
            wait_until(lambda share=share: sum(one.done() for one in started) >= share)
            wait_until(lambda: set(server.replicas()) - killed)
            (victim,) = set(server.replicas()) - killed
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        rows = [future.result()["predictions"][0] for future in started]
        metrics = get(server, "/metrics")
    given = [[row["probabilities"][label] for label in predictor.labels] for row in rows]
    np.testing.assert_allclose(given, expected, atol=1e-5)
    seen = next(line for line in metrics.splitlines() if line.startswith("findtta_replicas_seen_total "))
    assert float(seen.split()[1]) >= 4


def require_no_loss_by_a_kill(server: LiveServer) -> None:
    bodies = [npy(image) for image in images(30)]
    post(server, bodies[0], "application/x-npy")  # the first copy counts as seen once it has answered
    (victim,) = server.replicas()
    with concurrent.futures.ThreadPoolExecutor(12) as clients:
        started = [clients.submit(post, server, body, "application/x-npy") for body in bodies]
        wait_until(lambda: queued(server) >= 8)  # a whole batch
        time.sleep(0.1)
        os.kill(victim, signal.SIGKILL)
        answers = [future.result() for future in started]
    for body, answer in zip(bodies, answers, strict=True):
        assert answer["predictions"][0]["digest"] == hashlib.sha256(body).hexdigest()[:16]
    assert victim not in server.replicas()
    metrics = get(server, "/metrics")
    retries = next(line for line in metrics.splitlines() if line.startswith("findtta_batch_retries_total "))
    assert float(retries.split()[1]) >= 1
    seen = next(line for line in metrics.splitlines() if line.startswith("findtta_replicas_seen_total "))
    assert float(seen.split()[1]) >= 2
    assert json.loads(get(server, "/healthz"))["status"] == "ok"


def test_a_killed_replica_is_replaced_and_a_stop_answers_what_was_accepted(server):
    require_no_loss_by_a_kill(server)
    photo = io.BytesIO()
    Image.fromarray(images(1)[0]).save(photo, "PNG")
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        last = [clients.submit(post, server, photo.getvalue(), "image/png") for _ in range(8)]
        wait_until(lambda: queued(server) or all(one.done() for one in last))
        os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does
        done = [future for future in last if _answered(future)]
    assert done
    assert server.process.wait(30) == 0


def test_a_signal_to_all_processes_drains_as_one_to_the_server(tmp_path):
    """As a service manager sends it; a terminal sends Ctrl-C to all of them, too."""
    bodies = [npy(image) for image in images(24)]
    with (
        live_server(*ARGUMENTS, log=tmp_path / "stderr.txt") as server,
        concurrent.futures.ThreadPoolExecutor(24) as clients,
    ):
        started = [clients.submit(post, server, body, "application/x-npy") for body in bodies]
        # All are accepted; those that are done are counted first, so that none is counted twice.
        wait_until(lambda: sum(one.done() for one in started) + queued(server) >= 24)
        os.killpg(server.process.pid, signal.SIGTERM)
        assert [len(future.result()["predictions"]) for future in started] == [1] * 24
        assert server.process.wait(30) == 0


@pytest.mark.nightly  # test_ray_application.py kills replicas and nodes of Ray in CI
def test_the_same_on_ray(tmp_path):
    pytest.importorskip("ray.serve")
    bodies = [npy(image) for image in images(30)]
    with (
        live_server("--executor", "ray", *ARGUMENTS, log=tmp_path / "stderr.txt") as server,
        concurrent.futures.ThreadPoolExecutor(12) as clients,
    ):
        require_offline_predictions(server)
        (victim,) = server.replicas()
        started = [clients.submit(post, server, body, "application/x-npy") for body in bodies]
        wait_until(lambda: sum(one.done() for one in started) >= 3)
        os.kill(victim, signal.SIGKILL)
        for body, future in zip(bodies, started, strict=True):
            assert future.result()["predictions"][0]["digest"] == hashlib.sha256(body).hexdigest()[:16]
        assert victim not in server.replicas()

        def slowly():  # a body that is still arriving when the server is told to stop
            yield bodies[0][:100]
            time.sleep(1)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(2)
            yield bodies[0][100:]

        headers = {"Content-Type": "application/x-npy", "Content-Length": str(len(bodies[0]))}
        with contextlib.closing(http.client.HTTPConnection(server.url[7:], timeout=60)) as connection:
            connection.request("POST", "/v1/predict", slowly(), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers.get_all("X-Request-ID") == [json.load(response)["request_id"]]
        assert server.process.wait(60) == 0
    assert "replicas run on Ray at" in (tmp_path / "stderr.txt").read_text()


def _answered(future: concurrent.futures.Future) -> bool:
    """Whether it was answered; otherwise it came after the stop, and was told so."""
    try:
        return len(future.result()["predictions"]) == 1
    except (urllib.error.URLError, ConnectionError):  # 503, or nobody listens any more
        return False
