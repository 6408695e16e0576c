"""The four ways into a model: a folder dataset, batch prediction, a request to the server, and the server's page.

The same files must give the same pixels and the same predictions through all of them.
"""

import asyncio
import base64
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the 'serve' extra is not installed")
pytest.importorskip("prometheus_client", reason="the 'serve' extra is not installed")
pytest.importorskip("python_multipart", reason="the 'serve' extra is not installed")

import httpx

from findtta.bench import RunSpec
from findtta.bench.evaluate import Metrics
from findtta.bench.plan import Planner
from findtta.cli import main as command
from findtta.data.dataset import CLEAN
from findtta.data.open import load_as_is
from findtta.models import load
from findtta.predictor import Predictor, PredictorSettings
from findtta.serve import Settings
from findtta.serve.app import Frontend
from findtta.serve.engine import Description
from findtta.serve.telemetry import Telemetry

MODEL, METHOD, SIDE = "shapes-resnet26", "find", 32


def smooth(height: int, width: int, channels: int = 3, phase: int = 0) -> np.ndarray:
    """An image in which every direction and every channel looks different."""
    y, x, c = np.ogrid[:height, :width, :channels]
    waves = np.sin(x / 5 + c + phase) + np.cos(y / 7 - c) + (x + 2 * y) / (height + width)
    return np.interp(waves, (-2, 4), (0, 255)).astype(np.uint8)


