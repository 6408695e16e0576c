"""The shadow, switching, the drift alert and the dashboard, on the shipped model in this process."""

import asyncio
import io
import json
import math
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from asgi import ask, code
from PIL import Image

pytest.importorskip("fastapi", reason="the 'serve' extra is not installed")
pytest.importorskip("prometheus_client", reason="the 'serve' extra is not installed")

from prometheus_client.parser import text_string_to_metric_families

from findtta.data.shapes import draw
from findtta.errors import FindTTAError, InputError, OptionError
from findtta.estimates import estimate_gain
from findtta.predictor import Predictions
from findtta.serve import Settings
from findtta.serve.alert import COUNT, DriftAlert, calibrate, read_clean_images, require_clean_images
from findtta.serve.app import Frontend
from findtta.serve.engine import Engine, Replica
from findtta.serve.pages import corrupt_each
from findtta.serve.settings import Choice
from findtta.serve.shadow import Shadow
from findtta.serve.telemetry import Telemetry

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
KEY = {"X-API-Key": "secret"}
BUILD = {"model": "m", "method": "find", "executor": "embedded", "shadow": ""}
CLEAN = draw(np.arange(192), seed=7)
#: Exported, but of no use in a graph.
NOT_ON_THE_DASHBOARD: set[str] = set()


class InThisProcess:
    """A backend with one replica, in threads of this process."""

    ready, failed, place, most_deaths = True, False, "here", 1

    def __init__(self, replica):
        self.replica, self._lock = replica, threading.Lock()

    async def predict(self, images, choice=None):
        return await asyncio.to_thread(self._predict, images, choice), "one"

    def _predict(self, *batch):
        with self._lock:  # one batch at a time, as in a process
            return self.replica(*batch)


@pytest.fixture(scope="module")
def replica():
    return Replica(Settings())


@pytest.fixture(scope="module")
def one_of_two():
    return Replica(Settings(replicas=2))


def with_frontend(use, settings, replica):
    """Run ``use(frontend)`` on a real model."""

    async def main():
        backend = InThisProcess(replica)
        described = replica.description
        telemetry = Telemetry(described.layers, described.labels, BUILD)
        return await use(Frontend(settings, described, Engine(backend, telemetry, 10), telemetry))

    return asyncio.run(main())


def several(images):
    return json.dumps({"images": images.tolist()}).encode()


def predict(frontend, images, headers=KEY):
    kind = {"Content-Type": "application/json", **headers}
    return ask(frontend.app, "POST", "/v1/predict?top=10", several(images), kind)


def switch(frontend, content, headers=KEY):
    return ask(frontend.app, "POST", "/v1/method", json.dumps(content).encode(), headers)


async def values(frontend):
    """The exported numbers, by name and labels."""
    text = (await ask(frontend.app, "GET", "/metrics", headers=KEY)).text
    families = text_string_to_metric_families(text)
    return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


# The shadow


def flat(confidence: float = 1.0) -> Predictions:
    return Predictions(np.full((2, 1), confidence, np.float32), np.zeros((2, 1), np.int64), np.zeros((2, 1)))


def shadowed(share: float, batches: int, *, idle: bool = True, error: Exception | None = None):
    """Offer batches to a shadow; returns the numbers of those it predicted, and the metrics."""
    predicted, telemetry = [], Telemetry((), ("a",))

    async def other(images):
        predicted.append(int(images))
        if error:
            raise error
        return flat(0.25)

    async def main():
        shadow = Shadow(other, share, lambda: idle, telemetry)
        for number in range(1, batches + 1):
            shadow.offer(number, flat())
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(main())
    return predicted, telemetry.text(0).decode()


def test_the_shadow_predicts_an_even_share_of_the_batches():
    assert shadowed(0.1, 30)[0] == [10, 20, 30]
    assert shadowed(1.0, 3)[0] == [1, 2, 3]
    assert shadowed(0.0, 30)[0] == []
    metrics = shadowed(0.3, 10)[1]
    assert 'findtta_shadow_batches_total{result="compared"} 3.0' in metrics
    assert "findtta_shadow_images_total 6.0" in metrics
    assert "findtta_shadow_confidence_gap 0.75" in metrics


