"""The embedded dataset: deterministic per index, whatever the batch, and told apart by outline alone."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.data.shapes import _OUTLINES, Shapes, draw, draw_labels
from findtta.errors import OptionError

GOLDEN_MEANS = [104, 85, 117, 84, 133, 89, 70, 174]
GOLDEN_LABELS = "ff7a9c104fc6"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), st.integers(0, 3))
def test_an_image_depends_on_its_index_and_seed_only(index, seed):
    together = draw(np.array(index), seed=seed)
    for position, number in enumerate(index):
        assert np.array_equal(draw(np.array([number]), seed=seed)[0], together[position])


def test_chunks_do_not_show():
    index = np.arange(600)
    assert np.array_equal(draw(index)[500:600], draw(index[500:600]))


def test_images_are_the_same_on_every_machine():
    """The mean brightness in whole steps: what the last bit of a sine could change is left out."""
    images = draw(np.arange(64))
    assert images.dtype == np.uint8
    assert images.shape == (64, 32, 32, 3)
    means = np.round(images.mean(axis=(1, 2, 3))).astype(np.int64)
    assert means[:8].tolist() == GOLDEN_MEANS
    labels = draw_labels(np.arange(1000))
    assert hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()[:12] == GOLDEN_LABELS


def test_classes_are_about_equally_frequent():
    counts = np.bincount(draw_labels(np.arange(10_000)), minlength=10)
    # five standard deviations of a binomial with p = 0.1
    assert np.all(np.abs(counts - 1000) < 150)


def test_splits_and_seeds_share_no_image():
    index = np.arange(50)
    views = [draw(index), draw(index, split="train"), draw(index, seed=1)]
    assert not any(np.array_equal(a, b) for i, first in enumerate(views) for a in first for b in
                   np.concatenate([*views[:i], *views[i + 1 :]]))  # fmt: skip


@pytest.mark.parametrize("name", _OUTLINES)
def test_outlines_are_inside_the_unit_square_and_fill_a_part_of_it(name):
    axis = np.linspace(-1.6, 1.6, 129, dtype=np.float32)
    inside = _OUTLINES[name](axis[None, None, :], axis[None, :, None])[0] < 0
    assert 0.1 < inside[20:-20, 20:-20].mean() < 0.75
    # a shape that ran to the border would have an edge that no image shows
    assert not inside[0].any()
    assert not inside[:, 0].any()
    assert not inside[-1].any()
    assert not inside[:, -1].any()


def test_no_two_outlines_are_alike_under_any_rotation():
    axis = np.linspace(-1.2, 1.2, 65, dtype=np.float32)
    u, v = np.meshgrid(axis, axis)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    turned = {
        name: [outline(np.cos(a) * u + np.sin(a) * v, np.cos(a) * v - np.sin(a) * u) < 0 for a in angles]
        for name, outline in _OUTLINES.items()
    }
    names = list(turned)
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            overlap = max((turned[first][0] & b).sum() / (turned[first][0] | b).sum() for b in turned[second])
            assert overlap < 0.95, (first, second)


def test_colour_says_nothing_about_the_class():
    images, labels = draw(np.arange(4000)).mean(axis=(1, 2)), draw_labels(np.arange(4000))
    spread = images.std(axis=0) / np.sqrt(np.bincount(labels).min())
    for label in range(10):
        assert np.all(np.abs(images[labels == label].mean(axis=0) - images.mean(axis=0)) < 5 * spread)


def test_less_clutter_leaves_pose_and_class():
    index = np.arange(16)
    plain, full = draw(index, clutter=0.0).astype(float), draw(index).astype(float)
    assert len(np.unique(plain[0].reshape(-1, 3), axis=0)) < len(np.unique(full[0].reshape(-1, 3), axis=0))
    assert np.corrcoef(plain.ravel(), full.ravel())[0, 1] > 0.7


def test_the_dataset_reads_like_any_other():
    data = Shapes(100, seed=3)
    assert data.domains == ("clean",)
    assert len(data) == 100
    rows = np.array([7, 3, 7])
    images, labels = data.batch(np.zeros(3, np.int64), rows)
    assert np.array_equal(images, draw(rows, seed=3))
    assert np.array_equal(labels, draw_labels(rows, 3))
    assert data.identity == Shapes(100, seed=3).identity
    assert data.identity != Shapes(100, seed=4).identity


@pytest.mark.parametrize(
    ("options", "message"), [({"count": 0}, "count"), ({"split": "val"}, "'train' or 'test'")]
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        Shapes(**options)
