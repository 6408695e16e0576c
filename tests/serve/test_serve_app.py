"""The HTTP side with a model that is made up: every status, every limit, the key, the counters and the end."""

import asyncio
import dataclasses
import hashlib
import io
import json
from collections.abc import Awaitable, Callable

import httpx
import numpy as np
import pytest
from asgi import ask, code
from PIL import Image

pytest.importorskip("fastapi", reason="the 'serve' extra is not installed")
pytest.importorskip("prometheus_client", reason="the 'serve' extra is not installed")

pytest.importorskip("python_multipart", reason="the 'serve' extra is not installed")

import findtta
from findtta.images import Preprocessing
from findtta.predictor import Predictions
from findtta.serve import Settings
from findtta.serve.app import Frontend
from findtta.serve.engine import Description, Unavailable
from findtta.serve.settings import MEBIBYTE
from findtta.serve.telemetry import Telemetry

LABELS = ("dark", "dim", "bright")
DESCRIPTION = Description(
    model="made-up",
    method="find",
    options={},
    labels=LABELS,
    layers=("a", "b"),
    preprocessing=Preprocessing(size=(4, 4), resize=5, interpolation="bicubic"),
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.2, 0.1),
)
SETTINGS = Settings(max_batch=8, wait_ms=5, max_queue=16, timeout_s=5)
PNG = {"Content-Type": "image/png"}
NPY = {"Content-Type": "application/x-npy"}
JSON = {"Content-Type": "application/json"}


def predicted(images: np.ndarray) -> Predictions:
    """The class says how bright an image is, and its probability carries its first pixel."""
    first = images[:, 0, 0, 0].astype(np.float32)
    rest = (1 - first / 1000) / 2
    probabilities = np.stack([rest, rest, first / 1000], 1)
    groups = np.tile(np.arange(len(images))[:, None] // 2 * 2, (1, 2))
    drift = np.stack([first.astype(float), np.full(len(images), np.nan)], 1)
    return Predictions(probabilities, groups, drift)


async def predict(images: np.ndarray, choice=None) -> Predictions:
    await asyncio.sleep(0.001)
    return predicted(images)


@dataclasses.dataclass
class Engine:
    """A model that is made up."""

    predict: Callable[..., Awaitable[Predictions]] = predict
    healthy: bool = True
    failed: bool = False


def frontend_of(settings, engine, description=DESCRIPTION):
    return Frontend(settings, description, engine, Telemetry(description.layers, description.labels))


def png(value: int = 9, side: int = 4) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (value,) * 3).save(file, "PNG")
    return file.getvalue()


def with_frontend(use, settings=SETTINGS, model=predict, healthy=True):
    """Run ``use(frontend)`` in an event loop."""

    async def main():
        return await use(frontend_of(settings, Engine(model, healthy)))

    return asyncio.run(main())


def reply_to(method, url, body=b"", headers=None, *, settings=SETTINGS, model=predict, pause_s=0.0):
    return with_frontend(
        lambda frontend: ask(frontend.app, method, url, body, headers, pause_s=pause_s), settings, model
    )


def changed(**changes):
    return dataclasses.replace(SETTINGS, **changes)


def test_a_prediction_has_everything():
    reply = reply_to("POST", "/v1/predict?top=2", png(200), {**PNG, "X-Request-ID": "mine-7"})
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] == "mine-7"
    assert reply.json() == {
        "predictions": [
            {
                "label": "dark",
                "index": 0,
                "confidence": pytest.approx(0.4),
                "probabilities": {"dark": pytest.approx(0.4), "dim": pytest.approx(0.4)},
                "group": 0,
                "drift": 200.0,
                "digest": hashlib.sha256(png(200)).hexdigest()[:16],
            }
        ],
        "request_id": "mine-7",
        "model": "made-up",
        "method": "find",
        "batch_size": 1,
        "batch_id": reply.json()["batch_id"],
    }