def test_the_shadow_gives_way():
    predicted, metrics = shadowed(0.5, 10, idle=False)
    assert predicted == []
    assert 'findtta_shadow_batches_total{result="skipped"} 5.0' in metrics


def test_a_failing_shadow_is_given_up(caplog):
    predicted, metrics = shadowed(1.0, 10, error=ValueError("broken"))
    assert predicted == [1, 2, 3]
    assert 'findtta_shadow_batches_total{result="failed"} 3.0' in metrics
    assert "not run again" in caplog.text


def test_the_shadow_tells_how_much_the_methods_differ(replica):
    images = corrupt_each(CLEAN[:32], "mixed", 5, 0)[0]

    async def use(frontend):
        replies = []
        for start in (0, 16):
            replies.append((await predict(frontend, images[start : start + 16], {})).json()["predictions"])
            while (await values(frontend))["findtta_shadow_batches_total", "compared"] < len(replies):
                await asyncio.sleep(0.02)
        return [*replies[0], *replies[1]], await values(frontend)

    settings = Settings(shadow="source", share=1, clean_images="none")
    served, metrics = with_frontend(use, settings, replica)
    other = replica(images, Choice("source"))
    differ = (np.array([row["index"] for row in served]) != other.indices).sum()
    assert differ > 0
    assert metrics["findtta_shadow_disagreements_total",] == differ
    assert metrics["findtta_shadow_images_total",] == 32
    confidence = np.array([row["confidence"] for row in served])
    gaps = confidence.reshape(2, 16).mean(1) - other.probabilities.max(1).reshape(2, 16).mean(1)
    expected = gaps[0] + 0.05 * (gaps[1] - gaps[0])
    assert metrics["findtta_shadow_confidence_gap",] == pytest.approx(expected, abs=1e-5)


def estimated_gain(replica, shadow: str, images) -> float:
    """Serve images in batches of 64 beside a shadow that predicts all of them, and return the estimate."""

    async def use(frontend):
        for batch in np.split(images, range(64, len(images), 64)):
            await predict(frontend, batch, {})
            while frontend._shadow._task is None or not frontend._shadow._task.done():
                await asyncio.sleep(0.02)
        return await values(frontend)

    settings = Settings(shadow=shadow, share=1, clean_images="none", max_images=64)
    metrics = with_frontend(use, settings, replica)
    assert metrics["findtta_shadow_images_total",] == len(images)
    return metrics["findtta_shadow_estimated_gain",]


def test_the_shadow_says_which_method_is_more_accurate(replica):
    images = corrupt_each(CLEAN[:112], "mixed", 5, 0)[0]
    pair = [
        np.concatenate([replica(batch, choice).probabilities for batch in np.split(images, [64])])
        for choice in (None, Choice("source"))
    ]
    drift = np.concatenate([replica(batch).drift for batch in np.split(images, [64])])
    found = estimated_gain(replica, "source", images)
    assert found == pytest.approx(100 * estimate_gain(*pair, drift, (64, 48)), abs=1e-3)
    assert abs(found) > 0.1


def test_nothing_is_estimated_from_few_images(replica):
    images = corrupt_each(CLEAN[:90], "mixed", 5, 0)[0]
    assert math.isnan(estimated_gain(replica, "source", images))


def test_a_shadow_that_cannot_be_served_is_refused_at_the_start():
    with pytest.raises(OptionError, match="shadow: method 'tent' learns from every batch"):
        Replica(Settings(shadow="tent"))
    with pytest.raises(FindTTAError, match="no option 'beta'"):
        Replica(Settings(shadow="find", shadow_options={"beta": 1}))
    for given in ({"shadow_options": {"alpha": 1}}, {"share": 0.5}):
        with pytest.raises(OptionError, match=f"{next(iter(given))} is for .* but shadow is not given"):
            Settings(**given)
    assert Settings(shadow="source").shadow_share == 0.1


# Switching


