"""A real server whose method is switched under load, with a shadow, an access log and a killed replica."""

import concurrent.futures
import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("psutil")

from live_server import live_server

from findtta.data.shapes import draw
from findtta.serve import Settings

pytestmark = pytest.mark.slow

KEY = {"X-API-Key": "secret", "Content-Type": "application/json"}


def test_the_method_is_switched_under_load_and_nothing_is_lost(tmp_path):
    """Under these methods a prediction depends on its own image only, so that each can be checked."""
    images = draw(np.arange(16), seed=3)
    bodies = [json.dumps({"images": [image.tolist()]}).encode() for image in images]
    expected = {method: Settings(method=method).predictor()(images) for method in ("source", "iabn")}
    assert np.abs(expected["source"].probabilities - expected["iabn"].probabilities).max() > 0.01
    (tmp_path / "key").write_text("secret")
    log = tmp_path / "access.jsonl"
    arguments = ["--method", "source", "--api-key-file", str(tmp_path / "key"), "--access-log", str(log)]
    arguments += ["--shadow", "find", "--shadow-option", "alpha=0.9", "--share", "0.5", "--max-batch", "8"]
    sent, stop, answers = [], threading.Event(), []

    def ask(path, body=None):
        sent.append(path)
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", body, KEY), timeout=60) as reply:
            return json.loads(reply.read()) if path != "/metrics" else reply.read().decode()

    def client(first):
        number = first
        while not stop.is_set():
            answers.append((number % 16, ask("/v1/predict?top=10", bodies[number % 16])))
            number += 1

    def wait_for(count):
        end, before = time.monotonic() + 200, len(answers)
        while len(answers) < before + count:
            assert time.monotonic() < end
            time.sleep(0.01)

    def switch(method):
        return ask("/v1/method", json.dumps({"method": method}).encode())

    with live_server(*arguments, log=tmp_path / "stderr.txt") as server:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            clients = [pool.submit(client, first) for first in range(6)]
            try:
                wait_for(20)
                assert switch("iabn")["previous"]["method"] == "source"
                after = len(answers)
                wait_for(20)
                (victim,) = server.replicas()
                os.kill(victim, signal.SIGKILL)  # its replacement follows the switch
                wait_for(20)
                with pytest.raises(urllib.error.HTTPError, match="422"):
                    switch("tent")
                until = len(answers)
                assert switch("source")["method"] == "source"
                wait_for(20)
            finally:
                stop.set()
            for one in clients:
                one.result()
        metrics = ask("/metrics")
        assert ask("/v1/info")["method"] == "source"
    labels = Settings().predictor().labels
    for image, answer in answers:
        (row,) = answer["predictions"]
        given = [row["probabilities"][label] for label in labels]
        np.testing.assert_allclose(given, expected[answer["method"]].probabilities[image], atol=1e-5)
    methods = [answer["method"] for _, answer in answers]
    assert set(methods[: after - 6]) == {"source"}
    assert set(methods[after + 6 : until]) == {"iabn"}
    assert methods[-1] == "source"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == len({line["request_id"] for line in lines}) == len(sent)
    assert re.search(r'findtta_build_info\{.*method="source".*\} 1.0', metrics)
    turns = re.findall(r"findtta_shadow_batches_total\{.*\} ([0-9.]+)", metrics)
    assert sum(map(float, turns)) >= 5
