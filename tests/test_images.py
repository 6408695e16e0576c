import io
import pickle
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from findtta import images
from findtta.errors import OptionError
from findtta.images import (
    ImageError,
    ImageLimits,
    Preprocessing,
    image_size,
    read_array,
    read_image,
    to_input,
)
from findtta.models.zoo import import_timm

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) * 4
ROTATED = Image.Exif()
ROTATED[274] = 6  # a camera held upright: the image is to be turned by 90 degrees, clockwise


def encoded(image: Image.Image | np.ndarray, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, format, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is so large."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
    )


def code_of(data: bytes, limits: ImageLimits | None = None) -> str:
    with pytest.raises(ImageError, match=r"^image: ") as caught:
        read_image(data, limits)
    return caught.value.code


@pytest.mark.parametrize(
    ("format", "options"), [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})]
)
def test_formats_without_loss_give_the_pixels_that_were_stored(format, options):
    decoded = read_image(encoded(PIXELS, format, **options))
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, PIXELS)


def test_jpeg_is_near_and_cmyk_becomes_rgb():
    grey = np.full((16, 16, 3), 100, np.uint8)
    assert np.abs(read_image(encoded(grey, "JPEG", quality=95)).astype(int) - 100).max() <= 3
    cmyk = read_image(encoded(Image.new("CMYK", (3, 2), (0, 255, 255, 0)), "JPEG", quality=100))
    assert cmyk.shape == (2, 3, 3)
    assert np.abs(cmyk.astype(int) - [255, 0, 0]).max() <= 3


def test_sixteen_bits_and_floats_become_eight_by_their_scale():
    deep = np.array([[0, 257, 32768, 65535]], np.uint16)
    assert read_image(encoded(deep))[0, :, 0].tolist() == [0, 1, 128, 255]
    for top in (1, 255, 65535):
        floats = np.array([[0, 0.5 * top, top]], np.float32)
        assert read_image(encoded(floats, "TIFF"))[0, :, 1].tolist() == [0, 128, 255]
    assert code_of(encoded(np.array([[np.nan]], np.float32), "TIFF")) == "not_finite"


def test_grey_and_black_and_white_become_rgb():
    assert read_image(encoded(np.array([[7, 250]], np.uint8))).tolist() == [[[7] * 3, [250] * 3]]
    assert read_image(encoded(np.array([[True, False]]))).tolist() == [[[255] * 3, [0] * 3]]


def test_what_is_transparent_is_laid_on_white():
    colours = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 0, 0, 51]]], np.uint8)
    assert read_image(encoded(colours)).tolist() == [[[255] * 3, [10, 20, 30], [204] * 3]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((1, 0), 1)
    assert read_image(encoded(palette, transparency=0)).tolist() == [[[255] * 3, [0, 255, 0]]]
    assert read_image(encoded(palette, transparency=b"\xff\x00")).tolist() == [[[255, 0, 0], [255] * 3]]


def test_of_an_animation_the_first_frame_is_taken():
    red, green = (Image.new("RGB", (3, 2), colour) for colour in ("red", "lime"))
    for format in ("GIF", "WEBP"):
        data = encoded(red, format, save_all=True, append_images=[green], lossless=True)
        assert (read_image(data) == [255, 0, 0]).all()


def test_rotation_notes_of_cameras_are_followed():
    assert np.array_equal(read_image(encoded(PIXELS, exif=ROTATED)), np.rot90(PIXELS, -1))


def test_a_broken_note_about_rotation_costs_nothing():
    data = encoded(PIXELS, "WEBP", lossless=True, exif=b"\0\0\0")
    assert np.array_equal(read_image(data), PIXELS)


def test_what_is_no_image_or_broken_is_refused_by_name():
    assert code_of(b"") == "empty"
    assert code_of(b"hello") == "not_an_image"
    assert code_of(encoded(PIXELS, "PPM")) == "not_an_image"  # Pillow could, but nobody asked for it
    for format in ("JPEG", "PNG", "WEBP"):
        whole = encoded(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8), format)
        assert code_of(whole[: len(whole) // 2]) in ("broken", "not_an_image")


def test_what_is_too_large_is_refused_before_it_is_unpacked():
    data = encoded(PIXELS)
    assert code_of(data, ImageLimits(max_bytes=len(data) - 1)) == "too_many_bytes"
    assert code_of(data, ImageLimits(max_pixels=19)) == "too_many_pixels"
    assert np.array_equal(read_image(data, ImageLimits(len(data), 20)), PIXELS)
    assert code_of(claiming(10_000, 9_000)) == "too_many_pixels"
    assert code_of(claiming(20_000, 8_000)) == "too_many_pixels"  # where Pillow warns
    assert code_of(claiming(100_000, 100_000)) == "too_many_pixels"  # where Pillow raises
    with pytest.raises(OptionError, match="max_pixels must be a whole number of at least 1, got 0"):
        ImageLimits(max_pixels=0)


def outcome(data: bytes) -> str:
    """Say what became of bytes that may be anything; errors of another kind go through."""
    try:
        decoded = read_image(data, ImageLimits(max_pixels=10_000))
    except ImageError as error:
        return "refused" if error.code and str(error).startswith("image: ") else "unclear"
    return "image" if decoded.dtype == np.uint8 and decoded.shape[2:] == (3,) else "odd"


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"II*\0"]))
def test_arbitrary_bytes_raise_image_errors_only(data, start):
    assert outcome(start + data) in ("image", "refused")


