"""CIFAR as pickles, in folders and archives; and pickles that are up to no good."""

import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from findtta.data import cifar
from findtta.data.cifar import load_pickle
from findtta.data.open import read
from findtta.errors import InputError, OptionError
from make_datasets import cifar_pickles, rows, tar_bytes, write_files

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
TEST = {"cifar10": "test_batch", "cifar100": "test"}
TRAIN = {"cifar10": [f"data_batch_{n}" for n in range(1, 6)], "cifar100": ["train"]}


@pytest.fixture(params=["folder", "parent", "tar", "tgz"])
def place(request, tmp_path):
    """Write a set somewhere and return where."""

    def write(variant, files):
        if request.param in ("folder", "parent"):
            folder = write_files(tmp_path / FOLDERS[variant], files)
            return folder if request.param == "folder" else tmp_path
        inside = {f"{FOLDERS[variant]}/{name}": content for name, content in files.items()}
        path = tmp_path / ("cifar.tar" if request.param == "tar" else "cifar.tar.gz")
        path.write_bytes(tar_bytes(inside, "w" if request.param == "tar" else "w:gz"))
        return path

    return write


@pytest.mark.parametrize("variant", ["cifar10", "cifar100"])
def test_both_splits_are_read(place, variant):
    files, truth = cifar_pickles(variant)
    path = place(variant, files)
    test = read(path)
    images, labels = truth[TEST[variant]]
    assert (test.name, test.domains, len(test.classes)) == (variant, ("clean",), 3)
    assert test.labels("clean").tolist() == labels
    np.testing.assert_array_equal(test.images("clean", rows(5, 0)), images[[5, 0]])
    train = read(path, split="train")
    assert train.name == f"{variant} (train)"
    assert train.labels("clean").tolist() == [label for name in TRAIN[variant] for label in truth[name][1]]
    expected = np.concatenate([truth[name][0] for name in TRAIN[variant]])
    np.testing.assert_array_equal(train.images("clean", np.arange(len(expected))), expected)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read(tmp_path, protocol):
    files, truth = cifar_pickles(protocol=protocol)
    dataset = read(write_files(tmp_path / "here", files))
    np.testing.assert_array_equal(dataset.images("clean", rows(2)), truth["test_batch"][0][[2]])
    assert dataset.classes == ("cat", "dog", "owl")


def test_a_pickle_of_python_2_is_read():
    # What Python 2 wrote for {"data": array([[1, 2, 3]], uint8), "labels": [7]}: text is bytes there.
    content = (
        b"(dp1\nS'data'\np2\ncnumpy.core.multiarray\n_reconstruct\np3\n(cnumpy\nndarray\np4\n(I0\ntp5\nS'b'\np6\n"
        b"tp7\nRp8\n(I1\n(I1\nI3\ntp9\ncnumpy\ndtype\np10\n(S'u1'\np11\nI0\nI1\ntp12\nRp13\n(I3\nS'|'\np14\nNNN"
        b"I-1\nI-1\nI0\ntp15\nbI00\nS'\\x01\\x02\\x03'\np16\ntp17\nbsS'labels'\np18\n(lp19\nI7\nas."
    )
    table = load_pickle(content, "old")
    assert table[b"labels"] == [7]
    assert table[b"data"].tolist() == [[1, 2, 3]]
    assert table[b"data"].dtype == np.uint8


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "u1", "<f4", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_through_unchanged(dtype, order):
    array = np.asarray(np.arange(12).reshape(3, 4) % 5, dtype=dtype, order=order)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        back = load_pickle(pickle.dumps({"a": array}, protocol), "array")["a"]
        np.testing.assert_array_equal(back, array)
        assert back.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


class Reduced:
    def __init__(self, *reduction):
        self.reduction = reduction

    def __reduce__(self):
        return self.reduction


def call(module, name, arguments=b"(", protocol=b""):
    """Write out a pickle that calls module.name."""
    return protocol + b"c" + module.encode() + b"\n" + name.encode() + b"\n" + arguments + b"tR."


def hostile(canary):
    command = f"touch {canary}"
    python = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    text = lambda value: b"(V" + value.encode() + b"\n"  # noqa: E731
    return {
        "os.system": pickle.dumps(Reduced(os.system, (command,))),
        "os.system by its other name": call("os", "system", text(command)),
        "eval": pickle.dumps(Reduced(eval, (python,))),
        "eval of Python 2": call("__builtin__", "eval", text(python)),
        "exec": pickle.dumps(Reduced(exec, (python,))),
        "getattr of an allowed name": b"cbuiltins\ngetattr\n(c_codecs\nencode\nV__globals__\ntR.",
        "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",
        "a dotted way to os": b"\x80\x04\x8c\x05numpy\x8c\x0ef2py.os.system\x93" + text(command)[1:] + b"\x85R.",
        "numpy's own loader": call("numpy", "load", text(str(canary))),
        "another codec": b"c_codecs\nencode\n(Vabc\nVrot13\ntR.",
        "open": pickle.dumps(Reduced(open, (str(canary), "w"))),
        "a nested call": pickle.dumps({b"data": [Reduced(os.system, (command,))]}),
        "a call in an array": pickle.dumps(np.array([Reduced(os.system, (command,))], dtype=object)),
        "state for a name": b"cnumpy\nndarray\n(dV_call\nVx\nsb.",
        "slot state for a name": b"c_codecs\nencode\n(N(dV__call__\nVx\nstb.",
        "an outside reference": b"Pevil\n.",
        "an extension code": b"\x80\x02\x82\x01.",
        "an instance": b"(ios\n_wrap_close\n.",
        "a new object": b"\x80\x02cnumpy\nndarray\n(tcnumpy\nndarray\n\x81.",
    }


