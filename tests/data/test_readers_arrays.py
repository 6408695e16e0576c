"""CIFAR-C folders and .npz files."""

import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.data.metadata import Marker, write_marker
from findtta.data.open import read
from findtta.errors import InputError, OptionError, UnknownNameError
from findtta.images import Preprocessing
from make_datasets import pictures, rows, write_cifar_c


@pytest.mark.parametrize("labels_for", [1, 5])
def test_cifar_c_has_one_domain_per_corruption_and_severity(tmp_path, labels_for):
    arrays = write_cifar_c(tmp_path / "c", labels_for=labels_for)
    dataset = read(tmp_path / "c")
    assert dataset.domains == tuple(f"{kind}@{s}" for kind in ("gaussian_noise", "fog") for s in range(1, 6))
    assert dataset.labels("fog@4").tolist() == [0, 1, 2, 0]
    assert (dataset.name, dataset.classes, dataset.generated) == ("c", ("0", "1", "2"), False)
    assert dataset.image_size == (32, 32)
    for severity in range(1, 6):
        block = arrays["fog"][4 * (severity - 1) : 4 * severity]
        np.testing.assert_array_equal(dataset.images(f"fog@{severity}", rows(3, 0, 3)), block[[3, 0, 3]])


def test_cifar_c_rows_never_reach_into_the_next_severity(tmp_path):
    write_cifar_c(tmp_path / "c")
    with pytest.raises(IndexError):
        read(tmp_path / "c").images("fog@1", rows(4))


def test_cifar_c_takes_class_names(tmp_path):
    write_cifar_c(tmp_path / "c")
    assert read(tmp_path / "c", classes=["a", "b", "c", "d"]).classes == ("a", "b", "c", "d")
    with pytest.raises(InputError, match="must lie between 0 and 1, one per class, but go from 0 to 2"):
        read(tmp_path / "c", classes=["a", "b"])
    with pytest.raises(OptionError, match="'a' appears more than once"):
        read(tmp_path / "c", classes=["a", "b", "a"])
    with pytest.raises(OptionError, match=r"clases is not an option .* Did you mean 'classes'"):
        read(tmp_path / "c", clases=["a"])


def test_a_marker_tells_generated_from_published(tmp_path):
    write_cifar_c(tmp_path / "c")
    write_marker(tmp_path / "c", Marker("cifar10-c", "published", {"classes": ["x", "y", "z"]}))
    published = read(tmp_path / "c")
    assert (published.name, published.generated, published.classes) == ("cifar10-c", False, ("x", "y", "z"))
    write_marker(tmp_path / "c", Marker("cifar10-c", "generated", {"severities": {"fog": [2, 5]}}))
    generated = read(tmp_path / "c")
    assert (generated.name, generated.generated) == ("cifar10-c (generated)", True)
    assert generated.domains == ("fog@2", "fog@5")


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "x"}', '{"name": "x", "source": "mars"}'])
def test_a_broken_marker_is_named(tmp_path, content):
    write_cifar_c(tmp_path / "c")
    (tmp_path / "c" / "findtta.json").write_text(content)
    with pytest.raises(InputError, match=r"findtta\.json must be a marker"):
        read(tmp_path / "c")