def test_the_method_is_switched_and_switched_back(replica):
    images = CLEAN[:6]

    async def use(frontend):
        seen = [await predict(frontend, images)]
        reply = await switch(frontend, {"method": "source"})
        seen.append(await predict(frontend, images))
        info = (await ask(frontend.app, "GET", "/v1/info", headers=KEY)).json()
        metrics = await values(frontend)
        told = (await ask(frontend.app, "GET", "/v1/method", headers=KEY)).json()
        await switch(frontend, {"method": "find", "options": {"alpha": 0.5, "partitioner": "instance"}})
        seen.append(await predict(frontend, images))
        await switch(frontend, {"method": "find", "options": {}})
        seen.append(await predict(frontend, images))
        return [one.json() for one in seen], reply, info, told, metrics

    seen, reply, info, told, metrics = with_frontend(use, Settings(api_key="secret"), replica)
    assert [one["method"] for one in seen] == ["find", "source", "find", "find"]
    choices = [None, Choice("source"), Choice.of("find", {"partitioner": "instance", "alpha": 0.5}), None]
    for one, choice in zip(seen, choices, strict=True):
        expected = replica(images, choice).probabilities
        given = [[row["probabilities"][label] for label in info["labels"]] for row in one["predictions"]]
        np.testing.assert_allclose(given, expected, atol=1e-5)
    assert reply.status_code == 200
    assert (reply.json()["method"], reply.json()["previous"]["method"]) == ("source", "find")
    assert (info["method"], info["options"], info["batch_independent"]) == ("source", {}, True)
    assert told["method"] == "source"
    assert any(key[0] == "findtta_build_info" and "source" in key for key in metrics)
    assert not any(key[0] == "findtta_build_info" and "find" in key for key in metrics)
    assert not any(key[0] == "findtta_layer_groups" for key in metrics)  # source makes none
    assert metrics["findtta_method_switches_total",] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"method": "sorce"}, "Did you mean 'source'"),
        ({"method": "find", "options": {"alpha": 7}}, "alpha must be a number from 0 to 1, got 7"),
        ({"method": "find", "options": {"beta": 7}}, "no option 'beta'"),
        ({"method": "tent"}, "learns from every batch"),
        ({"method": "find-star"}, "replicas must be 1 for 'find-star', got 2"),
        ({"method": "mine.py:Mine"}, "code of files and modules"),
        ({"method": "find+antigravity:Mine"}, "code of files and modules"),
        ({"method": "find", "options": {"partitioner": "os:system"}}, "code of files and modules"),
        ({"method": "find", "options": {"partitioner_options": {"a": ["m:f"]}}}, "code of files and modules"),
        ({"options": {}}, "method: Field required"),
        ({"method": "source", "option": {}}, "Extra inputs are not permitted"),
    ],
)
def test_a_method_that_cannot_be_served_changes_nothing(content, words, one_of_two):
    async def use(frontend):
        refused = await switch(frontend, content)
        return refused, (await ask(frontend.app, "GET", "/v1/method", headers=KEY)).json()

    refused, told = with_frontend(use, Settings(api_key="secret", replicas=2), one_of_two)
    assert refused.status_code == 422
    assert words in refused.json()["error"]["message"]
    assert told["method"] == "find"


def test_the_page_compares_what_is_served(replica, monkeypatch):
    monkeypatch.setattr("findtta.serve.overview.IMAGES", 4)

    async def compared(frontend):
        async with asyncio.timeout(60):
            while True:
                report = (await ask(frontend.app, "GET", "/v1/overview", headers=KEY)).json()
                if report["status"] != "computing":
                    return report
                await asyncio.sleep(0.05)

    async def use(frontend):
        seen = [await compared(frontend)]
        for choice in ({"method": "tbn"}, {"method": "find", "options": {"alpha": 0.5}}):
            await switch(frontend, choice)
            seen.append(await compared(frontend))
        offered = (await ask(frontend.app, "GET", "/v1/samples", headers=KEY)).json()
        batch = (await ask(frontend.app, "GET", "/v1/overview/batch", headers=KEY)).json()
        return seen, offered["method"], batch["method"]

    seen, offered, batch = with_frontend(use, Settings(api_key="secret", clean_images="none"), replica)
    assert [report["method"] for report in seen] == ["find", "tbn", "find"]
    assert [report["status"] for report in seen] == ["ready"] * 3
    methods = [[entry["method"] for entry in report["methods"]] for report in seen]
    assert methods[1] == ["source", "tbn", "find-soft"]
    confidences = [report["methods"][1]["mixed"]["confidence"] for report in seen]
    assert len(set(confidences)) == 3  # the options count, too
    assert (offered, batch) == ("find", "find")