@pytest.mark.parametrize("name", ["", "two words", "x" * 129, "caf\u00e9"])
def test_a_name_that_could_harm_a_log_is_replaced(name):
    reply = reply_to("GET", "/v1/info", headers={"X-Request-ID": name})
    assert reply.headers["x-request-id"] != name
    assert len(reply.headers["x-request-id"]) == 32


def test_many_clients_share_batches_and_each_gets_its_own_prediction():
    async def use(frontend):
        bodies = [png(value) for value in range(16)]
        return await asyncio.gather(*(ask(frontend.app, "POST", "/v1/predict", body, PNG) for body in bodies))

    replies = with_frontend(use)
    assert [reply.json()["predictions"][0]["drift"] for reply in replies] == list(range(16))
    assert max(reply.json()["batch_size"] for reply in replies) > 1
    assert [reply.json()["predictions"][0]["digest"] for reply in replies] == [
        hashlib.sha256(png(value)).hexdigest()[:16] for value in range(16)
    ]


def test_a_poisoned_image_is_refused_alone():
    async def use(frontend):
        poison = [png()[:-22], b"GIF89a", np.full((4, 4, 3), np.nan).tolist(), b""]
        requests = [ask(frontend.app, "POST", "/v1/predict", png(value), PNG) for value in range(6)]
        for bad in poison:
            if isinstance(bad, bytes):
                requests.append(ask(frontend.app, "POST", "/v1/predict", bad, PNG))
            else:
                body = json.dumps({"images": [bad]}).encode()
                requests.append(ask(frontend.app, "POST", "/v1/predict", body, JSON))
        return await asyncio.gather(*requests)

    replies = with_frontend(use)
    assert [reply.status_code for reply in replies] == [200] * 6 + [422] * 4
    assert [reply.json()["predictions"][0]["drift"] for reply in replies[:6]] == list(range(6))
    codes = [reply.json()["error"]["images"][0]["code"] for reply in replies[6:]]
    assert codes == ["broken", "not_an_image", "not_finite", "empty"]


