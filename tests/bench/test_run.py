import dataclasses
import gc
import json
import mmap
import os
import shutil
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from small import HERE, measured, save_weights, spec
from torch.nn.modules.module import register_module_forward_pre_hook

import findtta
from findtta.algorithms.tent import Tent
from findtta.bench import Planner, Result, RunSpec, run
from findtta.bench.evaluate import PeakMemory, failure
from findtta.data.open import load
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError
from findtta.layers import AdaptiveNorm
from findtta.models import build, preprocessing_of
from findtta.models.weights import write_weights


def digest(**settings) -> str:
    return Planner().plan(spec(**settings)).digest


def test_the_result_says_what_was_measured_of_what():
    result = run(spec(method="find"))
    assert result.status == "done"
    assert result.error is None
    assert result.metrics["samples"] == 48
    assert result.metrics["error"] == 100 - result.accuracy
    assert {name: row["samples"] for name, row in result.per_domain.items()} == {
        "brightness@5": 24,
        "contrast@5": 24,
    }
    assert sum(row["samples"] for row in result.per_class.values()) == 48
    assert result.running["batch"] == [1, 2, 3]
    assert result.running["accuracy"][-1] == result.accuracy
    assert [layer["name"] for layer in result.layers] == ["net.1"]
    assert 1 <= result.layers[0]["groups_mean"] <= 16
    assert result.config["stream"]["batches"] == 3
    assert result.config["options"]["alpha"] == 0.8
    assert result.cost["latency_ms"]["p50"] > 0
    assert result.cost["forward_passes"] == 1
    assert result.environment["threads"] == torch.get_num_threads()
    assert RunSpec.from_dict(result.spec) == spec(method="find")


@pytest.mark.parametrize("encoded", [True, False])
def test_files_are_decoded_while_the_model_computes(encoded, monkeypatch):
    plan = Planner().plan(spec(method="find"))
    batch, readers = plan.dataset.batch, []

    def read(*samples):
        readers.append(threading.get_ident())
        return batch(*samples)

    monkeypatch.setattr(plan.dataset, "batch", read)
    monkeypatch.setattr(plan.dataset, "encoded", encoded)
    read_by_then = []
    run(plan, progress=lambda done, accuracy: (time.sleep(0.05), read_by_then.append(len(readers))))
    assert (threading.get_ident() in readers) != encoded
    assert read_by_then == ([2, 3, 3] if encoded else [1, 2, 3])


def test_the_result_survives_the_way_through_json():
    result = run(spec(method="tent"))
    assert Result.from_json(result.to_json()) == result


def test_the_accuracy_is_that_of_a_plain_loop():
    plan = Planner().plan(spec(method="find", stream="static"))
    model = findtta.adapt(plan.model, "find")
    right = {name: 0 for name in plan.dataset.domains}
    for batch in plan.stream:
        images, labels = plan.dataset.batch(batch.domain_ids, batch.rows)
        guesses = model(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).argmax(1).numpy()
        for domain_id, guess, label in zip(batch.domain_ids, guesses, labels, strict=True):
            right[plan.dataset.domains[domain_id]] += int(guess == label)
    result = run(plan)
    assert {name: round(row["accuracy"] * 24 / 100) for name, row in result.per_domain.items()} == right


def test_passes_of_a_stream_have_accuracies_of_their_own_and_images_stay_one_cluster():
    result = run(spec(method="tbn", stream="random:variant=authors"))
    parts = [run(spec(method="tbn", stream=stream)).accuracy for stream in ("static:across=true", "crossmix")]
    assert result.per_round == parts  # without state the order of batches changes nothing
    assert result.accuracy == pytest.approx(sum(parts) / 2)
    images, counts = np.unique(result.scores.images, return_counts=True)
    assert (len(images), set(counts.tolist())) == (24, {4})  # two domains, two passes


@pytest.mark.parametrize("method", ["find", "tent", "rotta"])
def test_the_same_run_gives_the_same_result_and_leaves_the_model_alone(method):
    plan = Planner().plan(spec(method=method, stream="lifelong"))
    before = {name: tensor.clone() for name, tensor in plan.model.state_dict().items()}
    first = run(plan)
    assert all(torch.equal(tensor, before[name]) for name, tensor in plan.model.state_dict().items())
    assert measured(run(plan)) == measured(first)
    assert measured(run(spec(method=method, stream="lifelong"))) == measured(first)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "tbn"},
        {"options": {"alpha": 0.7}},
        {"model": f"{HERE}:slow"},
        {"data_options": {"count": 25}},
        {"data_options": {"count": 24, "seed": 1}},
        {"domains": ("contrast", "brightness")},
        {"domains": ("contrast", "fog")},
        {"severity": 3},
        {"images": 20},
        {"stream": "static"},
        {"stream": "wild:delta=0.5"},
        {"batch_size": 15},
        {"seed": 1},
        {"reset": "domain"},
    ],
    ids=str,
)
def test_the_digest_depends_on_all_that_decides_the_result(settings):
    assert digest(**settings) != digest()


