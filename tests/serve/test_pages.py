"""The routes of the page, in process: what they give, and what they refuse."""

import asyncio
import base64
import json
import subprocess
import sys

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("python_multipart")

import asgi
import numpy as np
import page_server
from hypothesis import given
from hypothesis import strategies as st

from findtta.data.corruptions import corrupt
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.data.open import load
from findtta.data.shapes import draw
from findtta.errors import OptionError
from findtta.images import read_image
from findtta.intervals import Scores, interval
from findtta.serve import Settings, overview, pages
from findtta.serve.requests import RequestError, parse_json
from findtta.serve.settings import MEBIBYTE
from findtta.streams import make


@pytest.fixture(scope="module")
def app():
    return page_server.app(Settings())


def ask(app, path, content=None):
    method = "GET" if content is None else "POST"
    return asyncio.run(asgi.ask(app, method, path, (content or "").encode()))


def shapes(count):
    return draw(np.arange(count))


def body(images, **fields):
    images = [{"name": f"shape {row}", "data": overview.png_url(image)} for row, image in enumerate(images)]
    return json.dumps({"images": images, **fields})


def compared(app, *arguments, **fields):
    answer = ask(app, "/v1/compare", body(*arguments, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def pixels(url):
    return read_image(base64.b64decode(url.partition(",")[2]))


def refused(app, content, status, code):
    answer = ask(app, "/v1/compare", content)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    return error["message"]


def test_samples_are_drawn_shapes_with_their_labels(app):
    given = ask(app, "/v1/samples").json()
    assert (given["model"], given["method"]) == ("shapes-resnet26", "find")
    assert given["limits"] == {"images": 64, "bytes": 20 * 2**20}
    assert given["labelled"]
    assert len(given["samples"]) == 32
    assert [sample["label"] for sample in given["samples"][:4]] == ["pentagon", "disc", "ring", "star"]
    assert given["samples"][0]["name"] == "pentagon 1"
    assert np.array_equal([pixels(sample["data"]) for sample in given["samples"]], shapes(32))


def test_corruptions_are_the_fifteen_of_the_benchmark(app):
    given = ask(app, "/v1/corruptions").json()
    assert tuple(given["corruptions"]) == MAIN_CORRUPTIONS
    assert given["severities"] == [0, 1, 2, 3, 4, 5]


def test_predictions_are_those_of_predictors_on_the_corrupted_batch(app):
    images = shapes(12)
    result = compared(app, images, corruption="fog", severity=4, seed=3)
    corrupted = corrupt(images, "fog", 4, seed=3)
    assert np.array_equal([pixels(image["corrupted"]) for image in result["images"]], corrupted)
    assert result["methods"] == ["source", "find", "find-soft"]
    for method in ("source", "find-soft", "find"):
        predictor = Settings(method=method).predictor()
        expected = predictor(corrupted)
        for row, image in enumerate(result["images"]):
            probabilities, prediction = expected.probabilities[row], image["predictions"][method]
            assert prediction["label"] == predictor.labels[probabilities.argmax()]
            assert prediction["confidence"] == pytest.approx(probabilities.max(), abs=1e-6)
            falling = [entry["confidence"] for entry in prediction["top"]]
            assert falling == pytest.approx(np.sort(probabilities)[::-1][:5], abs=1e-6)
    assert [image["drift"] for image in result["images"]] == pytest.approx(expected.sample_drift)
    assert [layer["drift"] for layer in result["layers"]] == pytest.approx(expected.drift.mean(0))
    assert tuple(layer["name"] for layer in result["layers"]) == predictor.layers
    assert tuple(result["labels"]) == predictor.labels
    for column, layer in enumerate(result["layers"]):
        numbers = [image["group"][column] for image in result["images"]]
        together = np.equal.outer(numbers, numbers)
        assert np.array_equal(together, np.equal.outer(expected.groups[:, column], expected.groups[:, column]))
        assert set(numbers) == set(range(1, layer["groups"] + 1))


@pytest.mark.parametrize("fields", [{"severity": 0}, {"corruption": "none", "severity": 5}])
def test_severity_0_and_no_corruption_leave_the_images_alone(app, fields):
    images = shapes(4)
    result = compared(app, images, **fields)
    assert np.array_equal([pixels(image["corrupted"]) for image in result["images"]], images)
    assert {image["corruption"] for image in result["images"]} == {"none"}


def test_the_seed_decides_everything(app):
    images = shapes(6)
    first, same, other = (compared(app, images, severity=5, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert [image["corrupted"] for image in first["images"]] != [image["corrupted"] for image in other["images"]]


def test_a_method_without_groups_says_so():
    result = compared(page_server.app(Settings(method="tbn")), shapes(3), severity=2)
    assert result["method"] == "tbn"
    assert result["methods"] == ["source", "tbn", "find-soft"]
    assert {layer["groups"] for layer in result["layers"]} == {0}
    assert {number for image in result["images"] for number in image["group"]} == {None}


def test_an_image_that_cannot_be_read_is_named_among_the_others(app):
    images = json.loads(body(shapes(3)))["images"]
    images[1] = {"name": "notes.txt", "data": base64.b64encode(b"not an image").decode()}
    images[2] = {"name": "odd.png", "data": "%%%"}
    answer = ask(app, "/v1/compare", json.dumps({"images": images}))
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert [(image["index"], image["name"], image["code"]) for image in error["images"]] == [
        (1, "notes.txt", "not_an_image"),
        (2, "odd.png", "bad_value"),
    ]
    assert "notes.txt" in error["message"]


def test_what_is_wrong_with_a_request_is_said(app):
    one = json.loads(body(shapes(1)))["images"]
    assert "JSON" in refused(app, "{", 400, "bad_json")
    assert "images" in refused(app, "{}", 422, "bad_value")
    assert "object" in refused(app, "[1]", 422, "bad_value")
    assert "images.0" in refused(app, '{"images": [3]}', 422, "bad_value")
    assert "JSON" in refused(app, '{"images": [{"name": "\\ud800", "data": ""}]}', 400, "bad_json")
    assert "'fog'" in refused(app, json.dumps({"images": one, "corruption": "fogg"}), 422, "bad_value")
    assert "severity" in refused(app, json.dumps({"images": one, "severity": 6}), 422, "bad_value")
    assert "seed" in refused(app, json.dumps({"images": one, "seed": True}), 422, "bad_value")
    assert "sede" in refused(app, json.dumps({"images": one, "sede": 1}), 422, "bad_value")
    assert "at most 64" in refused(app, json.dumps({"images": one * 65}), 413, "too_many_images")


def test_the_limits_of_the_server_hold_here_too():
    small = page_server.app(
        Settings(max_json_mb=20_000 / MEBIBYTE, max_image_mb=10_000 / MEBIBYTE, max_pixels=32 * 32)
    )
    assert "20,000" in refused(small, body(shapes(16)), 413, "body_too_large")
    large = body([np.zeros((33, 33, 3), np.uint8)])
    assert "33 x 33" in refused(small, large, 422, "bad_image")
    assert ask(small, "/v1/compare", body(shapes(1))).status_code == 200


def test_a_comparison_is_no_larger_than_a_batch():
    small = page_server.app(Settings(max_batch=4, max_images=2))
    assert "at most 4" in refused(small, body(shapes(5)), 413, "too_many_images")
    assert ask(small, "/v1/compare", body(shapes(4))).status_code == 200
    assert ask(small, "/v1/samples").json()["limits"]["images"] == 4


def test_more_comparisons_than_wait_are_asked_to_come_back(app):
    async def all_at_once():
        content = body(shapes(16)).encode()
        return await asyncio.gather(*(asgi.ask(app, "POST", "/v1/compare", content) for _ in range(8)))

    answers = asyncio.run(all_at_once())
    statuses = [answer.status_code for answer in answers]
    assert sorted(statuses) == [200] * 4 + [503] * 4
    assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 503} == {"1"}
    assert len({answer.text for answer in answers if answer.status_code == 200}) == 1
    assert ask(app, "/v1/compare", body(shapes(1))).status_code == 200  # all places are free again


async def computed(frontend):
    """The overview of a server when it is complete; in one event loop, in which it is computed."""
    for _ in range(3000):
        report = (await asgi.ask(frontend.app, "GET", "/v1/overview")).json()
        if report["status"] != "computing":
            return report
        await asyncio.sleep(0.02)
    raise AssertionError(f"the overview is not computed: {report}")


def test_the_overview_has_the_numbers_of_the_stream_crossmix(monkeypatch):
    monkeypatch.setattr(overview, "IMAGES", 6)
    settings = Settings()
    front = page_server.frontend(settings)
    assert front.overview.report()["status"] == "computing"
    assert front.overview.first() is None

    async def ask():
        return await computed(front), (await asgi.ask(front.app, "GET", "/v1/overview/batch")).json()

    report, first = asyncio.run(ask())
    assert (report["status"], report["samples"], report["of"], report["images"]) == ("ready", 90, 90, 6)
    assert report["labelled"]
    data = load("shapes", count=6)
    clean, mixed = data.pick(["clean"]), data.pick()
    stream = make("crossmix", mixed, batch_size=64)
    batches = [mixed.batch(batch.domain_ids, batch.rows) for batch in stream]
    truth = np.concatenate([labels for _, labels in batches])
    (clean_images, clean_truth), model = clean.batch(np.zeros(6, int), np.arange(6)), settings.load_model()
    found, scores = {entry["method"]: entry for entry in report["methods"]}, {}
    assert list(found) == ["source", "find", "find-soft"]
    for method, entry in found.items():
        predictor = Settings(method=method).predictor(model)
        made = [predictor(images) for images, _ in batches]
        correct = np.concatenate([part.indices for part in made]) == truth
        scores[method] = Scores.sort(stream.rows, stream.domain_ids, correct)
        accuracy, difference = (
            interval([values]) for values in (scores[method], scores[method].minus(scores["source"]))
        )
        assert (entry["mixed"]["samples"], entry["mixed"]["correct"]) == (90, correct.sum())
        assert entry["mixed"]["accuracy"] == pytest.approx(
            {"mean": accuracy.mean, "low": accuracy.low, "high": accuracy.high}
        )
        assert entry["mixed"]["difference"] == pytest.approx(
            {"mean": difference.mean, "low": difference.low, "high": difference.high}
        )
        unchanged = predictor(clean_images)
        assert entry["clean"]["correct"] == (unchanged.indices == clean_truth).sum()
        if method == "find":
            ends = np.quantile(unchanged.drift, (0.05, 0.95), axis=0).T
            assert np.allclose(report["drift"]["layers"], ends)
            assert [layer["drift"] for layer in first["layers"]] == pytest.approx(made[0].drift.mean(0))
    classes = [predictor.labels[label] for label in batches[0][1]]
    assert [image["truth"] for image in first["images"]] == classes
    assert np.array_equal([pixels(image["corrupted"]) for image in first["images"]], batches[0][0])
    kinds = [mixed.domains[number].removesuffix("@5") for number in stream[0].domain_ids]
    assert [image["corruption"] for image in first["images"]] == kinds


def test_samples_are_made_without_torch():
    code = (
        "import sys; from findtta.images import Preprocessing; from findtta.serve import Description, Settings;"
        "from findtta.serve.overview import Samples; size = Preprocessing(size=(64, 64));"
        "samples = Samples(Settings(), Description('', '', {}, ('disc',), (), size, (), ()));"
        "samples.batch(samples.batches[0]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_clients_go_before_the_next_batch_of_the_overview(monkeypatch):
    monkeypatch.setattr(overview, "IMAGES", 4)
    front, told = page_server.frontend(Settings(wait_ms=0)), []
    predict, release = front.engine.predict, asyncio.Event()

    async def recorded(images, choice=None):
        told.append("client" if choice is None else choice.method)
        await release.wait()
        return await predict(images, choice)

    front.engine.predict = recorded

    async def client(image):
        answer = await asgi.ask(
            front.app,
            "POST",
            "/v1/predict",
            json.dumps({"images": [image.tolist()]}).encode(),
            {"content-type": "application/json"},
        )
        told.append(answer.status_code)

    async def busy():
        front.overview.start()
        while not told:
            await asyncio.sleep(0.001)
        clients = [asyncio.create_task(client(image)) for image in shapes(3)]
        while "client" not in told:
            await asyncio.sleep(0.001)
        release.set()
        await asyncio.gather(*clients)
        return await computed(front)

    report = asyncio.run(busy())
    assert report["status"] == "ready"
    assert told[0] == "source"
    assert told.count(200) == 3
    last = max(place for place, what in enumerate(told) if what == 200)
    assert set(told[1:last]) == {"client", 200}, "no batch of the overview came between"
    assert told[last + 1 :] == ["find", "find-soft", "source", "find", "find-soft"]


def test_a_failing_model_makes_a_failed_overview_and_not_a_failed_server(monkeypatch, caplog):
    monkeypatch.setattr(overview, "IMAGES", 2)
    front = page_server.frontend(Settings())

    async def broken(images, choice=None):
        raise ValueError("broken")

    front.engine.predict = broken
    report = asyncio.run(computed(front))
    assert (report["status"], report["samples"], report["methods"]) == ("failed", 0, [])
    assert "broken" in caplog.text


@pytest.mark.parametrize(
    ("served", "columns"),
    [
        ("source", ["source", "find-soft"]),
        ("find-soft", ["source", "find-soft"]),
        ("tbn", ["source", "tbn", "find-soft"]),
    ],
)
def test_the_served_method_is_always_a_column_and_none_comes_twice(served, columns):
    front = page_server.frontend(Settings(method=served))
    assert compared(front.app, shapes(2), severity=0)["methods"] == columns


def test_a_method_that_does_not_fit_the_model_is_left_out(app, monkeypatch):
    front = page_server.frontend(Settings())
    predict = front.engine.predict

    async def refuses(images, choice=None):
        if choice is not None and choice.method == "find-soft":
            raise OptionError("no layer to adapt")
        return await predict(images, choice)

    front.engine.predict = refuses
    for _ in range(2):
        assert compared(front.app, shapes(2), severity=0)["methods"] == ["source", "find"]


def test_samples_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "IMAGES", 3)
    for number, image in enumerate(draw(np.arange(4))):
        folder = tmp_path / ("disc" if number % 2 else "star")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.png").write_bytes(base64.b64decode(overview.png_url(image).partition(",")[2]))
    given = ask(page_server.app(Settings(samples=str(tmp_path))), "/v1/samples").json()
    assert len(given["samples"]) == 3
    assert {sample["label"] for sample in given["samples"]} == {"disc", "star"}
    assert given["labelled"]
    (tmp_path / "disc").rename(tmp_path / "cat")
    assert not ask(page_server.app(Settings(samples=str(tmp_path))), "/v1/samples").json()["labelled"]
    with pytest.raises(OptionError, match="samples must be a folder"):
        page_server.app(Settings(samples=str(tmp_path / "nothing")))


@pytest.mark.parametrize("count", [1, 15, 16, 40])
def test_a_mixture_uses_every_corruption_before_one_comes_again(count):
    names = pages.mixture(count, seed=5)
    assert len(names) == count
    for start in range(0, count, 15):
        part = names[start : start + 15]
        assert len(set(part)) == len(part)
    assert set(names) <= set(MAIN_CORRUPTIONS)
    assert pages.mixture(64, 5)[:count] == names


def test_in_a_mixed_batch_each_image_gets_what_it_would_get_alone():
    images = shapes(20)
    result, names = pages.corrupt_each(images, "mixed", 3, seed=9)
    for row, name in enumerate(names):
        assert np.array_equal(result[row], corrupt(images[row : row + 1], name, 3, seed=9, index=[row])[0])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_groups_are_numbered_as_they_appear(labels):
    numbers = overview.number_groups(np.array([labels, [-1] * len(labels)]).T)
    order = list(dict.fromkeys(labels))
    assert numbers[:, 0].tolist() == [order.index(label) + 1 for label in labels]
    assert not numbers[:, 1].any()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries({}, optional={name: JSON for name in ("images", "corruption", "severity", "seed")})


@given(st.binary(max_size=50) | (JSON | FIELDS).map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_read_or_refused_with_a_reason(content):
    reason = None
    try:
        request = parse_json(pages.CompareRequest, content)
    except RequestError as error:
        reason = error
    if reason is None:
        assert 1 <= len(request.images) <= 64
        assert 0 <= request.severity <= 5
    else:
        assert reason.status in (400, 413, 422)
        assert str(reason).endswith((".", "?"))