@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
)
def test_damaged_images_raise_image_errors_only(format, changes):
    data = bytearray(encoded(PIXELS, format))
    for place, value in changes:
        data[place % len(data)] = value
    assert outcome(bytes(data)) in ("image", "refused")


def test_threads_leave_the_filters_of_warnings_as_they_were():
    warns = claiming(10_000, 9_000)  # between the two limits of Pillow
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        codes: list[str] = []
        threads = [
            threading.Thread(target=lambda: codes.extend(code_of(warns) for _ in range(30))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == ["too_many_pixels"] * 120
        assert warnings.filters == before


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(ImageError("empty", "image: nothing.")))
    assert (error.code, str(error)) == ("empty", "image: nothing.")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0, 255]], [[[0] * 3, [255] * 3]]),
        ([[[1, 2, 3]]], [[[1, 2, 3]]]),
        (np.array([[0, 0.5, 1]], np.float32), [[[0] * 3, [128] * 3, [255] * 3]]),
        (np.array([[200]], np.uint64), [[[200] * 3]]),
        ([[0.0, 1]], [[[0] * 3, [255] * 3]]),
    ],
)
def test_arrays_become_images(values, expected):
    read = read_array(values)
    assert read.dtype == np.uint8
    assert read.tolist() == expected


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([[1, 2], [3]], "not_an_array"),
        ([["a"]], "not_an_array"),
        ([[None]], "not_an_array"),
        ([[True]], "not_an_array"),
        ([[1j]], "not_an_array"),
        ([[10**30]], "not_an_array"),
        ({"a": 1}, "not_an_array"),
        (np.ones((2, 2), np.longdouble), "not_an_array"),
        (5, "wrong_shape"),
        ([], "wrong_shape"),
        (np.zeros((2, 2, 4), np.uint8), "wrong_shape"),
        (np.zeros((0, 3, 3), np.uint8), "wrong_shape"),
        ([[float("nan")]], "not_finite"),
        ([[float("inf")]], "not_finite"),
        ([[-1]], "out_of_range"),
        ([[256]], "out_of_range"),
        ([[1.5]], "out_of_range"),
        (np.zeros((11, 10), np.uint8), "too_many_pixels"),
    ],
)
def test_arrays_that_are_no_images_are_refused_by_name(values, code):
    with pytest.raises(ImageError, match=r"^image: ") as caught:
        read_array(values, ImageLimits(max_pixels=100))
    assert caught.value.code == code


@pytest.fixture(scope="module")
def torchvision_transforms():
    """torchvision's transforms of PIL images: the oracle of all preprocessing."""
    try:
        import_timm()
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")
    return v2


SIZES = [(50, 70), (71, 53), (33, 200), (20, 13), (16, 16), (31, 97), (300, 224), (7, 90)]  # height, width


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("side", "crop"), [(32, 0.875), (24, 1.0), (17, 0.7)])
def test_preprocessing_is_that_of_torchvision(torchvision_transforms, interpolation, side, crop):
    v2 = torchvision_transforms
    preprocessing = Preprocessing.square(side, crop, interpolation)
    reference = v2.Compose(
        [
            v2.Resize(preprocessing.resize, getattr(v2.InterpolationMode, interpolation.upper())),
            v2.CenterCrop(side),
        ]
    )
    random = np.random.default_rng(0)
    for height, width in SIZES:
        image = random.integers(0, 256, (height, width, 3), np.uint8)
        expected = np.asarray(reference(Image.fromarray(image))).astype(int)
        assert np.array_equal(preprocessing(image), expected), (height, width)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_preprocessing_of_what_is_too_long_to_be_resized_whole(monkeypatch, interpolation):
    preprocessing = Preprocessing.square(17, 0.7, interpolation)
    for height, width in SIZES:
        rows, columns = np.indices((height, width))
        image = np.stack([rows * 255 // height, columns * 255 // width, np.full_like(rows, 7)], -1).astype(
            np.uint8
        )
        expected = preprocessing(image).astype(int)
        with monkeypatch.context() as patched:
            patched.setattr(images, "_MOST_RESIZED", 0)
            assert np.abs(preprocessing(image) - expected).max() <= 1, (height, width)


def test_a_size_alone_covers_the_result_and_crops_the_centre():
    # Left third red, middle third green, right third blue: only green remains.
    strip = np.zeros((30, 90, 3), np.uint8)
    for third in range(3):
        strip[:, 30 * third : 30 * (third + 1), third] = 255
    assert (Preprocessing(size=(30, 30))(strip) == [0, 255, 0]).all()
    assert (Preprocessing(size=(15, 15))(strip)[:, 2:-2] == [0, 255, 0]).all()
    # The shorter side becomes 60, of which the middle 30 remain: from the middle sixth of the strip.
    assert (Preprocessing(size=(30, 30), resize=60)(strip) == [0, 255, 0]).all()
    assert Preprocessing(size=(10, 40))(strip).shape == (10, 40, 3)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.floats(0.05, 1), st.integers(0, 255))
