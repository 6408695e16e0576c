"""The Open Inference Protocol, spoken by the client of Triton as it comes, and by hand where no client would."""

import asyncio
import io
import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from asgi import ask
from PIL import Image

pytest.importorskip("fastapi", reason="the 'serve' extra is not installed")
pytest.importorskip("uvicorn", reason="the 'serve' extra is not installed")
pytest.importorskip("prometheus_client", reason="the 'serve' extra is not installed")
pytest.importorskip("tritonclient.http", reason="the client of Triton is not installed")

import tritonclient.http as client_module
from page_server import Here, app, serving

from findtta.serve import Settings

SETTINGS = Settings(max_batch=8, wait_ms=1, max_body_mb=1, max_json_mb=0.5)
PREDICTOR = SETTINGS.predictor()
MODEL = "shapes-resnet26"
IMAGES = np.random.default_rng(5).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
EXPECTED = PREDICTOR(IMAGES)


@pytest.fixture(scope="module")
def url():
    with serving(SETTINGS, Here(PREDICTOR)) as address:
        yield address


@pytest.fixture
def client(url):
    client = client_module.InferenceServerClient(url.removeprefix("http://").rstrip("/"))
    yield client
    client.close()


def tensor(array, datatype="UINT8", binary=True):
    made = client_module.InferInput("images", list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "classification"]
    about = client.get_model_metadata(MODEL, "1")
    assert about == client.get_model_metadata(MODEL)
    assert (about["name"], about["versions"]) == (MODEL, ["1"])
    assert [(one["name"], one["datatype"], one["shape"]) for one in about["inputs"]] == [
        ("images", "UINT8", [-1, -1, -1, 3])
    ]
    assert {one["name"]: (one["datatype"], one["shape"]) for one in about["outputs"]} == {
        "probabilities": ("FP32", [-1, 10]),
        "label": ("INT64", [-1]),
        "class": ("BYTES", [-1]),
        "group": ("INT64", [-1]),
        "drift": ("FP32", [-1]),
    }


@pytest.mark.parametrize("binary_output", [True, False])
@pytest.mark.parametrize("binary_input", [True, False])
def test_a_batch_is_predicted_as_offline(client, binary_input, binary_output):
    names = ("probabilities", "label", "class", "group", "drift")
    outputs = [client_module.InferRequestedOutput(name, binary_data=binary_output) for name in names]
    answer = client.infer(MODEL, [tensor(IMAGES, binary=binary_input)], outputs=outputs, request_id="mine")
    np.testing.assert_allclose(answer.as_numpy("probabilities"), EXPECTED.probabilities, atol=1e-5)
    np.testing.assert_array_equal(answer.as_numpy("label"), EXPECTED.indices)
    np.testing.assert_array_equal(answer.as_numpy("group"), EXPECTED.last_groups)
    np.testing.assert_allclose(answer.as_numpy("drift"), EXPECTED.sample_drift, rtol=1e-4)
    given = [item.decode() if isinstance(item, bytes) else item for item in answer.as_numpy("class").tolist()]
    assert given == [PREDICTOR.labels[index] for index in EXPECTED.indices]
    response = answer.get_response()
    assert response["id"] == "mine"
    assert response["model_name"] == MODEL
    assert response["parameters"]["batch_size"] == 4
    assert len(response["parameters"]["batch_id"]) == 32


@pytest.mark.parametrize("binary", [True, False])
def test_floats_are_the_same_images(client, binary):
    floats = (IMAGES / 255).astype(np.float32).transpose(0, 3, 1, 2)
    answer = client.infer(MODEL, [tensor(np.ascontiguousarray(floats), "FP32", binary)])
    np.testing.assert_allclose(answer.as_numpy("probabilities"), EXPECTED.probabilities, atol=1e-5)


def test_files_and_other_sizes_go_through_the_same_preprocessing_as_elsewhere(client):
    large = np.random.default_rng(6).integers(0, 256, (2, 50, 40, 3), dtype=np.uint8)
    expected = PREDICTOR(np.stack([PREDICTOR.preprocess(image) for image in large])).probabilities
    files = np.array([png(image) for image in large], object)
    for sent in (tensor(large), tensor(files, "BYTES")):
        answer = client.infer(MODEL, [sent], model_version="1")
        np.testing.assert_allclose(answer.as_numpy("probabilities"), expected, atol=1e-5)


