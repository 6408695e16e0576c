import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.data.dataset import (
    EXTRA_CORRUPTIONS,
    MAIN_CORRUPTIONS,
    DomainDataset,
    HeldDataset,
    domain_name,
    split_domain,
)
from findtta.errors import OptionError, UnknownNameError
from make_datasets import rows


class Numbered(DomainDataset):
    """Images that say which domain and row they are of."""

    def __init__(self, sizes, name="numbered"):
        self.name, self.domains, self.sizes = name, tuple(sizes), sizes
        self.classes, self.image_size = ("a", "b"), (1, 2)

    def labels(self, domain):
        return np.arange(self.sizes[domain]) % 2

    def images(self, domain, rows):
        images = np.zeros((len(rows), 1, 2, 3), np.uint8)
        images[..., 0] = self.domains.index(domain)
        images[..., 1] = np.asarray(rows)[:, None, None]
        return images


BENCHMARK = {domain_name(kind, severity): 6 for kind in ("fog", "snow", "spatter") for severity in range(1, 6)}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=12))
def test_a_batch_mixes_domains_in_the_order_asked_for(samples):
    dataset = Numbered({"x": 5, "y": 5, "z": 5})
    domain_ids = np.array([domain for domain, _ in samples], np.int64)
    wanted = np.array([row for _, row in samples], np.int64)
    images, labels = dataset.batch(domain_ids, wanted)
    assert images.shape == (len(samples), 1, 2, 3)
    assert (images[:, 0, 0, 0] == domain_ids).all()
    assert (images[:, 0, 1, 1] == wanted).all()
    assert (labels == wanted % 2).all()


def test_pick_takes_the_corruptions_of_the_benchmark_at_severity_5():
    dataset = Numbered(BENCHMARK)
    assert dataset.pick().domains == ("snow@5", "fog@5")  # in the order of the benchmark, without the extra one
    assert dataset.pick(["spatter", "fog@2"], severity=3).domains == ("spatter@3", "fog@2")
    assert dataset.pick(["fog"], severity=(1, 4)).domains == ("fog@1", "fog@4")
    assert dataset.pick(["fog", "fog@5"]).domains == ("fog@5",)
    assert Numbered({"photo": 2, "sketch": 3}).pick().domains == ("photo", "sketch")


def test_pick_keeps_what_is_the_same_and_counts_what_is_left():
    dataset = Numbered(BENCHMARK)
    part = dataset.pick(limit=4)
    assert (part.name, part.classes, part.image_size) == (dataset.name, dataset.classes, dataset.image_size)
    assert (len(dataset), len(part), len(dataset.pick(limit=100))) == (90, 8, 12)
    assert repr(part) == "_Part('numbered', 8 images of 1x2, 2 domains, 2 classes)"


def test_a_limit_draws_the_same_rows_for_all_domains():
    part = Numbered(BENCHMARK).pick(limit=4)
    drawn = [part.images(domain, np.arange(4))[:, 0, 0, 1].tolist() for domain in part.domains]
    assert drawn[0] == drawn[1] == sorted(set(drawn[0]))
    assert part.labels("fog@5").tolist() == [row % 2 for row in drawn[0]]


def test_pick_says_what_is_wrong():
    dataset = Numbered(BENCHMARK)
    with pytest.raises(UnknownNameError, match=r"numbered has no 'fgo@5'\. Did you mean 'fog@5'"):
        dataset.pick(["fgo"])
    with pytest.raises(UnknownNameError, match="no 'fog@6'"):
        dataset.pick(["fog"], severity=6)
    with pytest.raises(OptionError, match="at least one domain"):
        dataset.pick([])
    with pytest.raises(OptionError, match="limit must be a whole number of at least 1"):
        dataset.pick(limit=0)
    with pytest.raises(UnknownNameError, match="It has fog@1"):
        dataset.check_domain("rain")


def test_the_identity_is_of_the_content():
    same, other = Numbered({"x": 5, "y": 3}, name="elsewhere"), Numbered({"x": 5, "y": 4})
    identity = Numbered({"x": 5, "y": 3}).identity
    assert identity == same.identity
    assert len({identity, other.identity, Numbered({"x": 5}).identity}) == 3
    assert Numbered({"x": 0}).identity  # an empty domain has no images to look at


@given(st.sampled_from([*MAIN_CORRUPTIONS, *EXTRA_CORRUPTIONS, "a@b"]), st.integers(1, 99))
def test_names_of_domains_come_apart_again(kind, severity):
    assert split_domain(domain_name(kind, severity)) == (kind, severity)


@pytest.mark.parametrize("name", ["sketch", "clean", "@5", "fog@", "fog@x"])
def test_names_without_a_severity(name):
    assert split_domain(name) == (name, None)


def test_rows_may_repeat():
    assert Numbered({"x": 3}).images("x", rows(1, 1)).shape[0] == 2


def test_a_held_dataset_asks_for_every_image_once():
    asked = []

    class Counted(Numbered):
        def images(self, domain, rows):
            asked.extend((domain, row) for row in rows.tolist())
            return super().images(domain, rows)

    part = Counted({"x": 5, "y": 5}).pick(["y", "x"], limit=3, seed=1)
    held, whole = HeldDataset(part), Numbered({"x": 5, "y": 5}).pick(["y", "x"], limit=3, seed=1)
    for _ in range(2):
        for domain_ids, chosen in ((rows(0, 1, 0), rows(2, 1, 2)), (rows(1, 1), rows(0, 1))):
            for got, want in zip(held.batch(domain_ids, chosen), whole.batch(domain_ids, chosen), strict=True):
                assert (got == want).all()
            assert (held.image_numbers(domain_ids, chosen) == whole.image_numbers(domain_ids, chosen)).all()
    assert len(asked) == len(set(asked)) == 3