def test_hostile_pickles_do_not_run(tmp_path):
    canary = tmp_path / "canary"
    for name, content in hostile(canary).items():
        with pytest.raises(InputError, match="Nothing in it was run"):
            load_pickle(content, name)
        assert not canary.exists(), name


def test_the_payloads_above_would_run_if_they_were_let(tmp_path):
    canary = tmp_path / "canary"
    for name in ("os.system", "eval", "exec", "a nested call", "a call in an array"):
        pickle.loads(hostile(canary)[name])
        assert canary.exists(), name
        canary.unlink()


def bombs():
    huge = 2**40
    yield "bytes of a size", call("builtins", "bytes", b"(L%dL\n" % huge)
    yield "an array of a shape", call("numpy", "ndarray", b"((L%dL\nt" % huge)
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(L%dL\ntVb\ntR" % huge
    dtype = b"cnumpy\ndtype\n(Vu1\nI0\nI1\ntR"
    yield (
        "an array of other length than its bytes",
        reconstruct + b"(I1\n(L%dL\nt" % huge + dtype + b"I00\nVa\ntb.",
    )
    yield "an array of negative length", reconstruct + b"(I1\n(I-1\nI-1\nt" + dtype + b"I00\nVa\ntb."
    yield "a far memory slot", b"\x80\x02Nr\xff\xff\xff\x7f."
    yield "a far memory slot in text", b"Np999999999\n."
    yield "bytes of a claimed length", b"\x80\x04\x8e" + huge.to_bytes(8, "little") + b"abc."
    yield "a bytearray of a claimed length", b"\x80\x05\x96" + huge.to_bytes(8, "little") + b"abc."


def test_an_array_that_is_never_filled_takes_no_memory():
    content = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(L1099511627776L\ntVb\ntR."
    assert load_pickle(content, "never filled").size == 0


def test_numpys_own_types_cannot_be_changed():
    load_pickle(b"cnumpy\ndtype\n(V<i4\nI0\nI0\ntR(I3\nV>\nNNNI-1\nI-1\nI0\ntb.", "a type")
    assert np.frombuffer(b"\x01\0\0\0", np.int32)[0] == 1


@pytest.mark.parametrize(("name", "content"), list(bombs()))
def test_bombs_do_not_go_off(name, content):
    with pytest.raises(InputError, match=r"was not read|Nothing in it was run"):
        load_pickle(content, name)


def test_endless_nesting_in_place_of_labels_is_not_followed(tmp_path):
    files, _ = cifar_pickles()
    nested = [1]
    for _ in range(40):  # small in the file, and 10**40 numbers when followed
        nested = [nested] * 10
    files["test_batch"] = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": nested}, 2)
    assert len(files["test_batch"]) < 10_000
    with pytest.raises(InputError, match="must hold 'labels', a list of whole numbers"):
        read(write_files(tmp_path / "c", files))


def test_a_hostile_batch_in_a_folder_or_archive_is_refused(place, tmp_path):
    files, _ = cifar_pickles()
    canary = tmp_path / "canary"
    files["test_batch"] = hostile(canary)["os.system"]
    with pytest.raises(InputError, match=r"test_batch must be a pickle .* it names (posix|nt|os)\.system"):
        read(place("cifar10", files))
    assert not canary.exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "must hold 'data'"),
        ({b"data": np.zeros((2, 7), np.uint8), b"labels": [0, 1]}, "must hold 'data', uint8 images"),
        ({b"data": np.zeros((2, 3072)), b"labels": [0, 1]}, "must hold 'data', uint8 images"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, "must hold 'labels', a list"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "one label per image, got 1 for 2"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 9]}, "must lie between 0 and 2"),
    ],
)
def test_batches_that_are_not_cifar(tmp_path, table, message):
    files, _ = cifar_pickles()
    files["test_batch"] = pickle.dumps(table)
    with pytest.raises(InputError, match=message):
        read(write_files(tmp_path / "c", files))


def test_class_names_must_be_names(tmp_path):
    files, _ = cifar_pickles()
    files["batches.meta"] = pickle.dumps({b"label_names": [1, 2, 3]})
    with pytest.raises(InputError, match=r"batches\.meta must hold 'label_names', a list of names"):
        read(write_files(tmp_path / "c", files))


def test_incomplete_sets_and_other_archives(tmp_path, monkeypatch):
    files, _ = cifar_pickles()
    folder = write_files(tmp_path / "c", files)
    (folder / "data_batch_3").unlink()
    with pytest.raises(InputError, match="data_batch_3 must be there for the train images"):
        read(folder, split="train")
    with pytest.raises(OptionError, match="split must be 'test' or 'train', got 'val'"):
        read(folder, split="val")
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_bytes({"cifar-10-batches-py/test_batch": files["test_batch"]}))
    with pytest.raises(InputError, match=r"must hold cifar-10-batches-py/batches\.meta"):
        read(archive)
    archive.write_bytes(tar_bytes({"x/y": b"z"}))
    with pytest.raises(InputError, match="Extract other archives first"):
        read(archive)
    whole = tar_bytes({f"cifar-10-batches-py/{name}": content for name, content in files.items()}, "w:gz")
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="must be a complete tar archive"):
        read(archive)
    monkeypatch.setattr(cifar, "_LARGEST_PICKLE", 100)
    with pytest.raises(InputError, match="more than any file of CIFAR"):
        read(folder)


def test_links_in_an_archive_lead_nowhere(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(cifar_pickles()[0]["test_batch"])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("test_batch", "batches.meta"):
            link = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, str(secret)
            archive.addfile(link)
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="does not"):
        read(tmp_path / "a.tar")