def test_the_digest_depends_on_weights_but_not_on_their_place(tmp_path):
    weights, other = save_weights(tmp_path / "a.pt"), save_weights(tmp_path / "b.pt", seed=1)
    (tmp_path / "moved").mkdir()
    moved = shutil.copy(weights, tmp_path / "moved" / "renamed.pt")
    assert digest(weights=str(weights)) == digest(weights=str(moved)) == digest()
    assert digest(weights=str(other)) != digest()


def test_the_digest_does_not_depend_on_where_model_and_data_lie(tmp_path):
    digests = set()
    for place in ("here", "there"):
        folder = tmp_path / place
        folder.mkdir()
        shutil.copy(HERE, folder / "small.py")
        images, labels = load("shapes", count=24).batch(np.zeros(24, np.int64), np.arange(24))
        np.savez(folder / "photos.npz", images=images, labels=labels)
        digests.add(digest(model=f"{folder / 'small.py'}:net", data=str(folder / "photos.npz"), data_options={}))
    assert len(digests) == 1


def test_the_digest_depends_on_the_normalization_of_the_input(tmp_path):
    torch.manual_seed(0)
    weights = tmp_path / "resnet20.pt"
    torch.save(build("resnet20", num_classes=10, normalization="cifar10").net.state_dict(), weights)
    cifar, half, same = (
        digest(model="resnet20", weights=str(weights), normalization=name)
        for name in ("cifar10", "half", "0.4914,0.4822,0.4465/0.2023,0.1994,0.2010")
    )
    assert same == cifar != half


def test_images_of_several_sizes_are_preprocessed_as_the_model_says_and_the_digest_depends_on_it(tmp_path):
    for number in range(8):
        folder = tmp_path / "photos" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number, 48), (number * 20, 90, 40)).save(folder / f"{number}.png")
    plans = []
    for crop in (1.0, 0.5):
        model = build("resnet20", num_classes=2, normalization="cifar10")
        card = dataclasses.replace(model.card, image_size=32, crop=crop)
        write_weights(tmp_path / f"{crop}.safetensors", model.net.state_dict(), card)
        settings = {"data": str(tmp_path / "photos"), "data_options": {}, "batch_size": 4}
        plans.append(Planner().plan(spec(model=str(tmp_path / f"{crop}.safetensors"), **settings)))
    assert [plan.dataset.preprocessing for plan in plans] == [preprocessing_of(plan.model) for plan in plans]
    assert plans[0].dataset.image_size == (32, 32)
    assert plans[0].config["data"]["identity"] != plans[1].config["data"]["identity"]


def test_what_is_given_as_the_default_is_the_same_run():
    assert digest(options={"alpha": 0.8}) == digest()
    assert digest(stream="crossmix", seed=0) == digest()


def test_options_that_json_writes_as_lists_are_taken():
    plan = Planner().plan(spec(method="tent", options={"skip_layers": ["1"]}))
    assert plan.options["skip_layers"] == ("1",)
    assert plan.config["options"]["skip_layers"] == ["1"]
    assert plan.digest != digest(method="tent")


def test_the_seed_is_also_that_of_methods_that_draw_at_random():
    assert Planner().plan(spec(method="rotta", seed=3)).options["seed"] == 3
    assert Planner().plan(spec(method="rotta", seed=3, options={"seed": 5})).options["seed"] == 5
    assert "seed" not in Planner().plan(spec(method="find", seed=3)).options


@pytest.mark.parametrize(
    ("stream", "reset", "resets"),
    [("static", "domain", 2), ("static", "never", 0), ("crossmix", "domain", 0)],
)
def test_reset_at_domains_happens_where_the_domain_of_whole_batches_changes(monkeypatch, stream, reset, resets):
    calls = []
    original = Tent.reset
    monkeypatch.setattr(Tent, "reset", lambda self: (calls.append(1), original(self)))
    domains = ("brightness", "contrast", "fog")
    run(spec(method="tent", stream=stream, reset=reset, domains=domains))
    assert len(calls) == resets


def test_after_a_reset_a_learning_method_is_as_new():
    options = {"lr": 0.5}
    domains = ("contrast", "contrast@4")
    fresh, forgetful, lasting = (
        run(spec(method="tent", options=settings, stream="static", domains=domains, reset=reset))
        for settings, reset in (({"lr": 0.0}, "never"), (options, "domain"), (options, "never"))
    )
    # The first batch of a domain is predicted by the model as it was, if everything was forgotten.
    batches_of_a_domain = 2
    assert forgetful.running["window"][batches_of_a_domain] == fresh.running["window"][batches_of_a_domain]
    assert measured(forgetful)["metrics"] != measured(lasting)["metrics"]


def test_rounds_are_counted_one_by_one():
    source = run(spec(method="source", stream="lifelong:rounds=3"))
    assert len(source.per_round) == 3
    # Whatever order its samples come in, a plain model says the same about them.
    assert len(set(source.per_round)) == 1
    assert source.per_round[0] == source.accuracy
    assert source.metrics["samples"] == 3 * 48


