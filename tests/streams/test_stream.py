"""Streams as data: equality, digests that stay what they are, files, and what they refuse."""

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_data import LabelsOnly, equal

from findtta.errors import InputError, OptionError, UnknownNameError
from findtta.streams import SCENARIOS, Stream, make, parse, summarize

DRIFTED = {"fog@1": 40, "fog@2": 41, "fog@5": 33, "snow@1": 40, "snow@3": 57}
UNEVEN, GRADUAL = LabelsOnly({"clean": 70} | DRIFTED, classes=4), LabelsOnly(DRIFTED, classes=4)

# They must be the same on every machine; another digest means that old results belong to other streams.
DIGESTS = {
    "static": "2ee7691ae2251cb04c0165f8448c9ffc03a6f1901f9472bd2ce384f3e8d4c5ae",
    "static:across=true": "9400915ce27b7842a6964fb321d5c093c2e4316acfb7c401133c9663382bcd19",
    "crossmix": "bac65c50aca4c870337b39ca387f9a986c5133c640f7ef0a03de3bf709af94b3",
    "shuffle": "51838c633a8ee290210257a47694efa011c3369bb36a2ef14b9b7df0603f78d6",
    "shuffle:variant=authors": "7b09b1f6064eb1e07d65d5a3da49956de6e3be9728a1c11c1b5a2b480cfa5937",
    "random": "5a2ffdfd7e0e04d8ebab2f0b1681384cd0aac3a3e349963e5307f62d342aeb61",
    "random:variant=paper": "d6587c7b983ce32f5fe954e72ec663300c0b45d439422f5a279ee319dcb78ba5",
    "random:variant=authors": "7a127e8b175843c62f549b87093b55504c519e8b07a5a74b14839a36ec6616d3",
    "wild": "8221b6fc833c7079de3008a67255b3c64432a2ac05de1ffb4e51259928308995",
    "wild:delta=0.005,variant=paper": "d10a73a18a527f3170f673259d34827af440b96133141b7e9641980c1cdc6daa",
    "wild:variant=authors": "e8c8b423f7c7b45a3db847d7fdffe645579a77a14646717bd0ac4c8ceecdebf9",
    "wild:variant=authors-random": "1349d80d1100c80016ab14d706f943811f604b1c644464af62ddf45cf7ed63c0",
    "label-sorted": "ad7ca8567a2ef8a77b4767246853bf30333e724e48f9c56fd9a4905df2bd5bb9",
    "lifelong:rounds=3": "eb8e939ad76c1367f8c4b4272ff6e031ae4111fed72cc8cd6613c8a97f202ca4",
    "gradual": "e0e1a8430ac6445d3170a94b01d76c298fa94dcc5e3ab94275960524adbbe17b",
    "markov": "d5063313f7846be6f9541ee2d76c68229f8812e678ac839e8b0b88329e2f83a2",
    "markov:domain_ratio=3,class_ratio=2,class_stay=0": "95da8288830b59a52b168c01a45011d1f4c611330019dd2f934b1efefbb20106",
    "recurring:visits=2": "410684b0eed06e7194452a03b20b5626496d8500dc342e467001653641fc78c4",
    "pairs": "5edc2200003685f59743f0cd5d0ceae1690adcd371cb186aadc00ad1bd0d615b",
    "potpourri": "4b504fd24c4c929750f0ec6dbdcc2d61138ba2b3ef3dc8b4680aae84fab3260e",
    "clean": "9ab9c1e156ddef2fccf8b0437c13118b7c1bcf4c235892a2a956c9ad8efa2439",
    "mostly-clean:fraction=0.7": "ae8d6f913848da4c96722b4ccea0b76bd1db88f0f423ce41e71eea00b5f5f485",
}


def golden(text, **changed):
    name, settings = parse(text)
    dataset = GRADUAL if name == "gradual" else UNEVEN
    return make(name, **({"dataset": dataset, "batch_size": 8, "seed": 3} | settings | changed))


@pytest.mark.parametrize("text", DIGESTS)
def test_digests_are_the_recorded_ones(text):
    assert golden(text).digest == DIGESTS[text]


def test_every_scenario_has_a_recorded_digest():
    assert {text.partition(":")[0] for text in DIGESTS} == set(SCENARIOS)
    assert all(SCENARIOS[name].name == name for name in SCENARIOS)


