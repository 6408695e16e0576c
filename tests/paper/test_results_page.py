"""What the first page says of FIND against the best other method."""

import dataclasses

import pytest
from made_paper import all_setups, load, made

from findtta.bench import RunSpec
from findtta.bench.store import Store
from findtta.paper.context import Context
from findtta.paper.notes import fewer_seeds
from findtta.paper.results_page import FAILS, HOLDS, NOT_RUN, OPEN, verdicts, write_page
from findtta.paper.study import Results, stored
from made_results import made as stored_result


def judged(accuracies, **changes):
    """The verdicts on Table 7 when CIFAR-10-C alone was run, with these accuracies."""
    changes = {"network": "ResNet-26", "images": 40, **changes}
    setups = tuple(dataclasses.replace(one, **changes) for one in all_setups()[:2])
    context = Context(setups=setups, seeds=(0,), methods=("source", "tbn", "find"))
    item = load("resnet26")
    specs = [spec for spec in item.asked(context) if isinstance(spec, RunSpec)]
    pairs = [(spec, made(spec, accuracies[spec.method])) for spec in specs if spec.data == "cifar10-c"]
    return {one.where: one for one in verdicts([item], context, Results(pairs))}


@pytest.mark.parametrize(
    ("accuracies", "verdict", "other"),
    [
        ({"source": 20.0, "tbn": 40.0, "find": 90.0}, HOLDS, "TBN"),
        ({"source": 90.0, "tbn": 40.0, "find": 20.0}, FAILS, "Source"),
        ({"source": 50.0, "tbn": 20.0, "find": 50.0}, OPEN, "Source"),
    ],
)
def test_a_verdict_follows_the_interval_of_the_difference(accuracies, verdict, other):
    found = judged(accuracies)
    here = found["CIFAR10-C, ResNet-26, CrossMix"]
    assert here.verdict == verdict
    assert here.ours.endswith(f"over {other}")
    assert found["CIFAR100-C, ResNet-26, CrossMix"].verdict == NOT_RUN


def test_a_method_that_saw_fewer_images_is_not_compared():
    found = judged({"source": 20.0, "tbn": 95.0, "find": 90.0}, images_of={"tbn": 10})
    here = found["CIFAR10-C, ResNet-26, CrossMix"]
    assert (here.verdict, here.ours.split()[-1]) == (HOLDS, "Source")


def test_a_stream_may_have_fewer_images():
    (setup, *_) = (dataclasses.replace(one, images=40, images_of={"random": 10, "tbn": 5}) for one in all_setups())
    context = Context(setups=(setup,), seeds=(0,), methods=("tbn", "find"))
    asked = [spec for spec in load("main-resnet50").asked(context) if isinstance(spec, RunSpec)]
    images = {(spec.method, spec.stream.partition(":")[0]): spec.images for spec in asked}
    assert (images["find", "crossmix"], images["find", "random"]) == (40, 10)
    assert {images["tbn", stream] for stream in ("crossmix", "random")} == {5}
    (few,) = {spec.images for spec in load("main-resnet50").asked(dataclasses.replace(context, images=3))}
    assert few == 3


def test_methods_with_fewer_seeds_are_named():
    setups = tuple(dataclasses.replace(one, images=40) for one in all_setups()[:1])
    context = Context(setups=setups, seeds=(0, 1), methods=("source", "tbn", "find"))
    specs = [spec for spec in load("resnet26").asked(context) if isinstance(spec, RunSpec)]
    all_runs = Results((spec, made(spec)) for spec in specs)
    some = Results((spec, made(spec)) for spec in specs if spec.method != "tbn" or spec.seed == 1)
    assert fewer_seeds(context, all_runs) == []
    assert fewer_seeds(context, some) == ["crossmix of cifar10-c, seed 1 alone: TBN."]
    assert "crossmix of cifar10-c, seed 1 alone: TBN." in load("resnet26").document(context, some).notes
    first = Results((spec, made(spec)) for spec in specs if spec.seed == 0)
    assert fewer_seeds(context, first) == ["crossmix of cifar10-c, seed 0 alone: all."]


def test_stored_runs_of_earlier_weights_are_left_out(tmp_path):
    store = Store(tmp_path)
    for weights, day, method, data in (
        ("old", 1, "source", "shapes"),
        ("old", 1, "find", "shapes"),
        ("new", 2, "source", "shapes"),
        ("new", 2, "tbn", "shapes"),
        ("old", 1, "source", "cifar10-c"),
    ):
        store.put(stored_result(method, weights=weights, data=data, started=day))
    found = {(one.spec["data"], one.spec["method"], one.config["model"]["weights"]) for one in stored(store).runs}
    assert found == {("shapes", "source", "new"), ("shapes", "tbn", "new"), ("cifar10-c", "source", "old")}


def test_the_first_page_says_what_each_setup_was_run_with(tmp_path):
    first, second, third = (dataclasses.replace(one, network="ResNet-26", images=40) for one in all_setups())
    context = Context(setups=(first, second, third), seeds=(0, 1), methods=("source", "find"))
    item = load("resnet26")
    specs = [spec for spec in item.asked(context) if isinstance(spec, RunSpec)]
    pairs = [
        (spec, made(spec))
        for spec in specs
        if spec.data == first.data or (spec.data, spec.seed) == (second.data, 1)
    ]
    results = Results(
        pair for pair in pairs if (pair[0].data, pair[0].method, pair[0].seed) != (first.data, "find", 1)
    )
    write_page(tmp_path / "page.md", tmp_path, [item], [], context, results)
    lines = [line for line in (tmp_path / "page.md").read_text().splitlines() if "in the place of" in line]
    assert [line.rpartition("; ")[2] for line in lines] == ["seeds 0, 1, some methods fewer.", "seed 1."]


def test_notes_of_a_setup_with_weights_hold_for_runs_of_an_archive(tmp_path):
    weights = str(tmp_path / "net.pt")
    setup = dataclasses.replace(
        all_setups()[0], network="ResNet-26", weights=weights, images=40, precision="bfloat16"
    )
    context = Context(setups=(setup,), seeds=(0,), methods=("source", "find"))
    specs = [spec for spec in load("resnet26").asked(context) if isinstance(spec, RunSpec)]
    archived = [dataclasses.replace(spec, weights="net.pt") for spec in specs]
    notes = load("resnet26").document(context, Results((spec, made(spec)) for spec in archived)).notes
    assert "CIFAR10-C: runs in bfloat16, statistics in float32." in notes