def test_only_who_has_the_key_may_switch(replica):
    async def use(frontend):
        return await switch(frontend, {"method": "source"}, {}), frontend.description.method

    reply, method = with_frontend(use, Settings(), replica)
    assert (reply.status_code, code(reply), method) == (403, "no_key", "find")
    assert "--api-key-file" in reply.json()["error"]["message"]
    reply, method = with_frontend(use, Settings(api_key="secret"), replica)
    assert (reply.status_code, code(reply), method) == (401, "unauthorized", "find")


def test_who_stops_waiting_does_not_take_the_replica_along():
    done = []

    class Slow(InThisProcess):
        async def predict(self, images, choice=None):
            await asyncio.sleep(0.05)
            done.append(choice)
            return flat(), "one"

    async def main():
        task = asyncio.create_task(Engine(Slow(None), Telemetry((), ()), 10).predict(CLEAN[:1]))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.1)

    asyncio.run(main())
    assert done == [None]


# The drift alert


def drift_of(replica, images, size):
    return np.concatenate([replica(images[i : i + size]).sample_drift for i in range(0, len(images), size)])


def test_the_alert_is_silent_on_clean_images_and_raised_by_corrupted_ones(replica, caplog):
    async def predicted(images):
        return replica(images)

    images = read_clean_images(None, replica.description.preprocessing, Settings().image_limits)
    assert len(images) == COUNT
    clean = asyncio.run(calibrate(predicted, images, replica.description.layers, 64, True))
    assert len(clean.mean) == len(clean.layers) == len(replica.description.layers)
    assert all(low < mean < high for low, mean, high in zip(clean.low, clean.mean, clean.high, strict=True))
    telemetry = Telemetry((), ())
    alert = DriftAlert(Settings(), None, lambda: True, telemetry)
    alert.restart(clean)
    # 20,000 clean images in batches of random sizes, among them 4, where the groups of FIND are the smallest.
    known = {1: drift_of(replica, CLEAN[:32], 1), 4: drift_of(replica, CLEAN, 4), 64: drift_of(replica, CLEAN, 64)}
    generator = np.random.default_rng(0)
    for size in generator.choice([1, 4, 64], 900):
        alert.count(generator.choice(known[size], size))
        assert not alert.is_raised
    alert.count(np.array([np.inf, np.nan, 1e9]))  # nor does one strange image raise it
    assert not alert.is_raised
    assert caplog.messages == []
    for drift in drift_of(replica, corrupt_each(CLEAN, "mixed", 5, 0)[0], 64).reshape(-1, 64):
        alert.count(drift)
    assert alert.is_raised
    assert "findtta_drift_alert 1.0" in telemetry.text(0).decode()
    for _ in range(3):
        alert.count(known[64])
    assert not alert.is_raised
    assert [message.partition(":")[0] for message in caplog.messages] == ["drift alert", "drift alert is over"]
    assert f"{clean.level:.4g}" in caplog.messages[0]


def test_the_level_comes_in_the_background_and_anew_for_another_method(replica, monkeypatch):
    monkeypatch.setattr("findtta.serve.alert.COUNT", 32)

    async def use(frontend):
        frontend.watch()
        reply = await predict(frontend, CLEAN[:2])
        levels = []
        for _ in ("find", "source"):
            while frontend.clean_drift is None:
                await asyncio.sleep(0.05)
            levels.append((frontend.clean_drift, (await values(frontend))["findtta_drift_level",]))
            await switch(frontend, {"method": "source"})
            assert frontend.clean_drift is None
        await frontend.drain()
        return reply, levels

    reply, levels = with_frontend(use, Settings(api_key="secret", max_batch=8), replica)
    assert reply.status_code == 200
    assert all(clean.level == level for clean, level in levels)
    assert levels[0][1] != levels[1][1]