def test_preprocessing_keeps_images_of_one_colour(height, width, size, crop, value):
    prepared = Preprocessing.square(size, crop)(np.full((height, width, 3), value, np.uint8))
    assert prepared.shape == (size, size, 3)
    assert (prepared == value).all()


@pytest.mark.parametrize("shape", [(1, 4_000_000), (4_000_000, 1)])
def test_long_and_thin_images_are_never_resized_as_a_whole(monkeypatch, shape):
    image = np.zeros((*shape, 3), np.uint8)
    middle = tuple(slice(max(0, side // 2 - 100), side // 2 + 100) for side in shape)
    image[middle] = (10, 20, 30)
    sizes = []
    resize = Image.Image.resize

    def recorded(self, size, *arguments, **options):
        sizes.append(size)
        return resize(self, size, *arguments, **options)

    monkeypatch.setattr(Image.Image, "resize", recorded)
    assert (Preprocessing.square(32, 0.875)(image) == [10, 20, 30]).all()
    assert sizes == [(32, 32)]


def test_images_of_the_right_size_are_left_alone():
    pixels = np.random.default_rng(0).integers(0, 255, (9, 9, 3), np.uint8)
    assert Preprocessing.square(9, 0.5)(pixels) is pixels


@pytest.mark.parametrize(("size", "crop"), [(0, 1.0), (8, 0.0), (8, 1.1), (8, float("nan")), (True, 1.0)])
def test_squares_that_make_no_sense(size, crop):
    with pytest.raises(OptionError, match="must be"):
        Preprocessing.square(size, crop)


def test_options_of_a_dataset():
    assert Preprocessing.from_options(None, None) is None
    assert Preprocessing.from_options(32, 40) == Preprocessing(size=(32, 32), resize=40)
    assert Preprocessing.from_options([32, 48], None) == Preprocessing(size=(32, 48))
    for size, resize in ((0, None), ((1, 2, 3), None), (9, 8), (None, 8), (2.5, None), ("32", None)):
        with pytest.raises(OptionError, match=r"image_size|resize"):
            Preprocessing.from_options(size, resize)
    with pytest.raises(OptionError, match="interpolation must be 'bilinear' or 'bicubic', got 'nearest'"):
        Preprocessing(size=(8, 8), interpolation="nearest")


def test_files_are_read_and_prepared_and_named_in_errors(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(encoded(PIXELS, exif=ROTATED))
    assert image_size(path) == (5, 4)
    assert np.array_equal(read_image(path), np.rot90(PIXELS, -1))
    assert read_image(path, preprocessing=Preprocessing(size=(3, 3))).shape == (3, 3, 3)
    assert np.array_equal(read_image(path.read_bytes()), read_image(path))
    for limits in (ImageLimits(max_bytes=10), ImageLimits(max_pixels=19)):
        with pytest.raises(ImageError, match=r"image\.png: .* at most") as caught:
            read_image(path, limits=limits)
        assert caught.value.code.startswith("too_many_")
    with pytest.raises(ImageError, match=r"missing\.png: cannot be read") as caught:
        read_image(tmp_path / "missing.png")
    assert caught.value.code == "unreadable"
    with pytest.raises(ImageError, match=r"^row 3: it is not a readable image"):
        read_image(b"no", name="row 3")
    with pytest.raises(ImageError, match=r"^row 3: it is not a readable image"):
        image_size(b"no", name="row 3")


class Endless(io.RawIOBase):
    """A file that grows faster than it can be read."""

    def __init__(self):
        self.given = 0

    def read(self, size=-1):
        assert size >= 0, "it has no end"
        self.given += size
        return bytes(size)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path, endless = tmp_path / "image.png", Endless()
    path.write_bytes(encoded(PIXELS))
    size = path.stat().st_size
    monkeypatch.setattr(type(path), "open", lambda self, mode: endless)
    with pytest.raises(ImageError, match=r"image\.png: .* grew") as caught:
        read_image(path, ImageLimits(max_bytes=size))
    assert caught.value.code == "too_many_bytes"
    assert endless.given == size + 1


def test_sizes_are_upright_and_survive_broken_exif_data():
    assert image_size(encoded(PIXELS)) == (4, 5)
    assert image_size(encoded(PIXELS, "JPEG", exif=ROTATED)) == (5, 4)
    assert image_size(encoded(PIXELS, "WEBP", lossless=True, exif=b"\0\0\0")) == (4, 5)


def test_inputs_are_fractions_in_channels_last_order():
    pixels = np.stack([PIXELS, PIXELS[::-1]])
    pixels.flags.writeable = False
    batch = to_input(pixels)
    assert batch.shape == (2, 3, 4, 5)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.mul(255).round().permute(0, 2, 3, 1), torch.tensor(pixels).float())