def test_the_first_round_of_a_long_life_is_the_stream_that_comes_once():
    once, long = (
        run(spec(method="tent", options={"lr": 0.01}, stream=name)) for name in ("crossmix", "lifelong:rounds=2")
    )
    assert long.per_round[0] == once.accuracy == once.per_round[0]
    assert long.metrics["nll"] != once.metrics["nll"]


def test_progress_is_told_after_every_batch():
    told = []
    result = run(spec(), lambda done, accuracy: told.append((done, accuracy)))
    assert [done for done, _ in told] == [1, 2, 3]
    assert [accuracy for _, accuracy in told] == result.running["accuracy"]


def test_a_failure_keeps_the_type_and_the_message():
    config = dict(Planner().plan(spec()).config)
    record = failure(spec(), "abcd", ZeroDivisionError("no luck"), config)
    assert record.status == "failed"
    assert record.error == {"type": "ZeroDivisionError", "message": "no luck"}
    assert record.config == config
    assert Result.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"method": "fnd"}, UnknownNameError, "Did you mean 'find'"),
        ({"options": {"alpa": 1}}, UnknownNameError, "Did you mean 'alpha'"),
        ({"options": {"alpha": 2}}, OptionError, "alpha must be a number from 0 to 1"),
        ({"stream": "crossmx"}, UnknownNameError, "Did you mean 'crossmix'"),
        ({"stream": "wild:deta=1"}, UnknownNameError, "Did you mean 'delta'"),
        ({"data": "shape"}, UnknownNameError, "Did you mean 'shapes'"),
        ({"data_options": {"count": "many"}}, OptionError, "count must be a whole number"),
        ({"domains": ("fgo",)}, UnknownNameError, "has no 'fgo@5'"),
        ({"severity": 7}, UnknownNameError, "has no 'brightness@7'"),
        ({"batch_size": 64}, OptionError, "batch_size must be at most the number of samples"),
        ({"batch_size": 0}, OptionError, "batch_size must be a whole number of at least 1"),
        ({"model": "resnet-26"}, UnknownNameError, "Did you mean 'resnet26'"),
        ({"model": "resnet20", "weights": "nowhere.pt"}, OptionError, "'nowhere.pt' does not exist"),
        ({"model": f"{HERE}:four_classes"}, InputError, "model and data do not belong together"),
        ({"device": "gpu"}, OptionError, "device must be one that torch can use"),
        ({"device": "cuda:99"}, OptionError, "device must be one that torch can use"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused_with_a_reason(settings, error, message):
    with pytest.raises(error) as caught:
        run(spec(**settings))
    assert message in str(caught.value)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_precision_is_that_of_the_convolutions(precision):
    seen = set()

    def look(module, inputs):
        if isinstance(module, AdaptiveNorm):
            seen.add(str(inputs[0].dtype).removeprefix("torch."))

    hook = register_module_forward_pre_hook(look)
    try:
        result = run(spec(method="find", precision=precision))
    finally:
        hook.remove()
    assert seen == {precision}
    assert result.config["device"] == ("cpu" if precision == "float32" else "cpu, bfloat16")
    assert (result.digest == digest(method="find")) == (precision == "float32")
    assert result.spec["precision"] == precision


def test_weights_with_a_card_of_other_classes_do_not_belong_to_the_data(tmp_path):
    model = build("resnet20", num_classes=4, normalization="cifar10")
    write_weights(tmp_path / "four.safetensors", model.net.state_dict(), model.card)
    with pytest.raises(InputError, match=r"has 4 classes, but the data 'shapes-c.*' has 10"):
        Planner().plan(spec(model=str(tmp_path / "four.safetensors")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reset": "always"}, "reset must be 'never' or 'domain'"),
        ({"domains": "fog"}, "domains must be a tuple or list"),
        ({"domains": ["fog", 3]}, "domains must be a text, got 3"),
        ({"severity": "5"}, "severity must be a whole number, got"),
        ({"severity": [1, 2.5]}, "severity must be a whole number, got"),
        ({"images": 0}, "images must be a whole number of at least 1"),
        ({"images": 2.0}, "images must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"options": ["alpha"]}, "options must be names with values"),
        ({"method": None}, "method must be a text"),
        ({"sed": 1}, "Did you mean 'seed'"),
    ],
    ids=str,
)
def test_a_spec_refuses_values_of_the_wrong_kind(settings, message):
    with pytest.raises(FindTTAError) as caught:
        RunSpec.from_dict(settings)
    assert message in str(caught.value)


def test_a_spec_takes_paths_and_lists_and_can_be_written_as_json(tmp_path):
    made = RunSpec.from_dict({"weights": tmp_path, "severity": [1, 2], "domains": ["fog"]})
    assert made.weights == str(tmp_path)
    assert made.severity == (1, 2)
    assert made.domains == ("fog",)
    assert RunSpec.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="this system cannot begin the count anew"
)
def test_peak_memory_sees_what_was_freed_again():
    gc.collect()  # what other tests left must not be freed in between
    memory = PeakMemory(torch.device("cpu"))
    before = memory.read()
    with mmap.mmap(-1, 120_000_000) as block:  # new pages: a tensor may get what another test has freed
        block.write(b"1" * len(block))
    assert memory.read() > before + 100