def strange_images():
    """Images that are odd, but images."""
    for mode, form in (("CMYK", "JPEG"), ("I;16", "PNG"), ("1", "PNG"), ("LA", "PNG"), ("P", "GIF")):
        file = io.BytesIO()
        Image.new(mode, (1, 1)).save(file, form)
        yield pytest.param(file.getvalue(), id=f"{mode} {form}")
    frames = [Image.new("RGB", (5, 5), color) for color in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    yield pytest.param(file.getvalue(), id="animation")
    file = io.BytesIO()
    Image.new("RGB", (2_000, 1)).save(file, "PNG")
    yield pytest.param(file.getvalue(), id="thin")


@pytest.mark.parametrize("body", list(strange_images()))
def test_strange_images_are_answered(body):
    reply = reply_to("POST", "/v1/predict", body, {"Content-Type": "application/octet-stream"})
    assert reply.status_code == 200
    assert reply.json()["predictions"][0]["label"] in LABELS


@pytest.mark.parametrize(
    ("settings", "body", "headers", "status", "name"),
    [
        ({}, b"{", JSON, 400, "bad_json"),
        ({}, png(), {}, 415, "unsupported_type"),
        ({"max_body_mb": 50 / MEBIBYTE}, png(), PNG, 413, "body_too_large"),
        ({"max_body_mb": 50 / MEBIBYTE}, png(), {**PNG, "Content-Length": "9999"}, 413, "body_too_large"),
        ({"max_body_mb": 50 / MEBIBYTE}, [b"x" * 30, b"x" * 30], PNG, 413, "body_too_large"),
        (
            {"max_body_mb": 50 / MEBIBYTE},
            [b"x" * 30, b"x" * 30],
            {**PNG, "Content-Length": "1"},
            413,
            "body_too_large",
        ),
        ({"max_json_mb": 50 / MEBIBYTE}, b" " * 60, JSON, 413, "body_too_large"),
        ({"max_images": 1}, b'{"images": ["", ""]}', JSON, 413, "too_many_images"),
        ({"max_image_mb": 50 / MEBIBYTE}, png(), PNG, 422, "bad_image"),
        ({"max_pixels": 15}, png(), PNG, 422, "bad_image"),
    ],
)
def test_what_is_refused(settings, body, headers, status, name):
    reply = reply_to("POST", "/v1/predict", body, headers, settings=changed(**settings))
    assert (reply.status_code, code(reply)) == (status, name)
    assert reply.json()["request_id"] == reply.headers["x-request-id"]


def test_a_bomb_is_refused_by_its_header():
    file = io.BytesIO()
    Image.new("1", (8_000, 8_000)).save(file, "PNG")
    reply = reply_to("POST", "/v1/predict", file.getvalue(), PNG)
    assert reply.status_code == 422
    assert reply.json()["error"]["images"][0]["code"] == "too_many_pixels"


@pytest.mark.parametrize("top", ["0", "-1", "x", "1.5"])
def test_a_bad_query_is_an_error_in_the_same_form(top):
    reply = reply_to("POST", f"/v1/predict?top={top}", png(), PNG)
    assert (reply.status_code, code(reply)) == (422, "bad_value")
    assert "top" in reply.json()["error"]["message"]


def test_top_larger_than_the_number_of_classes_gives_all():
    reply = reply_to("POST", "/v1/predict?top=99", png(), PNG)
    assert list(reply.json()["predictions"][0]["probabilities"]) == ["dark", "dim", "bright"]


def test_unknown_paths_and_methods():
    assert code(reply_to("GET", "/nothing")) == "not_found"
    assert code(reply_to("GET", "/v1/predict")) == "wrong_method"


def test_a_full_queue_refuses_and_says_when_to_come_back():
    async def use(frontend):
        requests = [ask(frontend.app, "POST", "/v1/predict", png(value), PNG) for value in range(40)]
        replies = await asyncio.gather(*requests)
        later = await ask(frontend.app, "POST", "/v1/predict", png(), PNG)
        return replies, later

    async def slow(images, choice=None):
        await asyncio.sleep(0.2)
        return predicted(images)

    replies, later = with_frontend(use, model=slow)
    refused = [reply for reply in replies if reply.status_code == 503]
    accepted = [value for value, reply in enumerate(replies) if reply.status_code == 200]
    assert len(refused) + len(accepted) == 40
    assert len(accepted) >= 16
    assert refused
    assert {(code(reply), reply.headers["retry-after"]) for reply in refused} == {("busy", "1")}
    assert [replies[value].json()["predictions"][0]["drift"] for value in accepted] == accepted
    assert later.status_code == 200


def test_too_many_bytes_at_a_time_are_refused():
    settings = changed(max_body_mb=1_000 / MEBIBYTE, max_json_mb=1_000 / MEBIBYTE, max_pending_mb=1_000 / MEBIBYTE)

    async def use(frontend):
        slow = ask(frontend.app, "POST", "/v1/predict", [b"x"] * 900, PNG)
        waiting = asyncio.ensure_future(slow)
        big = await ask(frontend.app, "POST", "/v1/predict", [b"x" * 300] * 3, PNG, pause_s=0.02)
        waiting.cancel()
        alone = await ask(frontend.app, "POST", "/v1/predict", png(), PNG)
        return big, alone

    big, alone = with_frontend(use, settings)
    assert big.status_code in (422, 503)  # the slow one may have ended by then
    assert alone.status_code == 200


def test_no_prediction_in_time():
    async def never(images, choice=None):
        await asyncio.sleep(60)

    reply = reply_to("POST", "/v1/predict", png(), PNG, settings=changed(timeout_s=0.1), model=never)
    assert (reply.status_code, code(reply)) == (504, "timeout")


def test_a_body_that_trickles_in_is_given_up():
    reply = reply_to("POST", "/v1/predict", [b"x"] * 50, PNG, settings=changed(timeout_s=0.1), pause_s=0.05)
    assert (reply.status_code, code(reply)) == (408, "slow_body")


def test_a_client_that_goes_away_is_not_a_failure_of_the_server():
    messages = iter([{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}])
    sent = []

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/predict",
        "query_string": b"",
        "headers": [(b"content-type", b"image/png")],
    }
    with_frontend(lambda frontend: frontend.app(scope, receive, send))
    assert sent[0]["status"] == 400
    assert b"incomplete_body" in sent[1]["body"]


