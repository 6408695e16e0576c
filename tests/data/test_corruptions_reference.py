"""Each corruption against a slow, literal transcription or another library's function."""

import io
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_corruptions import WORST_FIRST, pictures

from findtta.data.corruptions import TABLES, corrupt, ice, noise, weather
from findtta.data.corruptions import _filters as filters
from findtta.data.corruptions.blur import disk, glass_blur, scattered, zooms
from findtta.data.corruptions.digital import affine_sources, hue_parts
from findtta.data.dataset import MAIN_CORRUPTIONS, SEVERITIES
from findtta.data.randomness import integers, sample_keys, uniform

RANDOM = np.random.default_rng(0)


def draws(count, name="test", severity=1):
    return partial(sample_keys, 0, np.arange(count), name, severity)


def gray(count, height, width, seed=0):
    return np.random.default_rng(seed).random((count, height, width))


# ---------------------------------------------------------------------------- filters


@pytest.mark.parametrize("sigma", [0.05, 0.25, 0.4, 0.7, 1, 2.5, 6])
def test_gaussian_filter_is_that_of_scipy(sigma):
    ndimage = pytest.importorskip("scipy.ndimage")
    image = gray(1, 33, 40)
    expected = ndimage.gaussian_filter(image[0], sigma, mode="nearest")
    assert np.allclose(filters.gaussian_filter(image, sigma)[0], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("sigma", [0.96, 6.4, 170.8])
def test_wide_smoothing_is_that_of_scipy(sigma):
    ndimage = pytest.importorskip("scipy.ndimage")
    field = 2 * uniform(draws(2)("field"), 33, 40) - 1
    expected = ndimage.gaussian_filter(field[1].astype(np.float64), sigma, mode="reflect", truncate=3)
    assert np.allclose(filters.smooth_field(field, sigma, 3)[1], expected, rtol=0, atol=3e-6)


def test_smoothing_adds_up_exactly():
    matrix, column = filters.smoothing_matrix(64, 3.0, 3.0), 2 * uniform(draws(1)("field"), 64).ravel() - 1
    exact = [math.fsum(a * b for a, b in zip(row, column.tolist(), strict=True)) for row in matrix.tolist()]
    assert (matrix @ column.astype(np.float64)).tolist() == exact


def test_correlate_is_that_of_scipy():
    ndimage = pytest.importorskip("scipy.ndimage")
    image, kernel = gray(2, 12, 15), RANDOM.integers(-2, 3, (5, 3)).astype(np.float64)
    expected = np.stack([ndimage.correlate(one, kernel, mode="mirror") for one in image])
    assert np.allclose(filters.correlate(image, kernel), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("factor", [1, 1.01, 1.06, 1.12, 1.25, 1.3, 1.75, 2.25, 4.5])
@pytest.mark.parametrize("size", [32, 45, 224])
def test_clipped_zoom_is_crop_stretch_and_trim(size, factor):
    ndimage = pytest.importorskip("scipy.ndimage")
    image = gray(1, size, size)[0]
    crop = math.ceil(size / factor)
    start = (size - crop) // 2
    large = ndimage.zoom(image[start : start + crop, start : start + crop], factor, order=1)
    trim = (len(large) - size) // 2
    expected = large[trim : trim + size, trim : trim + size]
    assert np.allclose(filters.clipped_zoom(image, factor), expected, rtol=0, atol=1e-12)


def test_motion_blur_sums_the_taps_along_a_line():
    images, degrees = gray(4, 32, 40) * 255, np.array([-44.0, 10.0, 31.0, -121.0])
    got = filters.motion_blur(images, 9, 2.5, degrees)
    weights = [math.exp(-tap * tap / (2 * 2.5**2)) for tap in range(19)]
    for image, angle, blurred in zip(images, np.deg2rad(degrees), got, strict=True):
        for y, x in ((0, 0), (5, 39), (16, 20), (31, 3)):
            expected = 0.0
            for tap, weight in enumerate(weights):
                at_y = y + math.ceil(tap * math.sin(angle) - 0.5)
                at_x = x + math.ceil(tap * math.cos(angle) - 0.5)
                expected += weight / sum(weights) * image[min(max(at_y, 0), 31), min(max(at_x, 0), 39)]
            assert blurred[y, x] == pytest.approx(expected, rel=1e-12)


def test_motion_blur_leaves_out_what_lies_beyond_the_opposite_border():
    white = np.full((1, 32, 64), 255.0)
    along = filters.motion_blur(white, 20, 15, np.array([0.0]))
    down = filters.motion_blur(white, 20, 15, np.array([-90.0]))
    weights = np.exp(-(np.arange(41.0) ** 2) / (2 * 15**2))
    assert along == pytest.approx(255)
    assert down == pytest.approx(255 * weights[:32].sum() / weights.sum())


@pytest.mark.parametrize(("border", "mode"), [("reflect", "mirror"), ("symmetric", "reflect")])
def test_bilinear_sampling_is_that_of_scipy(border, mode):
    ndimage = pytest.importorskip("scipy.ndimage")
    images = RANDOM.random((2, 20, 30, 3))
    y, x = RANDOM.uniform(-25, 45, (2, 20, 30)), RANDOM.uniform(-35, 65, (2, 20, 30))
    got = filters.sample_bilinear(images, y, x, border)
    for image, at_y, at_x, sampled in zip(images, y, x, got, strict=True):
        for channel in range(3):
            expected = ndimage.map_coordinates(image[..., channel], [at_y, at_x], order=1, mode=mode)
            assert np.allclose(sampled[..., channel], expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------- noise


def bytes_of(unit):
    return (np.clip(unit, 0, 1) * 255).astype(np.uint8)


@pytest.mark.parametrize("severity", WORST_FIRST)
@pytest.mark.parametrize("table", TABLES)
def test_gaussian_and_speckle_noise_have_their_deviation(severity, table):
    gray_image = np.full((20, 64, 64, 3), 128, np.uint8)
    for name, level in (("gaussian_noise", 1), ("speckle_noise", 128 / 255)):
        (sigma,) = TABLES[table][name][severity - 1]
        expected = np.random.default_rng(1).normal(128 / 255, sigma * level, 10**6)
        got = corrupt(gray_image, name, severity, constants=table)
        assert got.mean() == pytest.approx(bytes_of(expected).mean(), abs=0.5)
        assert got.std() == pytest.approx(bytes_of(expected).std(), rel=0.01)


@pytest.mark.parametrize("severity", WORST_FIRST)
@pytest.mark.parametrize("table", TABLES)
def test_shot_noise_counts_like_a_poisson_process(severity, table):
    (photons,) = TABLES[table]["shot_noise"][severity - 1]
    for level in (0, 10, 128, 255):
        got = corrupt(np.full((8, 64, 64, 3), level, np.uint8), "shot_noise", severity, constants=table)
        expected = bytes_of(np.random.default_rng(1).poisson(photons * level / 255, 10**6) / photons)
        assert got.mean() == pytest.approx(expected.mean(), rel=0.02, abs=0.02)
        assert got.std() == pytest.approx(expected.std(), rel=0.02, abs=0.02)


def test_photon_quantiles_follow_the_distribution_function():
    stats = pytest.importorskip("scipy.stats")
    table = noise.photon_quantiles(12).reshape(256, -1)
    ranks = (np.arange(table.shape[1]) + 0.5) / table.shape[1]
    for level in (1, 77, 255):
        assert np.array_equal(table[level], bytes_of(stats.poisson.ppf(ranks, 12 * level / 255) / 12))


@pytest.mark.parametrize("severity", WORST_FIRST)
def test_impulse_noise_hits_elements_evenly_with_black_and_white(severity):
    (amount,) = TABLES["cifar"]["impulse_noise"][severity - 1]
    got = corrupt(np.full((40, 64, 64, 3), 100, np.uint8), "impulse_noise", severity)
    assert set(np.unique(got)) == {0, 100, 255}
    assert (got == 255).mean() == pytest.approx(amount / 2, rel=0.05)
    assert (got == 0).mean() == pytest.approx(amount / 2, rel=0.05)
    hit = got != 100
    # Channels are hit one by one, not together.
    assert (hit[..., 0] & hit[..., 1]).mean() == pytest.approx(amount**2, rel=0.35)


# ---------------------------------------------------------------------------- blur


def test_disk_without_soft_rim_is_flat_and_round():
    expected = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5
    assert disk(1, 0.01) == pytest.approx(expected, rel=1e-6)
    assert disk(1.5, 0.1) == pytest.approx(np.full((3, 3), 1 / 9), rel=1e-6)
    assert disk(3, 0.1).shape == (7, 7)
    assert np.count_nonzero(disk(3, 0.1) > 1e-6) == 29


def test_small_radius_leaves_only_the_soft_rim():
    side = math.exp(-1 / (2 * 0.4**2))
    bell = np.array([side, 1, side]) / (1 + 2 * side)
    assert disk(0.3, 0.4) == pytest.approx(np.outer(bell, bell), rel=1e-6)


@pytest.mark.parametrize("reach", [1, 2, 4])
@pytest.mark.parametrize("size", [(32, 32), (34, 41)])
def test_scattering_equals_copying_pixel_by_pixel(reach, size):
    height, width = size
    sources = scattered(draws(3), 0, reach, height, width)
    offset = integers(draws(3)("offset 0"), 0, 4 * reach * reach, height, width)
    for image in range(3):
        pixels = np.arange(height * width).reshape(height, width)
        for y in range(height - reach, reach, -1):
            for x in range(width - reach, reach, -1):
                dy, dx = divmod(int(offset[image, y, x]), 2 * reach)
                assert -reach <= dy - reach < reach
                pixels[y, x] = pixels[y + dy - reach, x + dx - reach]
        assert np.array_equal(sources[image].reshape(height, width), pixels)


def test_glass_blur_passes_over_the_image_as_often_as_told():
    images = pictures(4)
    sigma = 0.05  # too narrow to blur, so only the scattering shows
    sources = [scattered(draws(4), turn, 1, 32, 32) for turn in range(2)]
    expected = images.reshape(4, -1, 3).copy()
    for step in sources:
        expected = np.take_along_axis(expected, step[..., None], axis=1)
    got = glass_blur(images, draws(4), sigma, 1, 2).astype(int).reshape(4, -1, 3)
    assert np.abs(got - expected.astype(int)).max() <= 2  # twice cut off to 8 bits


def test_zoom_blur_averages_the_image_and_its_zooms():
    images = pictures(2, 32, 48)
    factors = zooms(*TABLES["cifar"]["zoom_blur"][1])
    unit = images / 255.0
    total = unit + sum(np.stack([filters.clipped_zoom(image, factor) for image in unit]) for factor in factors)
    expected = total / (len(factors) + 1) * 255
    assert np.abs(corrupt(images, "zoom_blur", 2) - (expected - 0.5)).max() < 0.51


# ---------------------------------------------------------------------------- weather


def literal_plasma(noise_numbers, side, decay):
    """Diamond-square on a torus, point by point."""
    numbers = iter(noise_numbers)
    grid, step, rough = {(0, 0): 0.0}, side, 100.0
    while step > 1:
        half = step // 2
        corners = [(y, x) for y in range(0, side, step) for x in range(0, side, step)]
        for (down, right), around in (
            ((half, half), [(-half, -half), (-half, half), (half, -half), (half, half)]),
            ((0, half), [(0, -half), (0, half), (-half, 0), (half, 0)]),
            ((half, 0), [(0, -half), (0, half), (-half, 0), (half, 0)]),
        ):
            for y, x in corners:
                point = (y + down, x + right)
                total = sum(grid[(point[0] + dy) % side, (point[1] + dx) % side] for dy, dx in around)
                grid[point] = total / 4 + rough * rough * next(numbers)
        step, rough = half, rough / decay
    values = np.array([[grid[y, x] for x in range(side)] for y in range(side)])
    return (values - values.min()) / (values.max() - values.min())


def test_clouds_are_diamonds_and_squares():
    drawn = 2 * uniform(draws(2)("clouds"), 32 * 32 - 1) - 1
    got = weather.clouds(draws(2), 32, 20, 1.75)
    assert got.shape == (2, 32, 20)
    assert got[1] == pytest.approx(literal_plasma(drawn[1].tolist(), 32, 1.75)[:, :20], abs=1e-5)


def test_fog_keeps_the_brightest_value_within_reach_and_adds_the_same_to_all_channels():
    images = pictures(6)
    got = corrupt(images, "fog", 5).astype(int)
    assert (got.max(axis=(1, 2, 3)) <= images.max(axis=(1, 2, 3))).all()
    gaps = images.astype(int)[..., 0] - images[..., 1]
    top = images.max(axis=(1, 2, 3))[:, None, None] / 255
    assert np.abs((got[..., 0] - got[..., 1]) - gaps * top / (top + 1.5)).max() <= 1


def test_snow_only_brightens_and_falls_on_both_halves_alike():
    black = np.zeros((4, 48, 48, 3), np.uint8)
    got = corrupt(black, "snow", 5, constants="cifar").astype(int)
    ground = int((0.2 * 0.5) * 255)
    assert got.min() == ground
    assert got.max() > ground + 60
    assert np.array_equal(got, got[:, ::-1, ::-1])
    assert np.array_equal(got[..., 0], got[..., 2])
    images = pictures(8)
    assert (corrupt(images, "snow", 3) >= images.astype(int) - 1).all()


def test_frost_lies_over_the_image_in_proportion():
    draw = draws(3, "frost", 5)
    textures = ice.ice_textures(32, 40, 5)
    images = pictures(3, 32, 40)
    got = corrupt(images, "frost", 5)
    for row in range(3):
        which = integers(draw("texture"), 0, 5)[row]
        top = integers(draw("top"), 0, textures.shape[1] - 32)[row]
        left = integers(draw("left"), 0, textures.shape[2] - 40)[row]
        crop = textures[which, top : top + 32, left : left + 40]
        expected = np.clip(0.75 * images[row] + 0.45 * crop, 0, 255).astype(np.uint8)
        assert np.array_equal(got[row], expected)


def test_ice_is_bluish_rough_and_of_five_kinds():
    textures = ice.ice_textures(32, 32, 5)
    assert textures.shape == (5, 200, 200, 3)
    mean = textures.mean(axis=(1, 2))
    assert (mean[:, 2] > mean[:, 1]).all()
    assert (mean[:, 1] > mean[:, 0]).all()
    # Statistics of the frost in the benchmark's output, at the scale of 32-pixel images.
    expected = [(190, 193, 202), (205, 210, 220), (99, 111, 123), (143, 157, 170), (79, 149, 166)]
    assert mean == pytest.approx(np.array(expected), abs=3)
    steps = np.sqrt(np.mean(np.diff(textures.mean(axis=3), axis=2) ** 2, axis=(1, 2)))
    assert steps == pytest.approx(np.array([24.0, 17.6, 38.9, 32.0, 14.2]), rel=0.1)


@pytest.mark.parametrize(("size", "spacing"), [(32, 5), (190, 5), (260, 5), (224, 1)])
def test_ice_exceeds_the_crops(size, spacing):
    assert min(ice.ice_textures(size, size, spacing).shape[1:3]) > size


# ---------------------------------------------------------------------------- digital


@pytest.mark.parametrize("severity", WORST_FIRST)
@pytest.mark.parametrize("name", ["brightness", "saturate"])
@pytest.mark.parametrize("table", TABLES)
def test_colours_change_as_in_hue_saturation_value(name, severity, table):
    color = pytest.importorskip("skimage.color")
    images = np.random.default_rng(severity).integers(0, 256, (1, 64, 64, 3), np.uint8)
    images[0, :8, :8] = images[0, :8, :8, :1]  # grey has no hue
    images[0, 8:10] = 0
    hsv = color.rgb2hsv(images[0] / 255.0)
    constants = TABLES[table][name][severity - 1]
    if name == "brightness":
        hsv[..., 2] = np.clip(hsv[..., 2] + constants[0], 0, 1)
    else:
        hsv[..., 1] = np.clip(hsv[..., 1] * constants[0] + constants[1], 0, 1)
    expected = bytes_of(color.hsv2rgb(hsv))
    got = corrupt(images, name, severity, constants=table)[0]
    assert np.abs(got.astype(int) - expected).max() <= 1
    assert (got == expected).mean() > 0.97


@given(st.lists(st.integers(0, 255), min_size=3, max_size=3))
def test_hue_parts_make_up_the_colour(colour):
    unit = np.array([colour]) / 255
    value, saturation, lack = hue_parts(unit)
    assert value * (1 - saturation * lack) == pytest.approx(unit, abs=1e-12)
    assert ((lack >= 0) & (lack <= 1)).all()


def test_contrast_pulls_towards_the_mean_of_the_channel():
    images = pictures(3)
    mean = images.mean(axis=(1, 2), keepdims=True)
    exact = (images - mean) * 0.15 + mean
    assert np.abs(corrupt(images, "contrast", 5) - (exact - 0.5)).max() < 0.5 + 1e-9


@pytest.mark.parametrize("severity", WORST_FIRST)
@pytest.mark.parametrize("table", TABLES)
def test_jpeg_is_pillow_s(severity, table):
    images = pictures(2, 40, 48)
    with io.BytesIO() as file:
        Image.fromarray(images[1]).save(file, "JPEG", quality=TABLES[table]["jpeg_compression"][severity - 1][0])
        expected = np.asarray(Image.open(file))
    assert np.array_equal(corrupt(images, "jpeg_compression", severity, constants=table)[1], expected)


def test_pixelate_is_pillow_s():
    images = pictures(2, 40, 48)
    small = Image.fromarray(images[1]).resize((int(48 * 0.65), int(40 * 0.65)), Image.Resampling.BOX)
    assert np.array_equal(corrupt(images, "pixelate", 5)[1], small.resize((48, 40), Image.Resampling.BOX))


def test_moved_anchors_come_from_where_they_were():
    y, x = np.mgrid[:60, :90].astype(np.float64)
    still = affine_sources(np.zeros((1, 3, 2)), y, x)
    assert still[0][0] == pytest.approx(y)
    assert still[1][0] == pytest.approx(x)
    moves = np.array([[[3, -2], [1, 4], [-5, 2]]], np.float64)
    source_y, source_x = affine_sources(moves, y, x)
    # Anchors: middle (45, 30) and 20 pixels to each side, as x and y.
    for (anchor_x, anchor_y), (move_x, move_y) in zip([(65, 50), (65, 10), (25, 10)], moves[0], strict=True):
        at = int(anchor_y + move_y), int(anchor_x + move_x)
        assert source_y[0][at] == pytest.approx(anchor_y)
        assert source_x[0][at] == pytest.approx(anchor_x)


def test_elastic_transform_moves_but_keeps_colours():
    flat = np.full((2, 32, 32, 3), (10, 120, 240), np.uint8)
    for severity in SEVERITIES:
        assert np.abs(corrupt(flat, "elastic_transform", severity).astype(int) - flat).max() <= 1
    images = pictures(8)
    got = corrupt(images, "elastic_transform", 5)
    assert got.mean() == pytest.approx(images.mean(), rel=0.02)
    assert np.abs(got.astype(int) - images).mean() > 5


# ---------------------------------------------------------------------------- spatter


def test_edges_surround_a_square():
    image = np.zeros((1, 32, 32), np.uint8)
    image[0, 10:20, 8:24] = 200
    found = weather.edges(image)[0]
    assert found[11:19, 7].all()
    assert found[11:19, 23].all()
    assert not found[12:18, 10:22].any()
    assert not found[:8].any()
    ndimage = pytest.importorskip("scipy.ndimage")
    assert ndimage.label(found, np.ones((3, 3)))[1] == 1


def test_weak_edges_count_only_beside_strong_ones():
    image = np.zeros((2, 32, 32), np.uint8)
    image[:, 16:] = 30  # the edge of height 30 has a gradient of 120, between the thresholds
    assert not weather.edges(image).any()
    image[1, 16:, :4] = 90
    assert weather.edges(image)[1, 15:17, 10:].any(axis=0).all()
    assert not weather.edges(image)[0].any()


def chamfer(dy, dx):
    """Length of the shortest path of unit, diagonal and knight's steps."""
    long, short = max(abs(dy), abs(dx)), min(abs(dy), abs(dx))
    if 2 * short <= long:
        return long - 2 * short + 2.1969 * short
    return 2.1969 * (long - short) + 1.4 * (2 * short - long)


def test_distance_is_that_of_the_nearest_marked_pixel():
    marked = np.random.default_rng(3).random((1, 32, 40)) < 0.004
    got = weather.distance_to(marked)[0]
    places = np.argwhere(marked[0])
    for y in range(0, 32, 3):
        for x in range(0, 40, 3):
            nearest = min(chamfer(y - at_y, x - at_x) for at_y, at_x in places)
            assert got[y, x] == pytest.approx(min(nearest, 20))
    assert (weather.distance_to(np.zeros((1, 32, 32), bool)) == 20).all()


def test_equalized_levels_follow_their_frequency():
    levels = np.zeros((2, 4, 4), np.uint8)
    levels[0, 1], levels[0, 2:] = 3, 20
    levels[1] = 7
    got = weather.equalized(levels)
    assert got[0].tolist() == [[0] * 4, [85] * 4, [255] * 4, [255] * 4]
    assert (got[1] == 7).all()


@pytest.mark.parametrize("table", TABLES)
def test_water_adds_turquoise_and_mud_covers_with_brown(table):
    black = np.zeros((6, 64, 64, 3), np.uint8)
    water = corrupt(black, "spatter", 2, constants=table)
    wet = water[water[..., 1] > 40].astype(float)
    assert len(wet) > 50
    assert wet[:, 0] / wet[:, 1] == pytest.approx(175 / 238, abs=0.03)
    assert np.array_equal(water[..., 1], water[..., 2])
    white = corrupt(black + np.uint8(255), "spatter", 5, constants=table)
    muddiest = white.reshape(-1, 3)[white.sum(axis=3).argmin()]
    assert muddiest.astype(int) == pytest.approx(np.array([63, 42, 20]), abs=45)
    assert (white == 255).all(axis=3).mean() > 0.05


def test_no_drops_leave_the_image_as_it_is():
    assert (weather.shine(np.zeros((2, 32, 32), np.uint8)) == 0).all()


# ---------------------------------------------------------------------------- the benchmark's own output

EXACT = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}


@pytest.fixture(scope="module")
def published(shared):
    path = shared / "data" / "cifar10c_reference" / "severity5.npz"
    if not path.is_file():
        pytest.skip("the benchmark's own output is not here")
    reference = np.load(path)
    clean = np.load(shared / "data" / "cifar10_test.npz")["images"][reference["index"]]
    return reference, clean


@pytest.mark.parametrize("name", MAIN_CORRUPTIONS)
def test_statistics_are_those_of_the_benchmark(published, name):
    reference, clean = published
    ours = corrupt(clean, name, 5, index=reference["index"])
    theirs = reference[name]
    tolerance = 0.1 if name == "frost" else 0.02
    for statistic in (np.mean, np.std):
        assert statistic(ours, axis=(0, 1, 2)) == pytest.approx(statistic(theirs, axis=(0, 1, 2)), rel=tolerance)
    if name in EXACT:
        assert (ours == theirs).mean() > 0.999
        assert np.abs(ours.astype(int) - theirs).max() <= 1
