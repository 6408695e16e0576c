"""ImageNet-C and other folders of images."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from findtta.data.metadata import Marker, class_list, write_marker
from findtta.data.open import load, read
from findtta.errors import InputError, OptionError
from findtta.images import Preprocessing
from make_datasets import pictures, rows, write_images

IMAGENET = [f"fog/{s}/{wnid}/{n}" for s in (3, 5) for wnid in ("n01440764", "n01443537") for n in (1, 2)]


@pytest.mark.parametrize("group", ["", "weather/"])
def test_imagenet_c_layout(tmp_path, group):
    images = write_images(tmp_path / "in", [group + name for name in IMAGENET])
    dataset = read(tmp_path / "in")
    assert dataset.domains == ("fog@3", "fog@5")
    assert dataset.classes == ("n01440764", "n01443537")
    assert dataset.labels("fog@5").tolist() == [0, 0, 1, 1]
    expected = images[f"{group}fog/5/n01443537/1"]
    np.testing.assert_array_equal(dataset.images("fog@5", rows(2)), [expected])
    assert not dataset.generated


def test_imagenet_c_reads_jpeg_as_it_is(tmp_path):
    write_images(tmp_path, IMAGENET, suffix=".JPEG")
    expected = np.asarray(Image.open(tmp_path / "fog/3/n01440764/2.JPEG"))
    np.testing.assert_array_equal(read(tmp_path).images("fog@3", rows(1)), [expected])


def test_imagenet_c_labels_follow_a_full_list_of_classes(tmp_path):
    write_images(tmp_path / "in", IMAGENET)
    everything = ["n01440000", "n01440764", "n01441111", "n01443537"]
    text, pairs, table = tmp_path / "synsets.txt", tmp_path / "pairs.json", tmp_path / "index.json"
    text.write_text("\n".join(f"{wnid} a fish, or so" for wnid in everything))
    pairs.write_text(json.dumps([[wnid, "fish"] for wnid in everything]))
    table.write_text(json.dumps({str(label): [wnid, "fish"] for label, wnid in enumerate(everything)}))
    for classes in (everything, text, str(pairs), table):
        dataset = read(tmp_path / "in", classes=classes)
        assert dataset.classes == tuple(everything)
        assert dataset.labels("fog@5").tolist() == [1, 1, 3, 3]
    with pytest.raises(InputError, match="n01443537 must be the folder of a class"):
        read(tmp_path / "in", classes=everything[:2]).labels("fog@5")


def test_class_lists(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("maple tree\n\noak tree\n")
    assert class_list(path) == ("maple tree", "oak tree")
    assert class_list(None) is None
    for content in ("3", '{"1": "a"}', "[[]]", "{"):
        broken = tmp_path / "broken.json"
        broken.write_text(content)
        with pytest.raises(OptionError, match="classes must be a list of names, a text file"):
            class_list(broken)
    with pytest.raises(OptionError, match="cannot be read"):
        class_list(tmp_path / "missing.txt")
    with pytest.raises(OptionError, match="the list is empty"):
        class_list([])


def test_imagenet_c_images_of_another_size_are_named(tmp_path):
    write_images(tmp_path, IMAGENET)
    Image.fromarray(pictures(1, side=40)[0]).save(tmp_path / "fog/5/n01443537/2.png")
    dataset = read(tmp_path)
    assert dataset.images("fog@5", rows(0, 1, 2)).shape == (3, 32, 32, 3)
    with pytest.raises(InputError, match=r"n01443537.2\.png must be 32x32 as the first image is, got 40x40"):
        dataset.images("fog@5", rows(3))
    with pytest.raises(OptionError, match="image_size is not an option"):
        read(tmp_path, image_size=32)


def test_a_generated_imagenet_c_says_so(tmp_path):
    write_images(tmp_path, IMAGENET)
    write_marker(tmp_path, Marker("imagenet-c", "generated", {"classes": ["n01443537", "n01440764"]}))
    dataset = read(tmp_path)
    assert (dataset.name, dataset.generated) == ("imagenet-c (generated)", True)
    assert dataset.labels("fog@3").tolist() == [1, 1, 0, 0]  # the marker has the order of the labels


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".webp", ".bmp"])
def test_folders_of_domains(tmp_path, suffix):
    names = ["photo/dog/1", "photo/dog/zwölf 12", "sketch/cat/1", "sketch/dog/1"]
    write_images(tmp_path / "pacs", names, suffix=suffix)
    (tmp_path / "pacs" / "photo" / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "pacs" / ".cache" / "x").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"left out of the data.*notes\.txt$"):
        dataset = read(tmp_path / "pacs")
    assert (dataset.name, dataset.domains, dataset.classes) == ("pacs", ("photo", "sketch"), ("cat", "dog"))
    assert dataset.labels("photo").tolist() == [1, 1]
    expected = np.asarray(Image.open(tmp_path / f"pacs/photo/dog/zwölf 12{suffix}"))
    np.testing.assert_array_equal(dataset.images("photo", rows(1)), [expected])
    assert dataset.labels("sketch").tolist() == [0, 1]
    expected = np.asarray(Image.open(tmp_path / f"pacs/sketch/dog/1{suffix}"))
    np.testing.assert_array_equal(dataset.images("sketch", rows(1)), [expected])


def test_folders_of_classes_are_a_clean_set(tmp_path):
    images = write_images(tmp_path / "c", ["train/1", "owl/1"])  # CIFAR-100 has a class of trains
    dataset = read(tmp_path / "c")
    assert (dataset.domains, dataset.classes) == (("clean",), ("owl", "train"))
    np.testing.assert_array_equal(dataset.images("clean", rows(1)), [images["train/1"]])


def test_folders_of_splits_are_a_clean_set(tmp_path):
    images = write_images(tmp_path / "c", ["train/cat/1", "train/dog/1", "val/cat/1"])
    assert read(tmp_path / "c", split="train").labels("clean").tolist() == [0, 1]
    test = read(tmp_path / "c")
    np.testing.assert_array_equal(test.images("clean", rows(0)), [images["val/cat/1"]])
    with pytest.raises(OptionError, match="split must be"):
        read(tmp_path / "c", split="tst")
    write_images(tmp_path / "d", ["train/cat/1"])
    with pytest.raises(InputError, match="must hold a folder of the test images, but holds only train"):
        read(tmp_path / "d")


def test_images_of_several_sizes_need_a_size(tmp_path):
    write_images(tmp_path, ["photo/cat/1"], side=40)
    Image.fromarray(np.zeros((60, 90, 3), np.uint8)).save(tmp_path / "photo/cat/2.png")
    with pytest.raises(InputError, match=r"cat.2\.png must be 40x40 .* Give the option image_size"):
        read(tmp_path).images("photo", rows(0, 1))
    dataset = read(tmp_path, image_size=36)
    assert dataset.image_size == (36, 36)
    assert dataset.images("photo", rows(0, 1)).shape == (2, 36, 36, 3)
    assert read(tmp_path, image_size=(32, 48)).images("photo", rows(0, 1)).shape == (2, 32, 48, 3)


def test_what_is_not_read_is_named(tmp_path):
    write_images(tmp_path, ["cat/1", "cat/deeper/2", "dog/1"])
    for name in ("cat/phone.heic", "cat/.hidden", "cat/.DS_Store", "loose.png", "classes.txt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.warns(UserWarning, match="left out of the data") as caught:
        assert load(tmp_path).pick(["clean"]).labels("clean").tolist() == [0, 1]
    (message,) = {str(warning.message) for warning in caught}
    named = [Path(name).relative_to(tmp_path).as_posix() for name in message.partition("only: ")[2].split(", ")]
    assert named == ["cat/deeper", "cat/phone.heic", "loose.png"]


def test_files_get_the_preprocessing_of_a_model_also_if_all_are_of_one_size(tmp_path):
    write_images(tmp_path, ["photo/cat/1", "sketch/cat/1"], side=40)
    uniform, as_is = load(tmp_path, preprocessing=Preprocessing.square(36)), load(tmp_path)
    assert (uniform.image_size, as_is.image_size) == ((36, 36), (40, 40))
    expected = Preprocessing.square(36)(as_is.images("photo", rows(0))[0])
    np.testing.assert_array_equal(uniform.images("photo", rows(0)), [expected])
    Image.fromarray(pictures(1, side=60)[0][:, :50]).save(tmp_path / "sketch/cat/2.png")
    prepared = load(tmp_path, preprocessing=Preprocessing.square(36, 0.9, "bicubic"))
    assert prepared.image_size == (36, 36)
    expected = Preprocessing.square(36, 0.9, "bicubic")(pictures(1, side=60)[0][:, :50])
    np.testing.assert_array_equal(prepared.images("sketch", rows(1)), [expected])
    assert load(tmp_path, preprocessing=Preprocessing.square(36), image_size=33).image_size == (33, 33)


def test_the_preprocessing_is_part_of_the_identity(tmp_path):
    # Images at the size of the result are left alone, whatever the preprocessing; those that identity reads are.
    write_images(tmp_path, [f"photo/cat/{n}" for n in (1, 3, 5)])
    write_images(tmp_path, [f"photo/cat/{n}" for n in (2, 4)], side=50)
    sets = [load(tmp_path, preprocessing=Preprocessing.square(32, 1.0, how)) for how in ("bilinear", "bicubic")]
    assert sets[0].images("photo", rows(0, 2, 4)).tolist() == sets[1].images("photo", rows(0, 2, 4)).tolist()
    assert (
        len({one.identity for one in (*sets, *(one.pick() for one in sets), load(tmp_path, image_size=32))}) == 3
    )
    clean = write_images(tmp_path / "clean", ["cat/1"])
    write_images(tmp_path / "clean", ["cat/2"], side=50)
    made = [
        load(tmp_path / "clean", preprocessing=p) for p in (Preprocessing.square(32), Preprocessing.square(33))
    ]
    assert made[0].identity != made[1].identity
    np.testing.assert_array_equal(made[0].images("clean", rows(0)), [clean["cat/1"]])


def test_folders_follow_exif_notes_and_put_transparency_on_white(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    pixels = pictures(1)[0][:20]
    (tmp_path / "photo/cat").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "photo/cat/1.png", exif=exif)
    Image.new("RGBA", (20, 32), (1, 2, 3, 0)).save(tmp_path / "photo/cat/2.png")
    dataset = read(tmp_path)
    assert dataset.image_size == (32, 20)
    np.testing.assert_array_equal(dataset.images("photo", rows(0)), [np.rot90(pixels, -1)])
    assert (dataset.images("photo", rows(1)) == 255).all()


@pytest.mark.parametrize(
    "options", [{"image_size": 0}, {"image_size": (1, 2, 3)}, {"image_size": 9, "resize": 8}, {"resize": 8}]
)
def test_sizes_that_make_no_sense(tmp_path, options):
    write_images(tmp_path, ["photo/cat/1"])
    with pytest.raises(OptionError, match=r"image_size|resize"):
        read(tmp_path, **options)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_unreadable_images_are_named(tmp_path, content):
    write_images(tmp_path, ["photo/cat/1"])
    (tmp_path / "photo/cat/2.png").write_bytes(content)
    with pytest.raises(InputError, match=r"cat.2\.png: "):
        read(tmp_path).images("photo", rows(1))
    with pytest.raises(InputError, match=r"cat.2\.png: (it is not a readable image|there are no bytes)"):
        read(tmp_path, Preprocessing.square(32)).images("photo", rows(1))
    (tmp_path / "photo/cat/0.png").write_bytes(content)
    with pytest.raises(InputError, match=r"cat.0\.png: (it is not a readable image|there are no bytes)"):
        read(tmp_path)


def test_a_truncated_image_is_named(tmp_path):
    write_images(tmp_path, ["photo/cat/1", "photo/cat/2"], suffix=".jpg")
    path = tmp_path / "photo/cat/2.jpg"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"cat.2\.jpg: the file is broken"):
        read(tmp_path).images("photo", rows(1))


def test_grey_and_palette_images_become_rgb(tmp_path):
    write_images(tmp_path, ["photo/cat/1"])
    Image.new("L", (32, 32), 7).save(tmp_path / "photo/cat/2.png")
    palette = Image.new("P", (32, 32), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    palette.save(tmp_path / "photo/cat/3.png", transparency=b"\x00\xff")
    images = read(tmp_path).images("photo", rows(1, 2))
    assert (images[0] == 7).all()
    assert (images[1] == [9, 8, 7]).all()


def test_what_is_no_dataset_is_answered_with_the_layouts(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("hello")
    for path in (tmp_path / "empty", tmp_path / "file.txt", tmp_path / "missing"):
        with pytest.raises(InputError, match="is not a dataset of a known layout") as caught:
            read(path)
        for layout in ("labels.npy", ".npz", "cifar", "corruption/severity/class", "domain/class/image"):
            assert layout.lower() in str(caught.value).lower()
    (tmp_path / "fog" / "5").mkdir(parents=True)
    with pytest.raises(InputError, match="must hold images"):
        read(tmp_path)


def test_pairs_of_corruptions_are_read_as_they_are_written(tmp_path):
    for name in ("fog", "fog+gaussian_noise"):
        folder = tmp_path / "c" / name / "5" / "cat"
        folder.mkdir(parents=True)
        Image.fromarray(pictures(1)[0]).save(folder / "a.png")
    assert read(tmp_path / "c").domains == ("fog@5", "fog+gaussian_noise@5")


def test_classes_called_1_to_5_are_not_severities(tmp_path):
    for domain in ("fog", "snow"):
        for label in "0123":
            folder = tmp_path / "c" / domain / label
            folder.mkdir(parents=True)
            Image.fromarray(pictures(1)[0]).save(folder / "a.png")
    dataset = read(tmp_path / "c")
    assert (dataset.domains, dataset.classes) == (("fog", "snow"), ("0", "1", "2", "3"))