def test_predictions_of_a_real_model_are_not_swapped():
    settings = changed(method="source", max_queue=64, wait_ms=1)
    predictor = settings.predictor()
    description = Description.of(settings, predictor)
    images = np.random.default_rng(1).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)

    async def really(batch, choice=None):
        return await asyncio.to_thread(predictor, batch)

    async def main():
        frontend = frontend_of(settings, Engine(really), description)
        bodies = []
        for image in images:
            file = io.BytesIO()
            np.save(file, image)
            bodies.append(file.getvalue())
        return await asyncio.gather(
            *(ask(frontend.app, "POST", "/v1/predict?top=10", body, NPY) for body in bodies)
        )

    # Under this method a prediction depends on its own image only.
    expected = predictor(images).probabilities
    for reply, probabilities in zip(asyncio.run(main()), expected, strict=True):
        row = reply.json()["predictions"][0]["probabilities"]
        np.testing.assert_allclose([row[label] for label in description.labels], probabilities, atol=1e-5)


def test_a_model_that_is_away():
    async def away(images, choice=None):
        raise Unavailable

    reply = reply_to("POST", "/v1/predict", png(), PNG, model=away)
    assert (reply.status_code, code(reply), reply.headers["retry-after"]) == (503, "model_unavailable", "5")


def test_a_failing_batch_takes_nobody_else_along(caplog):
    async def picky(images, choice=None):
        if (images == 13).any():
            raise ValueError("unlucky")
        return predicted(images)

    async def use(frontend):
        bad = await ask(frontend.app, "POST", "/v1/predict", png(13), PNG)
        good = await ask(frontend.app, "POST", "/v1/predict", png(14), PNG)
        return bad, good

    bad, good = with_frontend(use, model=picky)
    assert (bad.status_code, code(bad)) == (500, "internal")
    assert "unlucky" not in bad.text
    assert "unlucky" in caplog.text
    assert good.json()["predictions"][0]["drift"] == 14


def test_predictions_that_are_not_numbers_are_null():
    async def broken(images, choice=None):
        nothing = np.full((len(images), 2), np.nan)
        return Predictions(np.full((len(images), 3), np.nan, np.float32), np.full(nothing.shape, -1), nothing)

    row = reply_to("POST", "/v1/predict", png(), PNG, model=broken).json()["predictions"][0]
    assert (row["confidence"], row["drift"], row["group"]) == (None, None, -1)


@pytest.mark.parametrize("path", ["/v1/info", "/metrics", "/v1/predict", "/v1/samples"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": "wrong"},
        {"X-API-Key": "s\u00e9cret"},
        {"Authorization": "Bearer secre"},
        {"Authorization": "Basic secret"},
    ],
)
def test_without_the_key_nothing_is_told(path, headers):
    reply = reply_to("GET", path, headers=headers, settings=changed(api_key="secret"))
    assert (reply.status_code, code(reply)) == (401, "unauthorized")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("headers", [{"X-API-Key": "secret"}, {"Authorization": "bearer secret"}])
def test_with_the_key_everything_is(headers):
    assert reply_to("GET", "/v1/info", headers=headers, settings=changed(api_key="secret")).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/", "/docs", "/openapi.json"])
def test_what_is_open_to_all(path):
    assert reply_to("GET", path, settings=changed(api_key="secret")).status_code == 200


