import numpy as np
import pytest
from PIL import Image

from findtta.data import contact_sheet as module
from findtta.data.contact_sheet import contact_sheet
from findtta.data.corrupted import CorruptedDataset
from findtta.data.dataset import DomainDataset
from findtta.errors import OptionError, UnknownNameError
from make_datasets import InMemory


class Flat(DomainDataset):
    """Every domain has its own colour."""

    def __init__(self, domains, side=32, count=6):
        self.name, self.domains, self.classes, self.image_size = "flat", tuple(domains), ("a",), (side, side)
        self.count = count

    def labels(self, domain):
        return np.zeros(self.count, np.int64)

    def images(self, domain, rows):
        colour = (self.domains.index(domain) + 1, 0, 200)
        return np.broadcast_to(np.uint8(colour), (len(rows), *self.image_size, 3)).copy()


def area(sheet, colour):
    return int((np.asarray(sheet) == colour).all(axis=-1).sum())


@pytest.mark.parametrize("images", [1, 2, 4, 5])
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_every_domain_gets_a_cell_of_equal_area(images, count):
    sheet = contact_sheet(Flat([f"d{number}" for number in range(count)]), images=images)
    areas = {area(sheet, (number + 1, 0, 200)) for number in range(count)}
    assert len(areas) == 1
    assert areas.pop() % (images * 32 * 32) == 0  # whole pixels of all images


def test_small_images_keep_their_pixels_and_large_ones_are_shrunk():
    small = contact_sheet(Flat(["a"], side=8), images=1)
    assert area(small, (1, 0, 200)) == 192 * 192
    large = contact_sheet(Flat(["a"], side=1000), images=1)
    assert area(large, (1, 0, 200)) == 304 * 304


def test_the_default_shows_clean_and_the_fifteen_corruptions(monkeypatch):
    written = []
    monkeypatch.setattr(module, "_titled", lambda image, text, size: written.append(text) or image)
    contact_sheet(CorruptedDataset(InMemory()), images=1)
    assert written[:2] == ["clean", "gaussian noise"]
    assert len(written) == 16 + 1
    assert written[-1] == "tiny-c (generated), severity 5"


def test_captions_have_the_severity_where_it_differs(monkeypatch):
    written = []
    monkeypatch.setattr(module, "_titled", lambda image, text, size: written.append(text) or image)
    contact_sheet(Flat(["fog@1", "fog@5", "clean"]), ["fog@1", "fog@5"])
    assert written == ["fog 1", "fog 5", "flat"]


def test_the_same_rows_are_shown_in_every_domain_and_a_seed_chooses_them():
    dataset = CorruptedDataset(InMemory())
    assert contact_sheet(dataset, ["clean"], images=1) == contact_sheet(dataset, ["clean"], images=1)
    assert contact_sheet(dataset, ["clean"], images=1) != contact_sheet(dataset, ["clean"], images=1, seed=1)


def test_text_stays_inside_its_width():
    sheet = contact_sheet(Flat(["a_domain_with_a_name_that_is_" + "much_" * 30 + "too_long"]), images=1)
    pixels = np.asarray(sheet)
    assert (pixels[:, -10:] == 255).all()
    assert isinstance(sheet, Image.Image)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (6, 3), (15, 5), (16, 4), (7, 3)])
def test_grids_fill_their_last_row_where_they_can(count, columns):
    assert module._columns(count) == columns


def test_wrong_options():
    with pytest.raises(OptionError, match="images must be a whole number of at least 1"):
        contact_sheet(Flat(["a"]), images=0)
    with pytest.raises(UnknownNameError, match="no 'b@5'"):
        contact_sheet(Flat(["a"]), ["b"])
