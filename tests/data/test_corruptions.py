"""What holds for every corruption: bits that depend on the image alone, limits, errors, constants."""

import numpy as np
import pytest

from findtta.data import corruptions, randomness
from findtta.data.corruptions import CORRUPTIONS, TABLES, corrupt
from findtta.data.corruptions.blur import zooms
from findtta.data.dataset import EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, SEVERITIES
from findtta.errors import InputError, OptionError, UnknownNameError

NAMES = (*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS)
DETERMINISTIC = (
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression",
    "gaussian_blur", "saturate",
)  # fmt: skip

#: Severities differ in their constants alone: the extremes, and what is between them at night.
WORST_FIRST = [
    5,
    pytest.param(1, marks=pytest.mark.slow),
    *(pytest.param(severity, marks=pytest.mark.nightly) for severity in SEVERITIES[1:-1]),
]


def pictures(count, height=32, width=32):
    """Images with edges, slopes and flat parts, from black to white."""
    keys = randomness.sample_keys(0, np.arange(count), "pictures")
    coarse = randomness.integers(keys, 0, 256, height // 8 + 1, width // 8 + 1, 3)
    blocks = coarse.repeat(8, axis=1).repeat(8, axis=2)[:, :height, :width]
    slope = np.linspace(0, 60, width, dtype=np.int64)[:, None]
    return np.clip(blocks + slope * (np.arange(count) % 2)[:, None, None, None], 0, 255).astype(np.uint8)


@pytest.mark.parametrize("severity", WORST_FIRST)
@pytest.mark.parametrize("name", NAMES)
def test_an_image_gets_the_same_bits_whatever_comes_with_it(name, severity):
    images = pictures(64)
    index = 1000 + 3 * np.arange(64)
    whole = corrupt(images, name, severity, seed=5, index=index)
    order = np.random.default_rng(severity).permutation(64)
    assert np.array_equal(corrupt(images[order], name, severity, seed=5, index=index[order]), whole[order])
    for size, starts in ((7, range(0, 64, 7)), (1, range(0, 64, 13))):
        for start in starts:
            part = slice(start, start + size)
            assert np.array_equal(corrupt(images[part], name, severity, seed=5, index=index[part]), whole[part])


@pytest.mark.parametrize("name", NAMES)
def test_threads_and_parts_do_not_show(name, monkeypatch):
    images = pictures(12)
    whole = corrupt(images, name, threads=1)
    monkeypatch.setattr(corruptions, "ELEMENTS_AT_ONCE", 5 * 32 * 32 * 3)
    assert np.array_equal(corrupt(images, name, threads=1), whole)
    assert np.array_equal(corrupt(images, name, threads=3), whole)


@pytest.mark.parametrize("severity", WORST_FIRST)
@pytest.mark.parametrize("name", NAMES)
def test_large_constants_and_oblong_images_depend_on_the_image_alone_too(name, severity):
    images = pictures(5, 40, 57)
    whole = corrupt(images, name, severity, constants="imagenet")
    assert whole.shape == images.shape
    alone = corrupt(images[3:4], name, severity, constants="imagenet", index=[3])
    assert np.array_equal(alone, whole[3:4])
    assert not np.array_equal(whole, images)


@pytest.mark.parametrize("name", NAMES)
def test_photo_sized_images(name):
    images = pictures(3, 224, 224)
    whole = corrupt(images, name, 2)
    assert whole.dtype == np.uint8
    assert np.array_equal(corrupt(images[2:], name, 2, index=np.array([2])), whole[2:])
    assert np.array_equal(corrupt(images[:1], name, 2, constants="imagenet"), whole[:1])


@pytest.mark.parametrize("name", NAMES)
def test_the_input_is_left_alone_and_may_be_read_only_or_strided(name):
    images = pictures(6)
    images.flags.writeable = False
    before = images.copy()
    whole = corrupt(images, name)
    assert whole.shape == images.shape
    assert whole.dtype == np.uint8
    assert not np.shares_memory(whole, images)
    assert np.array_equal(images, before)
    turned = np.asfortranarray(images)[::2]
    assert np.array_equal(corrupt(turned, name, index=[0, 2, 4]), whole[::2])


@pytest.mark.parametrize("name", NAMES)
def test_no_images_give_no_images(name):
    assert corrupt(np.zeros((0, 32, 48, 3), np.uint8), name).shape == (0, 32, 48, 3)


@pytest.mark.parametrize("name", NAMES)
def test_seed_and_index_matter_exactly_where_something_is_drawn(name):
    images = np.repeat(pictures(2)[1:], 8, axis=0)
    first = corrupt(images, name, seed=0)
    if name in DETERMINISTIC:
        assert np.array_equal(first, corrupt(images, name, seed=1))
        assert np.array_equal(first, np.repeat(first[:1], 8, axis=0))
    else:
        assert not np.array_equal(first, corrupt(images, name, seed=1))
        assert not np.array_equal(first, np.repeat(first[:1], 8, axis=0))


# Not those whose constants change in more than strength, whose distance to the image need not grow; nor
# pixelate, since these pictures are made of blocks themselves.
NOT_GROWING = {"glass_blur", "elastic_transform", "saturate", "spatter", "snow", "frost", "pixelate"}
GROWING = sorted({*NAMES} - NOT_GROWING)


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("table", ["cifar", "imagenet"])
def test_a_higher_severity_changes_an_image_more(name, table):
    images = pictures(32, 64, 64)
    change = [
        np.abs(corrupt(images, name, severity, constants=table).astype(int) - images).mean()
        for severity in (1, 3, 5)
    ]
    assert 0 < change[0] < change[1] < change[2]


def test_the_registry_holds_the_names_of_the_benchmark_in_its_order():
    assert tuple(CORRUPTIONS) == NAMES
    assert all(tuple(table) == NAMES for table in TABLES.values())
    assert all(len(rows) == 5 for table in TABLES.values() for rows in table.values())


@pytest.mark.parametrize(
    ("table", "severity", "stop", "step", "count", "last"),
    [
        ("cifar", 1, 1.06, 0.01, 7, 1.06), ("cifar", 2, 1.11, 0.01, 12, 1.11), ("cifar", 3, 1.16, 0.01, 16, 1.15),
        ("cifar", 4, 1.21, 0.01, 21, 1.20), ("cifar", 5, 1.26, 0.01, 26, 1.25),
        ("imagenet", 1, 1.11, 0.01, 12, 1.11), ("imagenet", 2, 1.16, 0.01, 16, 1.15),
        ("imagenet", 3, 1.21, 0.02, 11, 1.20), ("imagenet", 4, 1.26, 0.02, 13, 1.24),
        ("imagenet", 5, 1.31, 0.03, 11, 1.30),
    ],
)  # fmt: skip
def test_zoom_factors_are_those_of_a_range_of_floats(table, severity, stop, step, count, last):
    factors = zooms(*TABLES[table]["zoom_blur"][severity - 1])
    assert factors == np.arange(1, stop, step).tolist()
    assert len(factors) == count
    assert factors[-1] == pytest.approx(last)


def test_constants_go_by_the_shorter_side():
    small = pictures(1, 95, 130)
    assert np.array_equal(corrupt(small, "contrast"), corrupt(small, "contrast", constants="cifar"))
    large = pictures(1, 96, 130)
    assert np.array_equal(corrupt(large, "contrast"), corrupt(large, "contrast", constants="imagenet"))
    assert not np.array_equal(corrupt(large, "contrast"), corrupt(large, "contrast", constants="cifar"))


GOOD = np.zeros((2, 32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([[1]], "NumPy array"),
        (GOOD[0], r"shape \(n, height, width, 3\)"),
        (GOOD.transpose(0, 3, 1, 2), r"got shape \(2, 3, 32, 32\)"),
        (GOOD.astype(np.float32), "type float32"),
        (GOOD[:, :31], "at least 32 pixels high and wide, got 31 x 32"),
    ],
)
def test_wrong_images_are_refused(images, message):
    with pytest.raises(InputError, match=message):
        corrupt(images, "fog")


@pytest.mark.parametrize("index", [[0], [0, 1, 2], [[0, 1]], [0.0, 1.0], [-1, 0]])
def test_wrong_index_is_refused(index):
    with pytest.raises(InputError, match="index must hold"):
        corrupt(GOOD, "fog", index=index)


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, True, "5", None])
def test_wrong_severity_is_refused(severity):
    with pytest.raises(OptionError, match="severity must be a whole number from 1 to 5"):
        corrupt(GOOD, "fog", severity)


def test_wrong_names_are_refused_with_a_hint():
    with pytest.raises(UnknownNameError, match="Did you mean 'gaussian_noise'"):
        corrupt(GOOD, "gausian_noise")
    with pytest.raises(
        UnknownNameError, match=r"constants must be one of cifar, imagenet.*Did you mean 'imagenet'"
    ):
        corrupt(GOOD, "fog", constants="imagenet1k")
    with pytest.raises(OptionError, match="threads must be a whole number of at least 1"):
        corrupt(GOOD, "fog", threads=0)


def test_an_error_in_a_thread_comes_up(monkeypatch):
    def breaks_at_two(images, keys, *_):
        if images[0, 0, 0, 0] == 2:
            raise RuntimeError("broken at two")
        return images

    monkeypatch.setitem(CORRUPTIONS, "fog", breaks_at_two)
    monkeypatch.setattr(corruptions, "ELEMENTS_AT_ONCE", 32 * 32 * 3)
    with pytest.raises(RuntimeError, match="broken at two"):
        corrupt(GOOD[:1] + np.arange(4, dtype=np.uint8)[:, None, None, None], "fog", threads=2)