@pytest.mark.parametrize("text", DIGESTS)
def test_same_inputs_give_the_same_stream_and_others_another(text):
    stream = golden(text)
    assert golden(text) == stream
    assert hash(golden(text)) == hash(stream)
    other_labels = LabelsOnly(dict(zip(stream.domains, GRADUAL_OR_UNEVEN[len(stream.domains)], strict=True)), 5)
    for changed in ({"seed": 4}, {"batch_size": 9}, {"dataset": other_labels}):
        assert golden(text, **changed).digest != stream.digest
    assert golden(text, seed=4).rows.tolist() != stream.rows.tolist()


GRADUAL_OR_UNEVEN = {5: list(DRIFTED.values()), 6: [70, *DRIFTED.values()]}


def test_every_part_of_a_stream_is_in_its_digest():
    stream = golden("lifelong:rounds=3")
    parts = {field: getattr(stream, field) for field in Stream.__dataclass_fields__}
    changes = {
        "scenario": "crossmix",
        "settings": {"rounds": 4},
        "seed": 9,
        "batch_size": 9,
        "dataset": "another",
        "domains": ("fog@1", *stream.domains[1:]),
        **{name: np.roll(parts[name], 1) for name in ("domain_ids", "rows", "sizes", "rounds")},
    }
    assert set(changes) == set(parts)
    for name, value in changes.items():
        assert Stream(**(parts | {name: value})).digest != stream.digest, name
    assert Stream(**parts).digest == stream.digest


def test_digest_depends_neither_on_the_integers_of_the_machine_nor_on_the_order_of_settings():
    stream = golden("wild")
    parts = {field: getattr(stream, field) for field in Stream.__dataclass_fields__}
    parts["rows"] = parts["rows"].astype(">i4")
    parts["settings"] = dict(reversed(list(parts["settings"].items())))
    assert list(parts["settings"]) != list(stream.settings)
    assert Stream(**parts) == stream


def test_a_whole_number_for_delta_is_the_same_stream():
    assert golden("wild:delta=1") == golden("wild:delta=1.0")


