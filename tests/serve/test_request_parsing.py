"""Whatever a client sends becomes images or an error of the 4xx kind; nothing else."""

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

from findtta.images import ImageError, ImageLimits, Preprocessing
from findtta.serve.requests import IMAGE_TYPES, Item, RequestError, RequestLimits, parse, read_npy, read_pictures

LIMITS = RequestLimits(ImageLimits(max_bytes=5_000, max_pixels=4_000), max_images=3, max_json_bytes=20_000)
PREPARE = Preprocessing(8)


def png(value: int = 7, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def multipart(*parts: tuple[str, bytes], boundary: str = "b0undary") -> bytes:
    lines = b""
    for kind, data in parts:
        lines += f'--{boundary}\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n'.encode()
        lines += f"Content-Type: {kind}\r\n\r\n".encode() + data + b"\r\n"
    return lines + f"--{boundary}--\r\n".encode()


def values_of(content_type: str | None, body: bytes) -> list[int]:
    return [
        int(pixels[0, 0, 0]) for pixels in read_pictures(parse(content_type, body, LIMITS), LIMITS.image, PREPARE)
    ]


def test_one_image_in_each_way():
    rows = np.full((8, 8, 3), 7, np.uint8)
    text = base64.b64encode(png()).decode()
    for kind, body in {
        "image/png": png(),
        "IMAGE/PNG; charset=binary": png(),
        "image/jpeg": png(),  # what it is shows in the bytes
        "application/octet-stream": png(),
        "application/x-npy": npy(rows),
        "application/json": json.dumps({"images": [text]}).encode(),
        "application/json; charset=utf-8": json.dumps({"images": [f"data:image/png;base64,{text}"]}).encode(),
        "multipart/form-data; boundary=b0undary": multipart(("image/png", png())),
        'multipart/form-data; boundary="b0undary"': multipart(("application/x-npy", npy(rows))),
    }.items():
        assert values_of(kind, body) == [7], kind
    assert values_of("application/octet-stream", npy(rows)) == [7]
    assert values_of("application/json", json.dumps({"images": [rows.tolist()]}).encode()) == [7]


def test_several_images_keep_their_order():
    parts = multipart(("image/png", png(1)), ("application/x-npy", npy(np.full((8, 8), 2, np.uint8))))
    assert values_of("multipart/form-data; boundary=b0undary", parts) == [1, 2]
    texts = [base64.b64encode(png(value)).decode() for value in (3, 1, 2)]
    assert values_of("application/json", json.dumps({"images": texts}).encode()) == [3, 1, 2]


def test_digests_are_of_the_bytes_as_received():
    picture = png()
    expected = hashlib.sha256(picture).hexdigest()[:16]
    text = base64.b64encode(picture).decode()
    for kind, body in (
        ("image/png", picture),
        ("application/json", json.dumps({"images": [text]}).encode()),
        ("multipart/form-data; boundary=b0undary", multipart(("image/png", picture))),
    ):
        assert [item.digest for item in parse(kind, body, LIMITS)] == [expected]
    (item,) = parse("application/json", b'{"images": [ [[1, 2], [0.5, 4]] ]}', LIMITS)
    assert item.digest == hashlib.sha256(b"[[1,2],[0.5,4]]").hexdigest()[:16]


@pytest.mark.parametrize(
    ("content_type", "body", "status", "code"),
    [
        (None, b"", 415, "unsupported_type"),
        ("text/html", b"<p>", 415, "unsupported_type"),
        ("image/svg+xml", b"<svg/>", 415, "unsupported_type"),
        ("application/json", b"{", 400, "bad_json"),
        ("application/json", b"[" * 100_000, 413, "body_too_large"),
        ("application/json", b"[" * 15_000, 400, "bad_json"),
        ("application/json", b'{"images": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", 400, "bad_json"),
        ("application/json", b"[]", 400, "bad_json"),
        ("application/json", b'{"images": "x"}', 400, "bad_json"),
        ("application/json", b'{"images": []}', 400, "no_images"),
        ("application/json", b'{"images": ["", "", "", ""]}', 413, "too_many_images"),
        ("application/json", b'{"images": ["%%"]}', 422, "bad_image"),
        ("application/json", b'{"images": [3]}', 422, "bad_image"),
        ("application/json", b'{"images": ["data:image/png,abc"]}', 422, "bad_image"),
        ("application/json", b"\xff\xfe\x00", 400, "bad_json"),
        ("application/json", b'{"images": [[[' + b"1" * 5_000 + b"]]]}", 400, "bad_json"),
        ("multipart/form-data", b"--x--", 400, "bad_multipart"),
        ("multipart/form-data; boundary=x", b"no mark", 400, "bad_multipart"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nabc", 400, "bad_multipart"),
        ("multipart/form-data; boundary=x", b"--x\r\nabc\r\n--x--", 400, "bad_multipart"),
        ("multipart/form-data; boundary=x", b"--x--\r\n", 400, "no_images"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\na\r\n" * 4 + b"--x--", 413, "too_many_images"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\na\r\n" * 400 + b"--x--", 413, "too_many_images"),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\nContent-Type: text/x\r\n\r\n\r\n--x--",
            415,
            "unsupported_type",
        ),
    ],
)
def test_bodies_that_are_refused(content_type, body, status, code):
    with pytest.raises(RequestError) as caught:
        parse(content_type, body, LIMITS)
    assert (caught.value.status, caught.value.code) == (status, code)


def test_bad_images_are_named_by_their_place():
    items = [Item(png()), Item(png()[:-22]), Item([[float("nan")]])]
    with pytest.raises(RequestError, match=r"image 1 of 3 .*\(and 1 more\)") as caught:
        read_pictures(items, LIMITS.image, PREPARE)
    assert caught.value.status == 422
    assert [(fault["index"], fault["code"]) for fault in caught.value.images] == [(1, "broken"), (2, "not_finite")]


@pytest.mark.parametrize(
    "rows",
    [[], [[]], [[[]]], [1], [["a"]], [[None]], [[True]], [[[1, "x" * 10_000]]], [[{}]], [[[[1]]]], [[1], [1, 2]]],
)
def test_lists_that_are_no_picture(rows):
    with pytest.raises(ImageError):
        Item(rows).pixels(LIMITS.image)


def header(shape: object, dtype: str = "|u1", version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not_an_array"),
        (b"\x93NUMPY", "not_an_array"),
        (header((8, 8, 3)), "broken"),
        (header((10**9, 10**9, 3)), "broken"),  # would be a million terabytes
        (header((-1, 8, 3)) + bytes(8), "wrong_shape"),
        (header((1,) * 70) + bytes(1), "wrong_shape"),
        (header((0, 8, 3)), "wrong_shape"),
        (header((-1, -1, 3)) + bytes(3), "wrong_shape"),
        (header((2, 2, 3), "|O"), "not_an_array"),
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
    limits = ImageLimits(LIMITS.image.max_bytes, 4_000)
    with pytest.raises(ImageError) as caught:
        read_npy(data, limits)
    assert caught.value.code == code


@given(shape=st.tuples(st.integers(1, 9), st.integers(1, 9)), by_columns=st.booleans(), seed=st.integers(0, 99))
def test_an_npy_file_is_read_as_it_was_written(shape, by_columns, seed):
    array = np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
    data = npy(np.asfortranarray(array) if by_columns else array)
    np.testing.assert_array_equal(read_npy(data, LIMITS.image), array)


def attempt(content_type: str | None, body: bytes) -> None:
    """Pictures of the right size, or a refusal that is the client's fault."""
    refusal = None
    try:
        pictures = read_pictures(parse(content_type, body, LIMITS), LIMITS.image, PREPARE)
    except RequestError as error:
        refusal = error
    if refusal is None:
        assert 1 <= len(pictures) <= LIMITS.max_images
        assert all(picture.shape == (8, 8, 3) and picture.dtype == np.uint8 for picture in pictures)
    else:
        assert 400 <= refusal.status < 500
        assert refusal.code
        assert str(refusal)


kinds = st.sampled_from(
    [
        *IMAGE_TYPES,
        "application/octet-stream",
        "application/x-npy",
        "application/json",
        "multipart/form-data; boundary=b0undary",
        "multipart/form-data; boundary=",
        "multipart/form-data",
    ]
)


@given(content_type=st.none() | st.text(max_size=60) | kinds, body=st.binary(max_size=400))
def test_arbitrary_bytes(content_type, body):
    attempt(content_type, body)


@given(
    data=st.sampled_from([png(), npy(np.zeros((4, 4, 3), np.uint8)), multipart(("image/png", png()))]),
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


def test_npy_files_are_read_alike_by_many_threads():
    # numpy's own reading of headers is not safe in threads of Python 3.11.
    file = io.BytesIO()
    np.save(file, np.zeros((8, 8, 3), np.float32))
    with ThreadPoolExecutor(8) as pool:
        shapes = list(pool.map(lambda _: read_npy(file.getvalue(), ImageLimits()).shape, range(400)))
    assert shapes == [(8, 8, 3)] * 400