def test_cifar_c_says_what_is_wrong(tmp_path):
    folder = tmp_path / "c"
    write_cifar_c(folder)
    labels = np.load(folder / "labels.npy")

    def message():
        with pytest.raises(InputError) as caught:
            read(folder)
        return str(caught.value)

    np.save(folder / "labels.npy", labels[:7])
    assert "must hold 20 labels, or 4 for one block, got shape (7,)" in message()
    np.save(folder / "labels.npy", np.arange(20))
    assert "repeat the same labels" in message()
    np.save(folder / "labels.npy", labels.astype(float))
    assert "whole numbers" in message()
    np.save(folder / "labels.npy", np.array([{}] * 20), allow_pickle=True)
    assert "labels.npy must be a .npy file of labels" in message()
    (folder / "labels.npy").unlink()
    assert "labels.npy must be a .npy file of labels" in message()
    np.save(folder / "labels.npy", labels)

    np.save(folder / "snow.npy", pictures(15))
    assert "snow.npy must hold as many images" in message()
    np.save(folder / "snow.npy", pictures(20).astype(np.float32))
    assert "snow.npy must hold uint8 images" in message()
    whole = (folder / "fog.npy").read_bytes()
    (folder / "snow.npy").write_bytes(whole[: len(whole) // 2])
    assert "snow.npy must be a complete .npy file" in message()
    for name in ("snow", "fog", "gaussian_noise"):
        (folder / f"{name}.npy").unlink()
    assert "got none" in message()


def test_a_missing_domain_is_answered_with_a_suggestion(tmp_path):
    write_cifar_c(tmp_path / "c")
    dataset = read(tmp_path / "c")
    with pytest.raises(UnknownNameError, match=r"no 'fogg@5'\. Did you mean 'fog@5'"):
        dataset.images("fogg@5", rows(0))
    with pytest.raises(UnknownNameError, match="no 'fgo@5'"):
        dataset.labels("fgo@5")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_an_array_per_domain(tmp_path, save):
    fog, shot, sketch = pictures(3, 1), pictures(3, 2), pictures(3, 3)
    save(tmp_path / "d.npz", sketch=sketch, fog=fog, shot_noise=shot, labels=[2, 0, 1], index=np.arange(3))
    dataset = read(tmp_path / "d.npz")
    assert dataset.domains == ("shot_noise", "fog", "sketch")  # corruptions as the benchmark has them
    assert dataset.labels("sketch").tolist() == [2, 0, 1]
    for name, expected in (("fog", fog), ("shot_noise", shot), ("sketch", sketch)):
        np.testing.assert_array_equal(dataset.images(name, rows(2, 0)), expected[[2, 0]])
    assert (dataset.name, dataset.generated, len(dataset)) == ("d", False, 9)


def test_npz_members_unpacked_to_a_temporary_file_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    np.savez_compressed(tmp_path / "d.npz", fog=pictures(3), labels=[0, 1, 0])
    dataset = read(tmp_path / "d.npz")
    np.testing.assert_array_equal(dataset.images("fog", rows(2, 0)), pictures(3)[[2, 0]])
    assert isinstance(dataset._opened["fog"], np.memmap)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_npz_in_column_order(tmp_path):
    np.savez(tmp_path / "d.npz", fog=np.asfortranarray(pictures(3)), labels=[0, 1, 0])
    np.testing.assert_array_equal(read(tmp_path / "d.npz").images("fog", rows(1)), pictures(3)[[1]])


def test_npz_with_images_is_a_clean_set(tmp_path):
    np.savez(tmp_path / "d.npz", images=pictures(3), labels=np.uint8([1, 1, 0]), classes=["cat", "dog"])
    dataset = read(tmp_path / "d.npz")
    assert (dataset.domains, dataset.classes) == (("clean",), ("cat", "dog"))
    np.testing.assert_array_equal(dataset.images("clean", rows(1)), pictures(3)[1:2])


def jpegs(images):
    encoded = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG")
        encoded.append(buffer.getvalue())
    offsets = np.cumsum([0, *map(len, encoded)])
    return {"jpeg": np.frombuffer(b"".join(encoded), np.uint8), "offsets": offsets}


def test_npz_with_jpeg_bytes_is_decoded_when_asked(tmp_path):
    content = jpegs(pictures(3, side=40))
    np.savez(tmp_path / "d.npz", **content, labels=[0, 1, 2])
    dataset = read(tmp_path / "d.npz", classes=list("abcd"))
    assert (dataset.image_size, dataset.classes, dataset.domains) == ((40, 40), tuple("abcd"), ("clean",))
    one = content["jpeg"][content["offsets"][1] : content["offsets"][2]].tobytes()
    expected = np.asarray(Image.open(io.BytesIO(one)).convert("RGB"))
    np.testing.assert_array_equal(dataset.images("clean", rows(1, 1)), [expected, expected])
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(again.images("clean", rows(1)), [expected])


def test_npz_with_jpeg_bytes_of_several_sizes(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, **jpegs([*pictures(2), pictures(1, side=40)[0]]), labels=[0, 1, 1])
    assert read(path, image_size=24).images("clean", rows(0, 2)).shape == (2, 24, 24, 3)
    prepared = read(path, Preprocessing.square(33))
    assert prepared.images("clean", rows(0, 2)).shape == (2, 33, 33, 3)
    np.savez(path, images=pictures(3), labels=[0, 1, 1])
    assert read(path, Preprocessing.square(33)).image_size == (32, 32)
    with pytest.raises(InputError, match="holds arrays, which are used as they are"):
        read(path, image_size=24)


def first_images(path):
    dataset = read(path)
    return dataset.images(dataset.domains[0], np.arange(3))


def test_npz_says_what_is_wrong(tmp_path):
    path = tmp_path / "d.npz"

    def message(**arrays):
        if arrays:
            np.savez(path, **arrays)
        with pytest.raises(InputError) as caught:
            first_images(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    some, jpeg = pictures(3), jpegs(pictures(3))
    assert "must hold an array 'labels', but holds fog" in message(fog=some)
    assert "must hold uint8 images" in message(labels=[0, 1, 1])
    assert "fog.npy must hold 2 uint8 images" in message(fog=some, labels=[0, 1])
    assert "of the size of the others" in message(fog=some, snow=pictures(3, side=40), labels=[0, 1, 1])
    assert "images.npy must hold 3 uint8 images" in message(images=some.astype(float), labels=[0, 1, 1])
    assert "must lie between" in message(images=some, labels=[0, -1, 1])
    assert "array of names" in message(images=some, labels=[0, 1, 1], classes=[1, 2])
    assert "Python objects" in message(images=some, labels=np.array([{}], object))
    assert "must hold 'offsets'" in message(jpeg=jpeg["jpeg"], labels=[0, 1, 1])
    assert "must be 4 whole numbers" in message(**{**jpeg, "offsets": jpeg["offsets"][1:]}, labels=[0, 1, 1])
    assert "must not decrease" in message(**{**jpeg, "offsets": jpeg["offsets"][::-1]}, labels=[0, 1, 1])
    assert "at least" in message(**{**jpeg, "jpeg": jpeg["jpeg"][:50]}, labels=[0, 1, 1])
    broken = jpeg["jpeg"].copy()
    broken[jpeg["offsets"][1] :] = 0
    assert "image 1: it is not a readable image" in message(**{**jpeg, "jpeg": broken}, labels=[0, 1, 1])
    mixed = jpegs([*pictures(2), pictures(1, side=40)[0]])
    assert "image 2 must be 32x32 as the first image is, got 40x40" in message(**mixed, labels=[0, 1, 1])
    path.write_bytes(b"not a zip")
    assert "must be an .npz file" in message()


def test_npz_damage_is_noticed(tmp_path):
    path = tmp_path / "d.npz"
    np.savez_compressed(path, fog=pictures(30), labels=[0] * 30)
    with zipfile.ZipFile(path) as archive:
        where = archive.getinfo("fog.npy").header_offset + 2000
    content = bytearray(path.read_bytes())
    content[where : where + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"fog\.npy must be a complete array"):
        read(path).images("fog", rows(0))


def test_npz_with_a_header_that_lies_about_the_size_is_refused(tmp_path):
    path = tmp_path / "d.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (9000000000, 32, 32, 3), }"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(InputError, match="not as long as its header says"):
        read(path)


@given(st.lists(st.integers(0, 4), max_size=8), st.booleans())
def test_npz_gives_rows_in_the_order_asked_for(tmp_path_factory, wanted, compressed):
    path = tmp_path_factory.getbasetemp() / f"order{compressed}.npz"
    if not path.exists():
        (np.savez_compressed if compressed else np.savez)(path, fog=pictures(5, side=2), labels=[0] * 5)
    got = read(path).images("fog", rows(*wanted))
    assert got.shape == (len(wanted), 2, 2, 3)
    assert (got == pictures(5, side=2)[rows(*wanted)]).all()


def test_datasets_of_arrays_pickle_without_their_images(tmp_path):
    write_cifar_c(tmp_path / "c", count=100)
    dataset = read(tmp_path / "c")
    first = dataset.images("fog@1", rows(0))
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 20_000
    np.testing.assert_array_equal(pickle.loads(pickled).images("fog@1", rows(0)), first)


def test_the_reference_stream_is_a_dataset_as_it_is(shared):
    dataset = read(shared / "data" / "cifar10c_reference" / "severity5.npz")
    assert dataset.domains == MAIN_CORRUPTIONS
    assert len(dataset) == 7500
    assert dataset.pick().domains == MAIN_CORRUPTIONS
    images, labels = dataset.pick(["fog", "contrast"], limit=20).batch(rows(0, 1, 0), rows(3, 3, 19))
    assert images.shape == (3, 32, 32, 3)
    assert labels[0] == labels[1]  # the same rows in every domain


def test_the_reference_photos_are_decoded(shared):
    dataset = read(shared / "data" / "imagenet_val2000_224_q90.npz")
    assert (len(dataset), dataset.image_size, len(dataset.classes)) == (2000, (224, 224), 1000)
    assert dataset.images("clean", rows(1999)).std() > 10


@pytest.mark.parametrize("odd", [np.zeros((4, 32, 32, 3), np.float32), np.zeros((4, 3, 32, 32), np.uint8)])
def test_no_domain_of_an_npz_is_left_out_without_a_word(tmp_path, odd):
    labels = np.array([0, 1, 0, 1])
    np.savez(tmp_path / "mix.npz", labels=labels, fog=np.zeros((4, 32, 32, 3), np.uint8), snow=odd)
    with pytest.raises(InputError, match=r"snow must be uint8 of shape \(n, height, width, 3\)"):
        read(tmp_path / "mix.npz")


def test_class_names_that_are_no_text_are_refused(tmp_path):
    images = np.zeros((2, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "a.npz", labels=[0, 1], images=images, classes=np.array([b"a", b"\xff"]))
    with pytest.raises(InputError, match="class names are UTF-8"):
        read(tmp_path / "a.npz")


def test_a_number_is_no_list_of_classes(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0, 1], images=np.zeros((2, 32, 32, 3), np.uint8))
    with pytest.raises(OptionError, match="classes must be names, or a file with names, got 10"):
        read(tmp_path / "a.npz", classes=10)
    (tmp_path / "names.txt").write_text("cat\ndog\n", encoding="utf-8-sig")
    assert read(tmp_path / "a.npz", classes=str(tmp_path / "names.txt")).classes == ("cat", "dog")
