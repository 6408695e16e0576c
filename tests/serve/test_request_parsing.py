"""Whatever a client sends becomes images or an error of the 4xx kind; nothing else."""

import asyncio
import base64
import hashlib
import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("fastapi", reason="the 'serve' extra is not installed")
pytest.importorskip("python_multipart", reason="the 'serve' extra is not installed")

from starlette.datastructures import Headers

from findtta.images import ImageError, ImageLimits, Preprocessing
from findtta.serve import Settings
from findtta.serve.requests import FILE_TYPES, RequestError, read_images, read_npy, read_request, receive
from findtta.serve.settings import MEBIBYTE

SETTINGS = Settings(
    max_images=3, max_json_mb=20_000 / MEBIBYTE, max_image_mb=5_000 / MEBIBYTE, max_pixels=4_000, max_body_mb=1
)
LIMITS = SETTINGS.image_limits
PREPROCESSING = Preprocessing(size=(8, 8))
FORM = "multipart/form-data; boundary=b0undary"


def png(value: int = 7, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def part(data: bytes, kind: str | None = None, disposition: str = 'form-data; name="f"; filename="x"') -> bytes:
    head = f"--b0undary\r\nContent-Disposition: {disposition}\r\n" + (f"Content-Type: {kind}\r\n" if kind else "")
    return head.encode() + b"\r\n" + data + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b0undary--\r\n"


def as_json(*images: object) -> bytes:
    return json.dumps({"images": images}).encode()


def read(content_type: str | None, body: bytes, chunk: int = 100):
    """Return the images of a body that arrives in chunks, and their digests."""

    async def chunks():
        for start in range(0, len(body), chunk):
            yield body[start : start + chunk]

    headers = Headers(raw=[(b"content-type", content_type.encode())] if content_type else [])
    return read_request(asyncio.run(receive(headers, chunks(), SETTINGS.most_images)), SETTINGS, PREPROCESSING)


def values_of(content_type: str | None, body: bytes) -> list[int]:
    return [int(image[0, 0, 0]) for image in read(content_type, body)[0]]


def test_one_image_in_each_way():
    rows = np.full((8, 8, 3), 7, np.uint8)
    text = base64.b64encode(png()).decode()
    for kind, body in (
        ("image/png", png()),
        ("IMAGE/PNG; charset=binary", png()),
        ("image/jpeg", png()),  # its bytes decide what it is
        ("application/octet-stream", png()),
        ("application/octet-stream", npy(rows)),
        ("application/x-npy", npy(rows)),
        ("application/json", as_json(text)),
        ("application/json; charset=utf-8", as_json(f"data:image/png;base64,{text}")),
        ("application/json", as_json(rows.tolist())),
        (FORM, form(part(png(), "image/png"))),
        (FORM, form(part(png()))),
        ('multipart/form-data; boundary="b0undary"', form(part(npy(rows), "application/x-npy"))),
    ):
        assert values_of(kind, body) == [7], (kind, body)


def test_several_images_keep_their_order():
    grey = npy(np.full((8, 8), 2, np.uint8))
    assert values_of(FORM, form(part(png(1), "image/png"), part(grey, "application/x-npy"))) == [1, 2]
    texts = [base64.b64encode(png(value)).decode() for value in (3, 1, 2)]
    assert values_of("application/json", as_json(*texts)) == [3, 1, 2]


def test_digests_are_of_the_bytes_as_received():
    image = png()
    expected = hashlib.sha256(image).hexdigest()[:16]
    for kind, body in (
        ("image/png", image),
        ("application/json", as_json(base64.b64encode(image).decode())),
        (FORM, form(part(image, "image/png"))),
    ):
        assert read(kind, body)[1] == [expected]
    (digest,) = read("application/json", b'{"images": [ [[1, 0], [0.5, 1]] ]}')[1]
    assert digest == hashlib.sha256(b"[[1,0],[0.5,1]]").hexdigest()[:16]


@pytest.mark.parametrize(
    ("content_type", "body", "status", "code"),
    [
        (None, b"", 415, "unsupported_type"),
        ("text/html", b"<p>", 415, "unsupported_type"),
        ("image/svg+xml", b"<svg/>", 415, "unsupported_type"),
        ("application/json", b"{", 400, "bad_json"),
        ("application/json", b"[" * 15_000, 400, "bad_json"),
        ("application/json", b'{"images": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", 400, "bad_json"),
        ("application/json", b"\xff\xfe\x00", 400, "bad_json"),
        ("application/json", b"[]", 422, "bad_value"),
        ("application/json", b'{"images": "x"}', 422, "bad_value"),
        ("application/json", b'{"images": []}', 400, "no_images"),
        ("application/json", b'{"images": ["", "", "", ""]}', 413, "too_many_images"),
        ("application/json", b'{"images": ["%%"]}', 422, "bad_image"),
        ("application/json", b'{"images": [3]}', 422, "bad_image"),
        ("application/json", b'{"images": ["data:image/png,abc"]}', 422, "bad_image"),
        ("multipart/form-data", b"--x--", 400, "bad_multipart"),
        (FORM, b"no boundary", 400, "bad_multipart"),
        (FORM, part(png(), "image/png"), 400, "bad_multipart"),  # incomplete
        (FORM, part(png())[:-20], 400, "bad_multipart"),
        (FORM, form(part(b"text", disposition='form-data; name="f"')), 400, "bad_multipart"),
        (FORM, form(part(png(), disposition="form-data")), 400, "bad_multipart"),
        (FORM, b"--b0undary--\r\n", 400, "no_images"),
        (FORM, form(*[part(b"a")] * 4), 413, "too_many_images"),
        (FORM, form(part(b"a", "text/x")), 415, "unsupported_type"),
    ],
)
def test_bodies_that_are_refused(content_type, body, status, code):
    with pytest.raises(RequestError) as caught:
        read(content_type, body)
    assert (caught.value.status, caught.value.code) == (status, code)


def test_bad_images_are_named_by_their_index():
    with pytest.raises(RequestError, match=r"image 1: .*; image 2: ") as caught:
        read_images([png(), png()[:-22], [[float("nan")]]], LIMITS, PREPROCESSING)
    assert caught.value.status == 422
    assert [(fault["index"], fault["code"]) for fault in caught.value.images] == [(1, "broken"), (2, "not_finite")]


@pytest.mark.parametrize(
    "rows",
    [[], [[]], [[[]]], [1], [["a"]], [[None]], [[True]], [[[1, "x" * 10_000]]], [[{}]], [[[[1]]]], [[1], [1, 2]]],
)
def test_lists_that_are_not_an_image(rows):
    with pytest.raises(RequestError, match="image 0") as caught:
        read_images([rows], LIMITS, PREPROCESSING)
    assert caught.value.code == "bad_image"


def header(shape: object, dtype: str = "|u1", version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x93NUMPY", "not_an_array"),
        (header((8, 8, 3)), "broken"),
        (header((10**9, 10**9, 3)), "broken"),  # would be a million terabytes
        (header((10**30, 8, 3)) + bytes(8), "broken"),
        (header((-1, 8, 3)) + bytes(24), "not_an_array"),
        (header((1,) * 70) + bytes(1), "broken"),
        (header((2, 2, 3), "|O") + bytes(96), "broken"),
        (header((2, 2, 3), "|S1") + bytes(12), "not_an_array"),
        (header((2, 2, 3), "<f4") + np.full(12, np.nan, "<f4").tobytes(), "not_finite"),
        (header((2, 2, 3), "<i2") + np.full(12, 300, "<i2").tobytes(), "out_of_range"),
        (header((2, 2, 3), version=b"\x09\x00"), "not_an_array"),
        (header((2, 2, 4)) + bytes(16), "wrong_shape"),
        (bytes(6_000), "too_many_bytes"),
        (npy(np.zeros((4_100, 1), np.uint8)), "too_many_pixels"),
    ],
)
def test_npy_files_that_are_refused(data, code):
    with pytest.raises(ImageError) as caught:
        read_npy(data, LIMITS)
    assert caught.value.code == code


@given(shape=st.tuples(st.integers(1, 9), st.integers(1, 9)), by_columns=st.booleans(), seed=st.integers(0, 99))
def test_an_npy_file_is_read_as_it_was_written(shape, by_columns, seed):
    array = np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
    data = npy(np.asfortranarray(array) if by_columns else array)
    np.testing.assert_array_equal(read_npy(data, LIMITS), array)


def test_npy_files_are_read_alike_by_many_threads():
    # numpy's own reading of headers is not safe in threads of Python 3.11.
    data = npy(np.zeros((8, 8, 3), np.float32))
    with ThreadPoolExecutor(8) as pool:
        shapes = list(pool.map(lambda _: read_npy(data, ImageLimits()).shape, range(400)))
    assert shapes == [(8, 8, 3)] * 400


def attempt(content_type: str | None, body: bytes) -> None:
    """Images of the right size, or a refusal that is the client's fault."""
    refusal = None
    try:
        images, digests = read(content_type, body, chunk=37)
    except RequestError as error:
        refusal = error
    if refusal is None:
        assert 1 <= len(images) == len(digests) <= SETTINGS.most_images
        assert all(image.shape == (8, 8, 3) and image.dtype == np.uint8 for image in images)
    else:
        assert 400 <= refusal.status < 500
        assert refusal.code
        assert str(refusal)


kinds = st.sampled_from(
    [*FILE_TYPES, "application/json", FORM, "multipart/form-data; boundary=", "multipart/form-data"]
)


@given(content_type=st.none() | st.text(max_size=60) | kinds, body=st.binary(max_size=400))
def test_arbitrary_bytes(content_type, body):
    attempt(content_type, body)


@given(
    data=st.sampled_from([png(), npy(np.zeros((4, 4, 3), np.uint8)), form(part(png(), "image/png"), part(png()))]),
    content_type=kinds,
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 400),
)
def test_damaged_bodies(data, content_type, flips, cut):
    damaged = bytearray(data[: max(1, len(data) - cut)])
    for place, value in flips:
        damaged[place % len(damaged)] = value
    attempt(content_type, bytes(damaged))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@given(images=st.lists(anything, max_size=4) | anything)
def test_arbitrary_json(images):
    attempt("application/json", json.dumps({"images": images}).encode())