def test_only_what_is_requested_is_returned_and_classes_can_be_listed(client):
    outputs = [client_module.InferRequestedOutput("probabilities", class_count=3)]
    answer = client.infer(MODEL, [tensor(IMAGES)], outputs=outputs)
    assert [one["name"] for one in answer.get_response()["outputs"]] == ["probabilities"]
    listed = answer.as_numpy("probabilities")
    assert listed.shape == (4, 3)
    value, index, name = listed[0, 0].decode().split(":")
    assert int(index) == EXPECTED.indices[0]
    assert name == PREDICTOR.labels[int(index)]
    assert float(value) == pytest.approx(EXPECTED.probabilities[0].max(), abs=1e-5)


def test_the_example_of_the_documentation(url, capsys):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (example,) = re.findall(r"```\n(import numpy.*?)```", page, re.DOTALL)
    exec(example.replace("127.0.0.1:8000", url.removeprefix("http://").rstrip("/")), {})
    assert re.fullmatch(r"\[(\d) \1\]\n", capsys.readouterr().out)


def test_errors_reach_the_client_with_their_reason(client):
    wrong = client_module.InferInput("pictures", [1, 32, 32, 3], "UINT8")
    wrong.set_data_from_numpy(IMAGES[:1])
    outputs = [client_module.InferRequestedOutput("logits")]
    for words, status, message in (
        ((MODEL, [wrong]), "400", "one tensor named 'images'"),
        (("other", [tensor(IMAGES)]), "404", f"model must be '{MODEL}'"),
        ((MODEL, [tensor(IMAGES)], "7"), "404", "version 7"),
        ((MODEL, [tensor(IMAGES)], "", outputs), "400", "outputs must be among"),
        ((MODEL, [tensor(np.repeat(IMAGES, 3, 0))]), "413", "at most 8 images, got 12"),
        ((MODEL, [tensor(IMAGES[..., :2].copy())]), "400", "images must be UINT8"),
        ((MODEL, [tensor(np.array([b"no image"], object), "BYTES")]), "422", "image 0"),
        ((MODEL, [tensor(np.full((1, 3, 32, 32), 7, np.float32), "FP32")]), "422", "from 0 to 1"),
    ):
        with pytest.raises(client_module.InferenceServerException, match=message) as caught:
            client.infer(*words)
        assert caught.value.status() == status


def request(**changes):
    """A request in JSON with one grey image."""
    made = {"name": "images", "shape": [1, 2, 2, 3], "datatype": "UINT8", "data": [7] * 12} | changes
    return {"inputs": [made]}


def posted(body, headers=None, path=f"/v2/models/{MODEL}/infer", settings=SETTINGS):
    async def main():
        return await ask(app(settings, Here(PREDICTOR)), "POST", path, body, headers)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"data": [7] * 11}, 400, "must have 12 numbers"),
        ({"data": [[7] * 5, [7] * 7]}, 400, "lists of one length"),
        ({"data": ["7"] * 12}, 400, "whole numbers"),
        ({"data": [7.5] * 12}, 400, "whole numbers"),
        ({"data": [True] * 12}, 400, "whole numbers"),
        ({"data": [10**30] * 12}, 400, "in range"),
        ({"data": [256] * 12}, 422, "from 0 to 255"),
        ({"data": None}, 400, "must have data"),
        ({"shape": [0, 2, 2, 3], "data": []}, 400, "at least one image"),
        ({"shape": [-1, 2, 2, 3]}, 400, "images must be UINT8"),
        ({"shape": []}, 400, "images must be UINT8"),
        ({"shape": [1, 10**4000, 10**4000, 3]}, 400, "images must be UINT8"),
        ({"shape": [1, 0, 2, 3], "data": []}, 422, "image 0"),
        ({"shape": "x"}, 422, "inputs.0.shape"),
        ({"datatype": "FP64"}, 400, "got FP64"),
        ({"datatype": "BYTES", "shape": [1], "data": ["AAAA"]}, 422, "image 0"),
        ({"datatype": "BYTES", "shape": [2], "data": ["AAAA"]}, 400, "must have 2 elements, got 1"),
        ({"parameters": {"binary_data_size": 12}}, 400, "binary data, 0, got 12"),
    ],
)
def test_bad_tensors_are_refused(changes, status, message):
    reply = posted(json.dumps(request(**changes)).encode())
    assert reply.status_code == status
    assert list(reply.json()) == ["error"]
    assert message in reply.json()["error"]