def test_info_tells_what_a_client_needs():
    info = reply_to("GET", "/v1/info", settings=changed(api_key=None)).json()
    assert info["labels"] == list(LABELS)
    assert info["layers"] == ["a", "b"]
    assert info["preprocessing"] == {
        "size": [4, 4],
        "resize": 5,
        "crop": 0.8,
        "interpolation": "bicubic",
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.2, 0.1],
    }
    assert info["limits"]["max_images"] == 8
    assert info["limits"]["image_max_pixels"] == 50_000_000


def test_no_secret_shows():
    settings = changed(api_key="hush-hush")
    reply = reply_to("GET", "/v1/info", headers={"X-API-Key": "hush-hush"}, settings=settings)
    assert "hush" not in reply.text
    assert "hush" not in repr(settings)


def test_counters():
    async def use(frontend):
        batch = json.dumps({"images": [[[value] * 4] * 4 for value in (0, 200, 250)]}).encode()
        await ask(frontend.app, "POST", "/v1/predict", batch, JSON)
        await ask(frontend.app, "POST", "/v1/predict", png(50), PNG)
        await ask(frontend.app, "POST", "/v1/predict", b"", PNG)
        await ask(frontend.app, "POST", "/v1/predict", b"", {**PNG, "Content-Length": "999999999"})
        await ask(frontend.app, "GET", "/who/knows")
        return (await ask(frontend.app, "GET", "/metrics")).text.splitlines()

    lines = with_frontend(use)
    for line in (
        'findtta_requests_total{route="/v1/predict",status="200"} 2.0',
        'findtta_requests_total{route="/v1/predict",status="422"} 1.0',
        'findtta_requests_total{route="/v1/predict",status="413"} 1.0',
        'findtta_requests_total{route="other",status="404"} 1.0',
        'findtta_request_seconds_count{route="/v1/predict"} 4.0',
        'findtta_request_seconds_bucket{le="7.5",route="/v1/predict"} 4.0',
        f'findtta_build_info{{version="{findtta.__version__}"}} 1.0',
        'findtta_batch_size_bucket{le="1.0"} 1.0',
        'findtta_batch_size_bucket{le="4.0"} 2.0',
        "findtta_batch_size_sum 4.0",
        "findtta_batch_groups_sum 3.0",  # two groups of three images, one of one
        'findtta_predictions_total{label="dark"} 4.0',
        'findtta_layer_groups{layer="a"} 1.95',
        'findtta_layer_drift{layer="a"} 145.0',  # 150, then 50 with the weight 1 / 20
        "findtta_queue_images 0.0",
    ):
        assert line in lines
    assert not any('findtta_layer_drift{layer="b"}' in line for line in lines)  # it measures none


def test_drain_answers_what_was_accepted_and_refuses_the_rest():
    async def slow(images, choice=None):
        await asyncio.sleep(0.1)
        return predicted(images)

    async def use(frontend):
        early = [
            asyncio.ensure_future(ask(frontend.app, "POST", "/v1/predict", png(value), PNG)) for value in range(5)
        ]
        uploading = asyncio.ensure_future(
            ask(frontend.app, "POST", "/v1/predict", [png(9)[:20], png(9)[20:]], PNG, pause_s=0.05)
        )
        await asyncio.sleep(0.02)
        draining = asyncio.ensure_future(frontend.drain())
        await asyncio.sleep(0)
        health = await ask(frontend.app, "GET", "/healthz")
        late = await ask(frontend.app, "POST", "/v1/predict", png(), PNG)
        await draining
        assert all(task.done() for task in (*early, uploading))
        return [task.result() for task in (*early, uploading)], health, late

    accepted, health, late = with_frontend(use, model=slow)
    assert [reply.json()["predictions"][0]["drift"] for reply in accepted] == [0, 1, 2, 3, 4, 9]
    assert (health.status_code, health.json()["status"]) == (503, "draining")
    assert (late.status_code, code(late), late.headers["retry-after"]) == (503, "draining", "5")