def test_streams_cannot_be_changed():
    stream = golden("crossmix")
    with pytest.raises(ValueError, match="read-only"):
        stream.rows[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        stream[0].domain_ids[0] = 1
    with pytest.raises(AttributeError):
        stream.seed = 1
    with pytest.raises(TypeError):
        golden("wild").settings["delta"] = 2


def test_batches_can_be_iterated_and_indexed():
    stream = golden("lifelong:rounds=2")
    batches = list(stream)
    assert [batch.index for batch in batches] == list(range(len(stream)))
    assert [len(batch) for batch in batches] == stream.sizes.tolist()
    assert np.concatenate([batch.rows for batch in batches]).tolist() == stream.rows.tolist()
    assert np.concatenate([batch.domain_ids for batch in batches]).tolist() == stream.domain_ids.tolist()
    assert [batch.round for batch in batches] == stream.rounds.tolist()
    assert stream[-1].index == len(stream) - 1
    assert stream[5].rows.tolist() == batches[5].rows.tolist()
    with pytest.raises(IndexError, match=f"{len(stream)} batches"):
        stream[len(stream)]


@given(st.integers(1, 1024), st.sampled_from(["crossmix", "static", "random"]))
def test_composition_counts_the_domains_of_each_batch(batch_size, name):
    stream = make(name, equal(300, 5), batch_size=batch_size)
    counted = [np.bincount(batch.domain_ids, minlength=5).tolist() for batch in stream]
    assert stream.composition().tolist() == counted


def test_labels_and_images_come_in_the_order_of_a_batch():
    class Drawn(LabelsOnly):
        def images(self, domain, rows):
            return np.broadcast_to(np.asarray(rows, np.uint8)[:, None, None, None], (len(rows), 1, 1, 3))

    dataset = Drawn({"a": 30, "b": 40})
    for batch in make("crossmix", dataset, batch_size=16):
        images, labels = dataset.batch(batch.domain_ids, batch.rows)
        assert images[:, 0, 0, 0].tolist() == batch.rows.tolist()
        assert labels.tolist() == (batch.rows * 7 % 10).tolist()


def test_summary_counts_domains_and_classes():
    dataset = LabelsOnly({"a": 64, "b": 32}, classes=4)
    summary = summarize(make("static", dataset, batch_size=64), dataset)
    assert (summary.batches, summary.samples, summary.domains, summary.classes) == (2, 96, 1.0, 4.0)
    mixed = summarize(make("crossmix", dataset, batch_size=96), dataset)
    assert (mixed.batches, mixed.domains) == (1, 2.0)
    assert "96 samples in 1 batches, on average 2.00 domains and 4.00 classes per batch" in str(mixed)
    assert mixed.digest in str(mixed)
    one_class = LabelsOnly({"a": 64}, classes=1)
    assert summarize(make("crossmix", one_class, batch_size=10), one_class).classes == 1


@pytest.mark.parametrize("text", DIGESTS)
def test_saved_streams_come_back(tmp_path, text):
    stream = golden(text)
    stream.save(tmp_path / "saved")
    loaded = Stream.load(tmp_path / "saved")
    assert loaded == stream
    assert loaded.settings == stream.settings
    assert loaded.domains == stream.domains
    assert loaded.rows.dtype == np.int64
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]  # nothing temporary is left


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    stream, path = golden("crossmix"), tmp_path / "stream.npz"
    golden("static").save(path)

    def full(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space left"):
        stream.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["stream.npz"]
    assert Stream.load(path) == golden("static")


def write(path, **changed):
    """Write a stream file with some entries changed, and the rest as it was."""
    golden("crossmix").save(path)
    with np.load(path) as file:
        entries = {name: file[name] for name in file.files} | changed
    buffer = io.BytesIO()
    np.savez(buffer, **{name: array for name, array in entries.items() if array is not None})
    path.write_bytes(buffer.getvalue())
    return entries


def header_of(path):
    with np.load(path) as file:
        return json.loads(file["header"].tobytes())


def as_bytes(header):
    return np.frombuffer(json.dumps(header).encode(), np.uint8)


def test_an_edited_file_is_refused(tmp_path):
    path = tmp_path / "stream.npz"
    rows = write(path)["rows"].copy()
    rows[[0, 1]] = rows[[1, 0]]
    write(path, rows=rows)
    with pytest.raises(InputError, match="was damaged or edited: its content does not give the digest"):
        Stream.load(path)
    header = header_of(path)
    header["stream"] = header["stream"].replace('"seed":3', '"seed":4')
    write(path, header=as_bytes(header))
    with pytest.raises(InputError, match="was damaged or edited"):
        Stream.load(path)


def test_files_of_another_format_are_refused(tmp_path):
    path = tmp_path / "stream.npz"
    write(path)
    header = header_of(path)
    header["stream"] = header["stream"].replace('"format":2', '"format":1')
    write(path, header=as_bytes(header))
    with pytest.raises(InputError, match="another release of findtta"):
        Stream.load(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": None},
        {"header": None},
        {"header": np.frombuffer(b"{", np.uint8)},
        {"header": as_bytes([1])},
        {"header": as_bytes({"stream": "{}", "digest": ""})},
        {"header": as_bytes({"stream": '{"format": 2, "domains": []}', "digest": ""})},
        {"rows": np.array(["a"])},
    ],
    ids=str,
)
def test_files_that_are_no_streams_are_refused(tmp_path, changed):
    path = tmp_path / "stream.npz"
    write(path, **changed)
    with pytest.raises(InputError, match=r"cannot be read .* damaged or not a stream"):
        Stream.load(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", "cut", "pickle"], ids=str)
def test_damaged_files_are_refused(tmp_path, content):
    path = tmp_path / "stream.npz"
    golden("crossmix").save(path)
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif content == "pickle":
        write(path, rows=np.array([{}], object))
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        Stream.load(path)


@given(st.data())
def test_no_flipped_bit_goes_unnoticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flipped") / "stream.npz"
    stream = golden("crossmix")
    stream.save(path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        loaded = Stream.load(path)
    except InputError:
        return
    assert loaded == stream  # the bit means nothing, such as one of a date


def test_an_unwritable_or_missing_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"stream\.npz' cannot be written"):
        golden("crossmix").save(tmp_path / "file" / "stream.npz")
    with pytest.raises(OptionError, match=r"nowhere\.npz' does not exist"):
        Stream.load(tmp_path / "nowhere.npz")


def test_a_stream_refuses_other_datasets():
    stream = golden("crossmix")
    stream.check(UNEVEN)
    with pytest.raises(
        InputError, match=r"its domains are clean, fog@1, .* and 1 more, those of the dataset fog@1"
    ):
        stream.check(GRADUAL)
    counts = dict(zip(UNEVEN.domains, GRADUAL_OR_UNEVEN[6], strict=True))
    with pytest.raises(InputError, match="the domains are the same, but labels or images differ"):
        stream.check(LabelsOnly(counts, classes=3))
    with pytest.raises(InputError, match="make the stream again"):
        summarize(stream, GRADUAL)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("crosmix", {}, "stream must be one of static, .*, got 'crosmix'. Did you mean 'crossmix'"),
        ("wild", {"dleta": 0.1}, "stream 'wild' has no option 'dleta'. Did you mean 'delta'"),
        ("wild", {"rounds": 2}, "Its options are:\n(.*\n)*  delta .default 0.1.: concentration"),
        ("crossmix", {"delta": 0.1}, "stream 'crossmix' has no option 'delta'. It has no options."),
    ],
)
def test_unknown_names_are_refused_with_close_matches(name, arguments, message):
    with pytest.raises(UnknownNameError, match=message):
        make(name, UNEVEN, **arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("crossmix", {"batch_size": 0}, "batch_size must be a whole number from 1 to 1024, got 0"),
        ("crossmix", {"batch_size": 1025}, "batch_size must be a whole number from 1 to 1024, got 1025"),
        ("crossmix", {"batch_size": 6.4}, "batch_size must be a whole number"),
        ("crossmix", {"batch_size": True}, "batch_size must be a whole number"),
        ("crossmix", {"batch_size": 300}, "at most the number of samples of the dataset, 281, got 300"),
        ("mostly-clean", {"batch_size": 128}, "samples of the stream 'mostly-clean', 50, got 128"),
        ("crossmix", {"seed": -1}, "seed must be a whole number from 0 to 4294967295, got -1"),
        ("crossmix", {"seed": "1"}, "seed must be a whole number"),
        ("wild", {"delta": 0}, "delta must be a number from 1e-06 to 1e\\+06, got 0"),
        ("wild", {"delta": -0.1}, "delta must be a number from 1e-06"),
        ("wild", {"delta": "small"}, "delta must be a number from .*, got 'small'"),
        ("wild", {"delta": float("nan")}, "delta must be a number"),
        ("wild", {"delta": float("inf")}, "delta must be a number from .*, got inf"),
        ("wild", {"variant": "both"}, "variant must be .* 'authors' or 'authors-random', got 'both'"),
        ("shuffle", {"variant": "text"}, "variant must be 'paper' or 'authors', got 'text'"),
        ("lifelong", {"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ("lifelong", {"rounds": 1.5}, "rounds must be a whole number of at least 1, got 1.5"),
        ("static", {"across": 1}, "across must be True or False, got 1"),
        ("gradual", {"across": "no"}, "across must be True or False, got 'no'"),
        ("markov", {"domain_stay": 1.1}, "domain_stay must be a number from 0 to 1, got 1.1"),
        ("markov", {"class_ratio": 0.5}, "class_ratio must be a number from 1 to 1e\\+06, got 0.5"),
        ("recurring", {"visits": 0}, "visits must be a whole number of at least 1, got 0"),
        ("mostly-clean", {"fraction": 1}, "fraction must be a number between 0 and 1, .*stream 'clean'"),
    ],
)
def test_bad_values_are_refused(name, arguments, message):
    with pytest.raises(OptionError, match=message):
        make(name, UNEVEN, **arguments)


def test_numpy_integers_are_whole_numbers():
    stream = make("crossmix", UNEVEN, batch_size=np.int64(8), seed=np.uint8(3))
    assert stream == golden("crossmix")


def test_settings_are_read_as_written():
    assert parse("crossmix") == ("crossmix", {})
    assert parse("wild:delta=0.01, variant=paper") == ("wild", {"delta": 0.01, "variant": "paper"})
    assert parse("static:across=True") == ("static", {"across": True})
    with pytest.raises(OptionError, match="settings of stream 'wild' must look like NAME=VALUE, got 'x'"):
        parse("wild:x")
    with pytest.raises(UnknownNameError, match="no option 'dleta'"):
        parse("wild:dleta=1")
    with pytest.raises(OptionError, match="rounds must be a whole number"):
        parse("lifelong:rounds=many")
