"""Good images are unlike each other and still images; poisoned inputs are what they claim to be."""

import base64
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from findtta.data.shapes import draw
from findtta.errors import InputError, OptionError
from findtta.loadtest.payloads import ANSWERED, REJECTED, Mixture, digest, good
from findtta.loadtest.pictures import Picture, Pictures, encode
from findtta.loadtest.poison import poisons

PIXELS = draw(np.arange(1))[0]
FORMATS = ("png", "jpeg", "webp", "npy")
POISONS = {payload.kind: payload for payload in poisons(oversize_mb=2)}


def pixels(data: bytes, format: str):
    if format == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    with Image.open(io.BytesIO(data)) as image:
        assert image.format.lower() == format
        return np.array(image)


@pytest.mark.parametrize("format", FORMATS)
@given(number=st.integers(0, 2**64 - 1))
def test_stamp_changes_bytes_but_not_pixels(format, number):
    plain = Picture(format, encode(PIXELS, format))
    stamped = plain.stamped(number)
    before, after = pixels(plain.data, format), pixels(stamped.data, format)
    assert before.shape == after.shape
    changed = (before != after).any(axis=-1)
    assert not changed[:, :-3].any()  # an array has room for a number only in its last three pixels
    assert format == "npy" or not changed.any()
    assert stamped != plain.stamped((number + 1) % 2**64)


def test_drawn_pictures_are_all_different_and_all_formats():
    pictures = Pictures.open("shapes")
    sent = [pictures.numbered(number) for number in range(600)]
    assert len({picture.data for picture in sent}) == 600
    assert {picture.format for picture in sent} == set(FORMATS)
    assert all(pixels(picture.data, picture.format).shape == (32, 32, 3) for picture in sent)


def test_folders_are_searched_and_unknown_formats_become_png(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "deep/b.jpg", "deep/c.bmp"):
        Image.fromarray(PIXELS).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    pictures = Pictures.open(str(tmp_path))
    assert [picture.format for picture in pictures.pool] == ["png", "jpeg", "png"]
    assert np.array_equal(pixels(pictures.pool[2].data, "png"), PIXELS)
    assert len({pictures.numbered(number).data for number in range(30)}) == 30


def test_folders_without_good_images_are_refused(tmp_path):
    with pytest.raises(OptionError, match="images must be 'shapes' or a folder"):
        Pictures.open(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="must hold images"):
        Pictures.open(str(tmp_path))
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"broken\.png must be an image"):
        Pictures.open(str(tmp_path))


def test_one_picture_is_sent_as_it_is():
    picture = Picture("png", encode(PIXELS, "png"))
    payload = good([picture])
    assert (payload.body, payload.content_type) == (picture.data, "image/png")
    assert payload.digests == (digest(picture.data),)


def test_several_pictures_go_as_form_and_as_json():
    pictures = [Pictures.open("shapes").numbered(number) for number in range(5)]
    form, document = good(pictures, 0), good(pictures, 1)
    mark = b"--" + form.content_type.partition("boundary=")[2].encode()
    empty, *parts, end = form.body.split(mark)
    assert (empty, end) == (b"", b"--\r\n")
    heads, bodies = zip(*(part.split(b"\r\n\r\n", 1) for part in parts), strict=True)
    assert list(bodies) == [picture.data + b"\r\n" for picture in pictures]
    assert all(picture.media_type.encode() in head for picture, head in zip(pictures, heads, strict=True))
    sent = [base64.b64decode(text) for text in json.loads(document.body)["images"]]
    assert sent == [picture.data for picture in pictures]
    assert form.digests == document.digests == tuple(digest(picture.data) for picture in pictures)


def test_digest_is_the_beginning_of_sha256():
    assert digest(b"abc") == "ba7816bf8f01cfea"


@pytest.mark.parametrize("bad", [0.0, 0.3, 1.0])
def test_mixture_has_its_share_of_poison_in_turn(bad):
    mixture = Mixture(Pictures.open("shapes"), tuple(POISONS.values()), bad, 1, seed=0)
    choices = mixture.choices(2000)
    poisoned = [choice for choice in choices if choice >= 0]
    assert len(poisoned) / 2000 == pytest.approx(bad, abs=0.03)
    assert poisoned == [position % len(POISONS) for position in range(len(poisoned))]
    assert choices == mixture.choices(2000)
    kinds = [mixture.payload(number, choice).poisoned for number, choice in enumerate(choices[:50])]
    assert kinds == [choice >= 0 for choice in choices[:50]]


def open_image(kind: str) -> Image.Image:
    return Image.open(io.BytesIO(POISONS[kind].body))


def test_every_poison_knows_its_right_answer():
    accepted = {"one-pixel", "animated-gif", "animated-webp", "animated-png", "cmyk-jpeg", "16-bit-png"}
    assert all(payload.poisoned for payload in POISONS.values())
    for kind, payload in POISONS.items():
        assert payload.accepts == (ANSWERED if kind in accepted else REJECTED)
        assert payload.digests == ((digest(payload.body),) if kind in accepted else ())
        assert payload.may_break == (kind == "oversize")


def test_truncated_jpeg_has_a_header_and_no_end():
    with open_image("truncated-jpeg") as image:
        assert (image.format, image.size) == ("JPEG", (32, 32))
        with pytest.raises(OSError, match="truncated"):
            image.load()


def test_bomb_would_fill_the_memory():
    payload = POISONS["bomb-png"]
    assert len(payload.body) < 10_000
    with pytest.raises(Image.DecompressionBombError):
        open_image("bomb-png")
    width, height = int.from_bytes(payload.body[16:20], "big"), int.from_bytes(payload.body[20:24], "big")
    assert width * height * 3 > 7e9


def test_arrays_are_poisoned_as_they_say():
    holed = np.load(io.BytesIO(POISONS["nan-npy"].body))
    assert (holed.shape, holed.dtype) == ((32, 32, 3), np.float32)
    assert np.isnan(holed).sum() == 1
    shape, _, dtype = _header(POISONS["huge-npy"].body)
    assert shape == (10_000, 1_000_000_000, 3)
    assert dtype == np.uint8
    assert _header(POISONS["pickle-npy"].body)[2].hasobject
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(io.BytesIO(POISONS["pickle-npy"].body), allow_pickle=False)


def _header(data: bytes):
    file = io.BytesIO(data)
    assert np.lib.format.read_magic(file) == (1, 0)
    return np.lib.format.read_array_header_1_0(file)


def test_one_pixel_is_one_pixel():
    with open_image("one-pixel") as image:
        assert image.size == (1, 1)


@pytest.mark.parametrize("format", ["gif", "webp", "png"])
def test_animations_have_frames(format):
    with open_image(f"animated-{format}") as image:
        assert image.format == format.upper()
        assert image.n_frames == 3
        assert POISONS[f"animated-{format}"].content_type == f"image/{format}"


def test_cmyk_and_sixteen_bits():
    with open_image("cmyk-jpeg") as image:
        assert (image.format, image.mode) == ("JPEG", "CMYK")
    assert POISONS["16-bit-png"].body[24] == 16  # the depth in a PNG's header
    with open_image("16-bit-png") as image:
        assert np.asarray(image).max() > 255


def test_bytes_that_are_no_images():
    assert POISONS["empty"].body == b""
    with pytest.raises(Image.UnidentifiedImageError):
        open_image("garbage")
    assert POISONS["wrong-type"].content_type == "text/plain"
    with open_image("wrong-type") as image:
        assert image.format == "PNG"
    with pytest.raises(RecursionError):
        json.loads(POISONS["deep-json"].body)
    assert len(POISONS["oversize"].body) == 2_000_000