@pytest.mark.parametrize(("healthy", "status"), [(True, 200), (False, 503)])
def test_health_follows_the_model(healthy, status):
    reply = with_frontend(lambda frontend: ask(frontend.app, "GET", "/healthz"), healthy=healthy)
    assert reply.status_code == status


@pytest.mark.parametrize(("failed", "status"), [(False, 200), (True, 503)])
def test_liveness_is_about_what_only_a_restart_can_help(failed, status):
    async def main():
        frontend = frontend_of(SETTINGS, Engine(healthy=False, failed=failed))
        return await ask(frontend.app, "GET", "/livez")

    assert asyncio.run(main()).status_code == status


def test_the_access_log_has_a_line_per_request_with_its_batch(monkeypatch):
    monkeypatch.setattr("findtta.serve.batcher._ALONE_S", 10)  # all three share a batch
    log = io.StringIO()

    async def main():
        telemetry = Telemetry(DESCRIPTION.layers, LABELS, access_log=log)
        app = Frontend(changed(wait_ms=10_000, max_batch=3), DESCRIPTION, Engine(), telemetry).app
        requests = [
            ask(app, "POST", "/v1/predict", png(value), {**PNG, "X-Request-ID": f"mine-{value}"})
            for value in range(3)
        ]
        replies = await asyncio.gather(*requests)
        await ask(app, "GET", "/secret?key=1", headers={"X-Request-ID": "bad\nid"})
        return {reply.json()["batch_id"] for reply in replies}

    batch_ids = asyncio.run(main())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert len(batch_ids) == 1
    assert {line["request_id"] for line in lines[:3]} == {"mine-0", "mine-1", "mine-2"}
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        *[("POST", "/v1/predict", 200)] * 3,
        ("GET", "other", 404),
    ]
    assert {line["batch_id"] for line in lines[:3]} == batch_ids
    assert lines[3]["batch_id"] is None
    assert all(0 < line["seconds"] < 100 for line in lines)
    assert "secret" not in log.getvalue()


def test_the_list_of_endpoints_needs_nothing_from_outside():
    docs = reply_to("GET", "/docs")
    page = docs.text
    for path in ("POST /v1/predict", "GET /v1/info", "GET /healthz", "GET /metrics"):
        assert path in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    paths = reply_to("GET", "/openapi.json").json()["paths"]
    assert set(paths["/v1/predict"]["post"]["responses"]) >= {
        "200",
        "400",
        "401",
        "413",
        "415",
        "422",
        "503",
        "504",
    }


def test_the_page_may_load_from_its_server_only():
    reply = reply_to("GET", "/")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in reply.headers["content-security-policy"]


def test_several_files_share_a_batch_and_keep_their_order():
    async def use(frontend):
        files = [("file", (f"{value}.png", png(value), "image/png")) for value in (5, 3, 4)]
        request = httpx.Request("POST", "http://server", files=files)
        return await ask(
            frontend.app, "POST", "/v1/predict", request.read(), {"Content-Type": request.headers["Content-Type"]}
        )

    reply = with_frontend(use).json()
    assert [row["drift"] for row in reply["predictions"]] == [5, 3, 4]
    assert reply["batch_size"] == 3


def test_too_many_files_are_refused_before_the_body_has_arrived():
    """A body without an end: only a server that counts while it reads can refuse it."""
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n' + png() + b"\r\n"

    def endless():
        while True:
            yield part

    reply = reply_to("POST", "/v1/predict", endless(), {"Content-Type": "multipart/form-data; boundary=x"})
    assert (reply.status_code, code(reply)) == (413, "too_many_images")


def test_json_that_is_too_large_is_refused_before_the_body_has_arrived():
    def endless():
        while True:
            yield b" " * 1000

    reply = reply_to("POST", "/v1/predict", endless(), JSON, settings=changed(max_json_mb=0.01))
    assert (reply.status_code, code(reply)) == (413, "body_too_large")