def save_odd_images(folder: Path, phase: int) -> None:
    def save(name: str, height: int, width: int, channels: int = 3, mode: str = "RGB", **options) -> None:
        image = Image.fromarray(smooth(height, width, channels, phase))
        image.convert(mode).save(folder / name, **options)

    folder.mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6  # the orientation: a quarter turn
    save("rotated.jpg", 40, 70, exif=turned)
    save("palette.png", 45, 61, mode="P", transparency=7)
    save("cmyk.jpg", 48, 52, mode="CMYK")
    save("transparent.png", 41, 47, channels=4, mode="RGBA")
    save("row.png", 1, 400)
    save("tall.webp", 300, 34, lossless=True)
    save("tiny.bmp", 3, 2)
    save("exact.tiff", SIDE, SIDE)
    save("animated.gif", 40, 44, mode="P", save_all=True, append_images=[Image.new("P", (44, 40), 3)])
    deep = smooth(50, 37, 1, phase)[..., 0].astype(np.uint16) * 257
    Image.fromarray(deep).save(folder / "grey16.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset of two classes, whose files sort by class and then by name."""
    root = tmp_path_factory.mktemp("doors")
    save_odd_images(root / "disc", phase=0)
    save_odd_images(root / "star", phase=2)
    return root


@pytest.fixture(scope="module")
def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def seen(monkeypatch):
    """The pixels that models get, call by call."""
    batches: list[np.ndarray] = []
    call = Predictor.__call__

    def record(predictor, images):
        batches.append(images.copy())
        return call(predictor, images)

    monkeypatch.setattr(Predictor, "__call__", record)
    return batches


def through_dataset(folder):
    """Pixels and probabilities as an evaluation on a folder has them."""
    predictor = PredictorSettings(model=load(MODEL), method=METHOD).predictor()
    dataset = load_as_is(folder, preprocessing=predictor.preprocess)
    pixels = dataset.images(CLEAN, np.arange(len(dataset.labels(CLEAN))))
    return pixels, predictor(pixels).probabilities


@pytest.fixture(scope="module")
def expected(folder):
    return through_dataset(folder)


def test_the_images_are_odd_and_all_different(expected, files):
    pixels, probabilities = expected
    assert pixels.shape == (len(files), SIDE, SIDE, 3)
    assert len(np.unique(pixels.reshape(len(files), -1), axis=0)) == len(files) == 20
    assert np.isfinite(probabilities).all()


@pytest.mark.parametrize("method", ["source", "find"])
def test_run_gives_the_labels_of_predict(folder, files, tmp_path, monkeypatch, method):
    same = ["--model", MODEL, "--method", method, "--batch-size", str(len(files)), "--json"]
    words = ["predict", "--input", folder, "-o", tmp_path / "out", "--format", "jsonl", *same]
    assert command.main([str(word) for word in words]) == 0
    (block,) = (tmp_path / "out" / "predictions").iterdir()
    predicted = np.array([json.loads(line)["probabilities"] for line in block.read_text().splitlines()])
    batches: list[np.ndarray] = []
    update = Metrics.update

    def record(metrics, logits, *rest):
        batches.append(logits.softmax(1).numpy())
        update(metrics, logits, *rest)

    monkeypatch.setattr(Metrics, "update", record)
    words = ["run", "--data", folder, "--domains", CLEAN, "--no-store", *same]
    assert command.main([str(word) for word in words]) == 0
    spec = RunSpec(data=str(folder), domains=(CLEAN,), model=MODEL, method=method, batch_size=len(files))
    plan = Planner().plan(spec)
    rows = np.concatenate([batch.rows for batch in plan.stream])
    assert sorted(rows) == list(range(len(files)))  # none is left out, and their order is that of predict
    evaluated = np.concatenate(batches)[np.argsort(rows)]
    np.testing.assert_array_equal(evaluated.argmax(1), predicted.argmax(1))
    np.testing.assert_allclose(evaluated, predicted, atol=1e-4)


def test_batch_prediction_gives_what_the_dataset_gives(folder, expected, seen, tmp_path):
    words = ["predict", "--input", folder, "-o", tmp_path / "out", "--format", "jsonl", "--json"]
    assert command.main([str(word) for word in (*words, "--model", MODEL, "--method", METHOD)]) == 0
    (block,) = (tmp_path / "out" / "predictions").iterdir()
    rows = [json.loads(line) for line in block.read_text().splitlines()]
    assert np.array_equal(np.concatenate(seen), expected[0])
    assert [row["probabilities"] for row in rows] == expected[1].tolist()


class Engine:
    """The model in this process."""

    healthy = True

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    async def predict(self, images, choice=None, *, once=False):
        return self._predictor(images)


def post(path: str, **request) -> dict:
    """Ask a server that runs in this process."""

    async def ask() -> httpx.Response:
        settings = Settings(model=MODEL, method=METHOD)
        predictor = settings.predictor()
        description = Description.of(settings, predictor)
        telemetry = Telemetry(description.layers, description.labels)
        app = Frontend(settings, description, Engine(predictor), telemetry).app
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.post(path, **request)

    response = asyncio.run(ask())
    assert response.status_code == 200, response.text
    return response.json()


def test_a_request_gives_what_the_dataset_gives(files, expected, seen):
    parts = [("images", (path.name, path.read_bytes(), "application/octet-stream")) for path in files]
    reply = post("/v1/predict?top=10", files=parts)
    labels = load(MODEL).card.classes
    found = [[row["probabilities"][label] for label in labels] for row in reply["predictions"]]
    assert np.array_equal(np.concatenate(seen), expected[0])
    assert found == expected[1].tolist()


@pytest.mark.parametrize("through_page", [False, True])
def test_the_page_gives_what_the_dataset_gives(files, expected, seen, through_page):
    contents = [base64.b64encode(path.read_bytes()).decode() for path in files]
    if through_page:  # it lets the server read the files, and sends the pixels from then on
        contents = [image["data"] for image in post("/v1/preprocess", json={"images": contents})["images"]]
    images = [{"name": path.name, "data": data} for path, data in zip(files, contents, strict=True)]
    reply = post("/v1/compare", json={"images": images, "severity": 0})
    assert len(seen) == len(reply["methods"]) == 3
    assert all(np.array_equal(images, expected[0]) for images in seen)
    for row, probabilities in zip(reply["images"], expected[1], strict=True):
        top = row["predictions"][METHOD]["top"]
        assert [entry["confidence"] for entry in top] == sorted(probabilities.tolist())[:-6:-1]