@pytest.mark.parametrize(
    ("length", "binary", "message"),
    [
        ("9999999", b"x" * 12, "must be a number of bytes"),
        ("-1", b"x" * 12, "must be a number of bytes"),
        ("many", b"x" * 12, "must be a number of bytes"),
        ("1" * 5000, b"x" * 12, "must be a number of bytes"),
        ("3", b"x" * 12, "must be JSON"),
        (None, b"x" * 11, "binary data, 11, got 12"),
    ],
)
def test_bad_binary_bodies_are_refused(length, binary, message):
    head = json.dumps(request(data=None, parameters={"binary_data_size": 12})).encode()
    reply = posted(head + binary, {"Inference-Header-Content-Length": length or str(len(head))})
    assert reply.status_code == 400
    assert message in reply.json()["error"]


def test_an_output_cannot_be_asked_for_often():
    reply = posted(json.dumps(request() | {"outputs": [{"name": "probabilities"}] * 2}).encode())
    assert reply.status_code == 400
    assert reply.json()["error"] == "outputs must each be asked for once."


@pytest.mark.parametrize("body", [b"\x09\0\0\0ab", b"\xff\xff\xff\xff", b"\x01"])
def test_a_binary_tensor_of_bytes_that_ends_early_is_refused(body):
    inputs = {"shape": [1], "datatype": "BYTES", "data": None, "parameters": {"binary_data_size": len(body)}}
    head = json.dumps(request(**inputs)).encode()
    reply = posted(head + body, {"Inference-Header-Content-Length": str(len(head))})
    assert reply.status_code == 400
    assert "ends early" in reply.json()["error"]


def test_limits_and_the_key_hold_here_too():
    large = posted(b" " * 600_000)
    assert (large.status_code, list(large.json())) == (413, ["error"])
    assert posted(b"{}", {"Content-Encoding": "gzip"}).status_code == 415

    async def locked():
        closed = app(Settings(api_key="secret"), Here(PREDICTOR))
        paths = ("/v2", f"/v2/models/{MODEL}", "/v2/health/live", "/v2/health/ready")
        return [(await ask(closed, "GET", path)).status_code for path in paths]

    assert asyncio.run(locked()) == [401, 401, 200, 200]


@pytest.mark.parametrize("path", ["/v1/info", "/v2", f"/v2/models/{MODEL}", "/metrics"])
@pytest.mark.parametrize("prefix", ["/tta", "/v"])
def test_the_key_is_required_below_a_prefix_too(prefix, path):
    closed = app(Settings(api_key="secret"), Here(PREDICTOR))

    async def mounted(scope, receive, send):  # as the proxy of Ray Serve hands requests on
        await closed({**scope, "root_path": prefix}, receive, send)

    async def main(headers):
        return await ask(mounted, "GET", prefix + path, headers=headers)

    refused = asyncio.run(main({}))
    assert refused.status_code == 401
    assert isinstance(refused.json()["error"], str if path.startswith("/v2") else dict)
    assert asyncio.run(main({"X-API-Key": "secret"})).status_code == 200


def test_base64_is_a_file_in_json(url):
    import base64

    body = request(shape=[1], datatype="BYTES", data=[base64.b64encode(png(IMAGES[0])).decode()])
    reply = httpx.post(f"{url}v2/models/{MODEL}/infer", json=body).json()
    outputs = {one["name"]: one["data"] for one in reply["outputs"]}
    alone = PREDICTOR(IMAGES[:1])
    assert outputs["label"] == alone.indices.tolist()
    np.testing.assert_allclose(outputs["probabilities"], alone.probabilities[0], atol=1e-5)


def test_metrics_name_routes_and_not_models(url):
    httpx.get(f"{url}v2/models/whatever/ready")
    lines = httpx.get(f"{url}metrics").text.splitlines()
    counted = 'findtta_requests_total{route="/v2/models/{name}/ready",status="404"}'
    assert any(line.startswith(counted) for line in lines)
    assert not any("whatever" in line for line in lines)