def test_clean_images_come_from_a_folder_or_a_dataset(tmp_path):
    settings = Settings()
    shape = Replica(settings).description.preprocessing
    for name in range(40):
        folder = tmp_path / ("a" if name < 20 else "b")
        folder.mkdir(exist_ok=True)
        Image.fromarray(CLEAN[name]).save(folder / f"{name:02}.png")
    found = read_clean_images(str(tmp_path), shape, settings.image_limits)
    assert np.array_equal(found, CLEAN[:40])
    assert len(read_clean_images("shapes", shape, settings.image_limits)) == COUNT
    (tmp_path / "a" / "00.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"00\.png' cannot be read"):
        read_clean_images(str(tmp_path), shape, settings.image_limits)
    with pytest.raises(InputError, match="at least 32 images, got 20"):
        read_clean_images(str(tmp_path / "b"), shape, settings.image_limits)
    with pytest.raises(FindTTAError, match="shaeps"):
        require_clean_images("shaeps")


# Whether clients influence each other


@pytest.mark.parametrize(
    ("method", "options", "independent"),
    [
        ("source", {}, True),
        ("iabn", {}, True),
        ("find", {}, False),
        ("find", {"partitioner": "instance"}, True),
        ("find", {"alpha": 1.0}, True),
        ("find-soft", {}, False),
        ("find-star", {"partitioner": "instance"}, False),
        ("rotta", {}, False),
    ],
)
def test_what_is_said_of_a_method_is_so(method, options, independent):
    settings = Settings(method=method, options=options)
    assert settings.depends_on_batch == (not independent)
    if independent:
        predictor = settings.predictor()
        together = predictor(CLEAN[:5]).probabilities
        alone = np.concatenate([predictor(image[None]).probabilities for image in CLEAN[:5]])
        np.testing.assert_allclose(together, alone, atol=1e-5)


# The dashboard


def queries():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_query_of_the_dashboard_is_about_what_the_server_exports(replica):
    async def use(frontend):
        await predict(frontend, CLEAN[:4], {})
        await ask(frontend.app, "GET", "/nothing")
        return (await ask(frontend.app, "GET", "/metrics")).text

    text = with_frontend(use, Settings(clean_images="none"), replica)
    families = [family for family in text_string_to_metric_families(text) if not family.name.endswith("_created")]
    exported = {}
    for sample in (sample for family in families for sample in family.samples):
        exported.setdefault(sample.name, set()).update(sample.labels)
    used = set()
    for query in queries():
        assert query.count("(") == query.count(")")
        names = set(re.findall(r"\bfindtta_\w+", query))
        assert names, query
        assert names <= exported.keys(), query
        used |= names
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", query)) - {"job"}  # which Prometheus adds
        for listed in re.findall(r"by \(([^)]*)\)", query):
            labels |= {label.strip() for label in listed.split(",")}
        for name in names:
            assert labels <= exported[name], (query, name)
    shown = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in used}
    assert {family.name for family in families} - shown == NOT_ON_THE_DASHBOARD


def test_the_access_log_has_every_request():
    log = io.StringIO()

    async def main():
        from test_serve_app import DESCRIPTION, LABELS, SETTINGS
        from test_serve_app import Engine as MadeUp

        app = Frontend(SETTINGS, DESCRIPTION, MadeUp(), Telemetry(DESCRIPTION.layers, LABELS, access_log=log)).app
        for start in range(0, 300, 50):
            await asyncio.gather(
                *(
                    ask(app, "GET", "/livez", headers={"X-Request-ID": f"r{number}"})
                    for number in range(start, start + 50)
                )
            )

    asyncio.run(main())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert sorted(line["request_id"] for line in lines) == sorted(f"r{number}" for number in range(300))
