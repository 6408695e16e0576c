import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from photos import errors, files, fill, image, png, rows

from findtta.errors import InputError, MissingExtraError, OptionError, UnknownNameError
from findtta.images import ImageLimits, Preprocessing
from findtta.models import load
from findtta.predict import RAY_FROM, Settings, predict
from findtta.predict.compute import Batch, Reader, predict_batch
from findtta.predict.sources import Source
from findtta.predictor import Predictions, PredictorSettings

SMALL = {"batch_size": 4, "block_size": 8, "format": "jsonl"}


@pytest.fixture(scope="module")
def model():
    return load("shapes-resnet26")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twenty-one images of which two, in different batches, cannot be read."""
    return fill(tmp_path_factory.mktemp("photos"), 21, broken=(5, 9))


@pytest.fixture(scope="module")
def done(photos, model, tmp_path_factory):
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("done") / "predictions"
    return predict(photos, output, Settings(model=model, **SMALL))


def test_predictions_are_those_of_batches_cut_by_hand(done, model):
    predictor = PredictorSettings(model=model, method="find").predictor()
    predictions = rows(done.output)
    assert [row["row"] for row in predictions] == [row for row in range(21) if row not in (5, 9)]
    for start in range(0, 21, 4):
        members = [row for row in range(start, min(start + 4, 21)) if row not in (5, 9)]
        found = predictor(np.stack([predictor.preprocess(image(row)) for row in members]))
        written = [row for row in predictions if row["row"] in members]
        assert [row["path"] for row in written] == [f"{row:04d}.png" for row in members]
        assert [row["probabilities"] for row in written] == found.probabilities.tolist()
        assert [row["index"] for row in written] == found.indices.tolist()
        assert [row["label"] for row in written] == [predictor.labels[index] for index in found.indices]
        assert [row["drift"] for row in written] == found.sample_drift.tolist()
        assert [row["group"] for row in written] == [members[group] for group in found.last_groups]


def test_what_cannot_be_read_is_told_apart(done):
    assert (done.images, done.skipped, done.blocks_before, done.blocks_now) == (21, 2, 0, 3)
    assert (done.execution.executor, done.execution.reason) == ("local", f"fewer than {RAY_FROM:,} images")
    assert [(row["row"], row["path"], row["code"]) for row in errors(done.output)] == [
        (5, "0005.png", "empty"),
        (9, "0009.png", "empty"),
    ]
    assert sorted(path.name for path in done.predictions.iterdir()) == [f"block-000000{i}.jsonl" for i in range(3)]
    assert sorted(path.name for path in done.errors.iterdir()) == ["block-0000000.jsonl", "block-0000001.jsonl"]


def test_the_size_of_blocks_changes_no_prediction(done, photos, model, tmp_path):
    other = predict(photos, tmp_path / "out", Settings(model=model, **(SMALL | {"block_size": 20})))
    assert other.blocks_now == 2
    assert rows(other.output) == rows(done.output)


class Killed(Exception):
    """Stands for a kill between two batches."""


@pytest.mark.parametrize("after", [1, 8, 13, 20])
def test_a_killed_run_continues_where_it_stopped(done, photos, model, tmp_path, after):
    settings = Settings(model=model, **SMALL)

    def kill(images: int, of: int) -> None:
        assert of == 21
        if images >= after:
            raise Killed

    with pytest.raises(Killed):
        predict(photos, tmp_path / "out", settings, progress=kill)
    # What a kill leaves of the files it was writing.
    (tmp_path / "out" / "predictions" / ".block-0000001.jsonl.0123abcd.part").write_text("{")
    told: list[int] = []
    again = predict(photos, tmp_path / "out", settings, progress=lambda images, of: told.append(images))
    assert again.blocks_before + again.blocks_now == 3
    assert again.blocks_before == -(-after // 4) * 4 // 8
    assert told[-1] == 21
    assert again.skipped == 2
    assert files(tmp_path / "out") == files(done.output)


def test_what_is_done_is_not_touched(done, photos, model):
    before = {path: path.stat().st_mtime_ns for path in done.output.rglob("*")}
    again = predict(photos, done.output, Settings(model=model, **SMALL))
    assert (again.blocks_before, again.blocks_now, again.skipped) == (3, 0, 2)
    assert {path: path.stat().st_mtime_ns for path in done.output.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batch_size": 8}, "batch_size was 4 and is 8"),
        ({"method": "tbn"}, "method was 'find' and is 'tbn'"),
        ({"options": {"alpha": 0.5}}, "'alpha': 0.8.* and is .*'alpha': 0.5"),
        ({"top": 2}, "top was None and is 2"),
        ({"format": "parquet"}, "format was 'jsonl' and is 'parquet'"),
        ({"threads": 2}, "threads was 1 and is 2"),
        ({"image_size": 40}, "preprocessing was .*32.* and is .*40"),
        ({"max_pixels": 10**6}, "max_pixels was 50000000 and is 1000000"),
    ],
)
def test_other_settings_are_refused_and_named(done, photos, model, change, told):
    with pytest.raises(OptionError, match=f"begun with other settings: .*{told}.*Name a new folder"):
        predict(photos, done.output, Settings(**({"model": model} | SMALL | change)))


def test_other_images_and_other_weights_are_refused(model, tmp_path):
    photos = fill(tmp_path / "in", 3)
    predict(photos, tmp_path / "out", Settings(model=model, **SMALL))
    (photos / "0001.png").write_bytes(png(1) + b" ")
    with pytest.raises(OptionError, match=r"listing was '.*' and is "):
        predict(photos, tmp_path / "out", Settings(model=model, **SMALL))
    (photos / "0001.png").write_bytes(png(1))
    changed = load("shapes-resnet26")
    with torch.no_grad():
        next(changed.parameters()).add_(1e-3)
    with pytest.raises(OptionError, match=r"weights was '.*' and is "):
        predict(photos, tmp_path / "out", Settings(model=changed, **SMALL))


def test_a_folder_of_something_else_is_left_alone(photos, model, tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(OptionError, match="exists already and holds no predictions"):
        predict(photos, tmp_path, Settings(model=model))
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(OptionError, match="is not a manifest"):
        predict(photos, tmp_path, Settings(model=model))
    with pytest.raises(OptionError, match="cannot be written"):
        predict(photos, tmp_path / "diary.txt" / "out", Settings(model=model))


def test_a_block_without_readable_images_is_finished_too(model, tmp_path):
    photos = fill(tmp_path / "in", 9, broken=tuple(range(8)))
    for format in ("jsonl", "parquet"):
        if format == "parquet":
            arrow = pytest.importorskip("pyarrow.parquet")
        summary = predict(photos, tmp_path / format, Settings(model=model, **(SMALL | {"format": format})))
        assert (summary.images, summary.skipped, summary.blocks_now) == (9, 8, 2)
        assert (
            predict(photos, tmp_path / format, Settings(model=model, **(SMALL | {"format": format}))).blocks_now
            == 0
        )
    table = arrow.read_table(tmp_path / "parquet" / "predictions")
    assert table["row"].to_pylist() == [8]
    assert [row["row"] for row in rows(tmp_path / "jsonl")] == [8]


def test_parquet_holds_what_json_lines_hold(done, photos, model, tmp_path):
    arrow = pytest.importorskip("pyarrow.parquet")
    predict(photos, tmp_path / "out", Settings(model=model, **(SMALL | {"format": "parquet"})))
    assert arrow.read_table(tmp_path / "out" / "predictions").to_pylist() == rows(done.output)


def test_the_most_probable_classes(done, photos, model, tmp_path):
    predict(photos, tmp_path / "out", Settings(model=model, top=3, **SMALL))
    for short, long in zip(rows(tmp_path / "out"), rows(done.output), strict=True):
        ranked = sorted(range(10), key=lambda index: -long["probabilities"][index])[:3]
        assert short["top_indices"] == ranked
        assert short["top_probabilities"] == [long["probabilities"][index] for index in ranked]
        assert short["index"] == ranked[0]
        assert "probabilities" not in short


def test_numbers_that_json_lacks_become_null():
    class Broken:
        labels = ("x", "y")

        def __call__(self, images):
            probabilities = np.array([[np.nan, 0.5]], np.float32)
            return Predictions(probabilities, np.zeros((1, 0), np.int64), np.zeros((1, 0)))

    batch = Batch([{"row": 3, "path": "a"}], np.zeros((1, 1, 1, 3), np.uint8))
    (record,) = predict_batch(Broken(), batch, top=None)
    assert record["probabilities"] == [None, 0.5]
    assert (record["group"], record["drift"]) == (None, None)
    assert json.loads(json.dumps(record, allow_nan=False))["row"] == 3


@pytest.mark.parametrize("method", ["tent", "rotta", "note"])
def test_methods_that_learn_are_refused(photos, tmp_path, method):
    with pytest.raises(OptionError, match=f"'{method}' learns from each batch.*find-star"):
        predict(photos, tmp_path / "out", Settings(method=method))
    assert not (tmp_path / "out").exists()


def test_find_star_chooses_its_layers_on_the_first_batches_and_stays_so(photos, model, tmp_path):
    options = {"cold_start": 3, "threshold": 0.5}
    settings = Settings(model=model, method="find-star", options=options, **SMALL)
    predict(photos, tmp_path / "out", settings)
    predictor = PredictorSettings(model=model, method="find-star", options=options).predictor()
    batches = [
        np.stack(
            [predictor.preprocess(image(row)) for row in range(start, min(start + 4, 21)) if row not in (5, 9)]
        )
        for start in range(0, 21, 4)
    ]
    for batch in batches[:3]:
        predictor(batch)
    splits = {layer.split for layer in predictor.adapted.report()}
    assert splits == {True, False}
    expected = np.concatenate([predictor(batch).probabilities for batch in batches])
    assert [row["probabilities"] for row in rows(tmp_path / "out")] == expected.tolist()
    # A block that is done again sees the same layers chosen.
    last = tmp_path / "out" / "predictions" / "block-0000002.jsonl"
    before = last.read_bytes()
    last.unlink()
    assert predict(photos, tmp_path / "out", settings).blocks_now == 1
    assert last.read_bytes() == before


def test_an_input_too_short_for_the_warm_up_is_refused_before_anything_is_written(model, tmp_path):
    images = fill(tmp_path / "in", 6, broken=(0, 1, 2, 3))
    settings = {"model": model, "method": "find-star", **SMALL}
    for options, told in (
        ({}, "on 10 batches, but 6 images give 1 readable batches of 4.*cold_start=1"),
        ({"cold_start": 2}, "on 2 batches, but 6 images give 1"),
    ):
        with pytest.raises(InputError, match=told):
            predict(images, tmp_path / "out", Settings(options=options, **settings))
    assert not (tmp_path / "out").exists()
    assert predict(images, tmp_path / "out", Settings(options={"cold_start": 1}, **settings)).skipped == 4


def test_the_number_of_threads_is_put_back(model, tmp_path):
    before = torch.get_num_threads()
    predict(fill(tmp_path / "in", 1), tmp_path / "out", Settings(model=model, threads=before + 1, **SMALL))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 64, "block_size": 100}, r"multiple of batch_size \(64\), such as 64, got 100"),
        ({"top": 0}, "top must be"),
        ({"threads": True}, "threads must be"),
        ({"format": "csv"}, "format must be 'parquet' or 'jsonl', got 'csv'"),
        ({"device": "toaster"}, "device must be one that torch can use"),
        ({"max_image_mb": 0}, "max_image_mb must be above 0"),
        ({"executor": "spark"}, "executor must be 'local' or 'ray'"),
        ({"workers": 0}, "workers must be a whole number"),
        ({"executor": "local", "workers": 2}, "workers must not be given"),
        ({"executor": "local", "ray_address": "x"}, "ray_address must not be given"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, told):
    with pytest.raises(OptionError, match=told):
        Settings(**settings)


def test_names_that_do_not_exist_are_refused_before_anything_is_written(photos, tmp_path):
    for settings in ({"model": "resnet27"}, {"method": "fnd"}, {"options": {"alfa": 1}}):
        with pytest.raises(UnknownNameError):
            predict(photos, tmp_path / "out", Settings(**settings))
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_an_error_that_says_so(photos, model, tmp_path):
    with pytest.raises(OptionError, match="device must be one that torch can use"):
        predict(photos, tmp_path / "out", Settings(model=model, device="cuda"))


def test_where_predictions_are_computed(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("findtta.predict.settings.usable_cores", lambda: 8)
    monkeypatch.setattr("findtta.predict.settings.installed", lambda module: True)
    monkeypatch.setattr("findtta.predict.settings.require", lambda *_: None)

    def chosen(images, **settings):
        execution = Settings(**settings).execution(images)
        return execution.executor, execution.workers

    assert chosen(10) == ("local", 1)
    assert chosen(RAY_FROM) == ("ray", 8)
    assert chosen(RAY_FROM, threads=3) == ("ray", 2)
    assert chosen(RAY_FROM, threads=8) == ("local", 1)
    assert chosen(RAY_FROM, executor="local") == ("local", 1)
    assert chosen(10, workers=3) == ("ray", 3)
    assert chosen(10, executor="ray") == ("ray", 8)
    assert chosen(10, ray_address="ray://there") == ("ray", None)


def test_without_ray_this_process_computes_unless_ray_is_asked_for(monkeypatch):
    monkeypatch.setattr("findtta._extras.importlib.util.find_spec", lambda name: None)
    assert Settings().output_format == "jsonl"
    assert Settings().execution(RAY_FROM).executor == "local"
    with pytest.raises(MissingExtraError, match=r'pip install .*\[ray\]"'):
        Settings(executor="ray").execution(10)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 7))
def test_batches_are_neighbouring_positions_whatever_cannot_be_read(readable, batch_size):
    class Made:
        start = 10 * batch_size

        def entries(self):
            return (("name", ONE_PIXEL if is_readable else b"broken") for is_readable in readable)

    reader = Reader(batch_size, Preprocessing(size=(1, 1)), ImageLimits())
    batches = list(reader.batches([Made()], decoders=2))
    assert len(batches) == -(-len(readable) // batch_size)
    for number, batch in enumerate(batches):
        span = range(number * batch_size, min((number + 1) * batch_size, len(readable)))
        assert [record["row"] for record in batch.records] == [10 * batch_size + row for row in span]
        assert ["error" not in record for record in batch.records] == [readable[row] for row in span]
        assert len(batch.images) == sum(readable[row] for row in span)


ONE_PIXEL = (
    b"BM:\x00\x00\x00\x00\x00\x00\x006\x00\x00\x00(\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x18\x00"
    b"\x00\x00\x00\x00\x04\x00\x00\x00" + b"\x00" * 16 + b"\x01\x02\x03\x00"
)


def test_a_full_disk_and_a_shrinking_input_are_errors_that_keep_finished_blocks(
    photos, model, tmp_path, monkeypatch
):
    settings = Settings(model=model, **SMALL)

    def full(path):
        raise OSError(28, "No space left on device")

    predict(photos, tmp_path / "out", settings)
    last = tmp_path / "out" / "predictions" / "block-0000002.jsonl"
    last.unlink()
    with monkeypatch.context() as patch:
        patch.setattr("findtta.predict.pipeline.atomic_write", full)
        with pytest.raises(InputError, match=r"block 2 cannot be written .*No space left"):
            predict(photos, tmp_path / "out", settings)
    part = Source.part
    with monkeypatch.context() as patch:
        patch.setattr(Source, "part", lambda source, start, stop: part(source, start, stop - 1))
        with pytest.raises(InputError, match=r"became shorter .*blocks \[2\]"):
            predict(photos, tmp_path / "out", settings)
    again = predict(photos, tmp_path / "out", settings)
    assert (again.blocks_before, again.blocks_now) == (2, 1)


def test_a_disk_that_fails_stops_the_run_which_continues_later(model, tmp_path, monkeypatch):
    photos = fill(tmp_path / "in", 12)
    opened = Path.open

    def failing(path, *words, **options):
        if path.name == "0009.png":
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        with pytest.raises(InputError, match=r"Input/output error\). Finished blocks are kept: run the same"):
            predict(photos, tmp_path / "out", Settings(model=model, **SMALL))
    again = predict(photos, tmp_path / "out", Settings(model=model, **SMALL))
    assert (again.skipped, again.blocks_now) == (0, 1)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_predictions_may_lie_inside_the_input(model, tmp_path, kind):
    pytest.importorskip("pyarrow")
    photos = fill(tmp_path, 3)
    settings = Settings(model=model, **SMALL | {"format": kind})
    predict(photos, photos / "made" / "here", settings)
    again = predict(photos, photos / "made" / "here", settings)
    assert (again.images, again.blocks_before, again.blocks_now) == (3, 1, 0)


def test_code_that_changes_is_another_setting(tmp_path):
    photos = fill(tmp_path / "in", 3)
    file = tmp_path / "mine.py"
    settings = Settings(model=f"{file}:make", num_classes=5, image_size=8, **SMALL)
    text = "import torch\nfrom torch import nn\ndef make():\n    torch.manual_seed(0)\n"
    text += "    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.{}(), nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
    text += "    return nn.Sequential(*layers, nn.Linear(4, 5))\n"
    file.write_text(text.format("ReLU"))
    predict(photos, tmp_path / "out", settings)
    assert predict(photos, tmp_path / "out", settings).blocks_now == 0
    file.write_text(text.format("Tanh"))
    with pytest.raises(OptionError, match=r"begun with other settings: .*code was"):
        predict(photos, tmp_path / "out", settings)
