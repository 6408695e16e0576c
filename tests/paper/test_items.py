"""Items: what they ask for, what they make of made-up results, and how what they ask for is computed and kept."""

import dataclasses
import json
import statistics

import pytest
from made_paper import (
    all_setups,
    failed,
    load,
    made,
    probes_of,
    results_for,
    specs_of,
    tiny_context,
    tiny_setup,
)

from findtta.bench import Planner, RunSpec, run
from findtta.bench.store import Store
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.errors import UnknownNameError
from findtta.intervals import interval
from findtta.paper import items, numbers, study
from findtta.paper.accuracy_tables import claims_about, stream_of
from findtta.paper.context import Context, Setup, is_dataset
from findtta.paper.items import Item
from findtta.paper.measure import measure_groups, measure_memory, measure_times
from findtta.paper.study import Probe, Reading, Results, Study, gather, take
from findtta.tables import Cell

GROUPS = items.groups()


def table(document, start=""):
    return next(table for table in document.tables if table.title.startswith(start))


def cell(table, row, column):
    titles = [known.title for known in table.columns]
    cells = {known.titles[0]: known.cells for known in table.rows}
    return cells[row][titles.index(column)]


# The catalog


def test_every_printed_table_has_an_item_in_the_order_of_the_paper():
    items = [load(id) for id in GROUPS["tables"]]
    assert [item.id for item in items] == list(numbers.tables())
    assert [item.alias for item in items] == [f"table{number}" for number in range(1, 14)]


def test_every_item_asks_for_something_and_makes_a_document_of_nothing():
    context = Context.quickly()
    for id, item in items.all_items().items():
        assert (item.id, bool(item.title)) == (id, True)
        assert specs_of(item, context) or probes_of(item, context) or id in ("threshold-more",)
        document = item.document(Context(setups=()), Results())
        assert document.id == id
        assert document.notes
        cells = [of_cell for part in document.tables for row in part.rows for of_cell in row.cells]
        assert all(of_cell.mean is None for of_cell in cells)


def test_names_of_items():
    assert [item.id for item in items.find("wild")] == ["wild-0.1", "wild-0.01", "wild-0.005"]
    assert [item.id for item in items.find("table13")] == ["lifelong-3"]
    assert [item.id for item in items.find("all")] == list(GROUPS["all"])
    with pytest.raises(UnknownNameError, match=r"Did you mean .*'main-resnet50'"):
        items.find("main-resnet5")


# Setups


def test_setups_stand_for_datasets_and_networks():
    plain, named = Setup(), Setup(model="resnet26", network="ResNet-26", weights="w.pt")
    transformer = Setup(model="shapes-efficientvit_m0")
    context = Context(setups=(plain, named, transformer))
    assert context.find("cifar10-c", "ResNet-50") is plain
    assert context.find("cifar10-c", "ResNet-26") is named
    assert context.find("cifar10-c", "EfficientViT-M5") is transformer
    assert context.find("imagenet-c") is None
    for settings in ({"stands_for": "cifar"}, {"network": "ResNet-5"}):
        with pytest.raises(UnknownNameError, match=r"must be one of .* Did you mean"):
            Setup(**settings)


def test_the_context_wins_over_the_setup():
    setup = Setup(images=5)
    assert Context(setups=(setup,)).spec(setup).images == 5
    assert Context(setups=(setup,), images=7).spec(setup).images == 7
    assert [spec.seed for spec in Context(setups=(setup,), seeds=(4, 9)).specs(setup)] == [4, 9]
    assert (Context.quickly().quick, len(Context.quickly().seeds)) == (True, 1)
    assert Context.quickly(images=3).images == 3


@pytest.mark.parametrize(
    ("name", "dataset", "expected"),
    [
        ("cifar10-c", "cifar10-c", True),
        ("data/CIFAR-10-C", "cifar10-c", True),
        ("cifar100_test-c (generated)", "cifar100-c", True),
        ("CIFAR-100-C", "cifar10-c", False),
        ("imagenet_val2000_224_q90-c (generated)", "imagenet-c", True),
        ("shapes", "cifar10-c", False),
    ],
)
def test_data_are_known_by_their_names(name, dataset, expected):
    assert is_dataset(name, dataset) is expected


# Tables of accuracies


def test_the_main_table_asks_for_every_method_stream_and_seed():
    specs = specs_of(load("main-resnet50"), Context())
    assert {spec.stream for spec in specs} == {"crossmix", "random:variant=authors", "shuffle:variant=authors"}
    assert {spec.method for spec in specs} == set(numbers.METHODS)
    # Methods without state are run once for Random and Shuffle.
    once = {spec.method for spec in specs} - {spec.method for spec in specs if spec.stream.startswith("shuffle")}
    assert once == {"source", "tbn", "alpha-bn", "iabn", "find"}
    assert len(specs) == 3 * (13 * 3 - len(once))
    assert {(spec.data, spec.model, spec.severity, spec.batch_size) for spec in specs} == {
        ("shapes", "shapes-resnet26", None, 64)
    }
    with_all = specs_of(load("main-resnet50"), Context(setups=all_setups()))
    assert len(with_all) == 3 * len(specs)


@pytest.mark.parametrize(
    ("method", "scenario", "settings", "run_in"),
    [
        ("find", "shuffle", {}, "random:variant=authors"),
        ("tbn", "shuffle", {}, "random:variant=authors"),
        ("source", "static", {}, "crossmix"),
        ("iabn", "static", {}, "crossmix"),
    ],
)
def test_a_method_is_run_once_for_streams_that_it_cannot_tell_apart(method, scenario, settings, run_in):
    shared = {"method": method, "images": 20, "domains": ("fog", "snow", "contrast"), "batch_size": 16}
    own = run(RunSpec(stream=stream_of(scenario, **settings), **shared))
    same = run(RunSpec(stream=stream_of(scenario, method, **settings), **shared))
    assert same.spec["stream"] == run_in
    assert own.config["stream"]["digest"] != same.config["stream"]["digest"]
    assert own.per_domain == same.per_domain
    # Sample by sample, too, but for the order of the two times that Random shows an image.
    assert interval([own.scores.minus(same.scores)]).margin == 0


@pytest.mark.parametrize("scenario", ["shuffle", "static", "wild"])
def test_a_method_that_can_tell_is_run_in_the_stream_itself(scenario):
    stream = stream_of(scenario, delta=0.1)
    assert stream_of(scenario, "find-star", delta=0.1) == stream
    assert (stream_of(scenario, "find", delta=0.1) == stream) == (scenario != "shuffle")
    assert stream_of(scenario, "note", delta=0.1) == stream  # by single images, but it learns


def test_precision_and_compiling_of_a_setup_are_those_of_its_runs():
    setup = Setup(compile=True, precision="bfloat16")
    specs = specs_of(load("main-resnet50"), Context(setups=(setup,)))
    assert {(spec.compile, spec.precision) for spec in specs} == {(True, "bfloat16")}
    # Costs are those of the model as it is.
    probes = probes_of(load("efficiency"), Context(setups=(setup,)))
    assert {(probe.spec.compile, probe.spec.precision) for probe in probes} == {(False, "float32")}


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("main-resnet50", {"use_iabn": False}),  # its NOTE is far above its IABN on CIFAR-100-C
        ("resnet26", {"use_iabn": False}),
        ("domains", {"use_iabn": False}),
        ("wild-0.1", {}),
        ("lifelong-2", {}),
        ("static", {}),  # not a row of the paper's table
    ],
)
def test_note_runs_with_the_options_that_fit_the_numbers_of_the_table(id, options):
    rows = [spec.options for spec in specs_of(load(id), Context()) if spec.method == "note"]
    assert rows
    assert all(dict(row) == options for row in rows)


@pytest.mark.parametrize(
    ("id", "streams"),
    [
        ("static", {"static", "crossmix"}),  # crossmix for methods that look at single images
        ("wild-0.005", {"wild:delta=0.005,variant=authors-random"}),
        ("lifelong-3", {"lifelong:rounds=3"}),
        ("ablation", {"crossmix"}),
    ],
)
def test_tables_ask_for_their_streams(id, streams):
    assert {spec.stream for spec in specs_of(load(id), Context())} == streams


def test_fewer_domains_are_the_first_ones():
    specs = specs_of(load("domains"), Context(methods=("tbn",), seeds=(0,)))
    assert [spec.domains for spec in specs] == [MAIN_CORRUPTIONS[:count] for count in (6, 9, 12)]


def test_the_ablation_is_source_and_find_without_it():
    specs = specs_of(load("ablation"), Context(seeds=(0,)))
    assert [(spec.method, spec.options) for spec in specs] == [
        ("source", {}),
        ("find", {"alpha": 0.0}),
        ("find", {}),
        ("find-star", {}),
    ]


def test_cells_have_the_papers_number_ours_and_the_difference():
    item, context = load("main-resnet50"), Context()
    document = item.document(context, results_for(item, context, lambda spec: 60.0 + spec.seed))
    found = cell(table(document, "CrossMix"), "FIND", "CIFAR10-C (shapes)")
    assert found.paper == numbers.value("main-resnet50", "find", "crossmix/cifar10-c") == 71.54
    assert found.spread == 0.2
    assert (found.values, found.mean, found.std) == ({0: 60.0, 1: 61.0, 2: 62.0}, 61.0, 1.0)
    assert found.difference == pytest.approx(61.0 - 71.54)
    titles = [part.title.partition(",")[0] for part in document.tables[:6]]
    assert titles == ["CrossMix", "CrossMix", "Random", "Random", "Shuffle", "Shuffle"]


def test_gains_of_find_are_paired_by_sample():
    item, context = load("main-resnet50"), Context()
    document = item.document(context, results_for(item, context, lambda spec: 60.0 + (spec.method == "find")))
    assert "gain of FIND over each in points; 95% intervals, paired by sample" in document.tables[1].title
    gain = cell(document.tables[1], "TENT", "CIFAR10-C (shapes)")
    assert gain.mean == pytest.approx(1.0)
    assert 0 < gain.margin < cell(document.tables[0], "TENT", "CIFAR10-C (shapes)").margin
    assert gain.signed_text(2) in document.text()


def test_averages_need_all_their_datasets():
    item = load("main-resnet50")
    assert "average" not in [column.title for column in table(item.document(Context(), Results())).columns]
    context = Context(setups=all_setups(), seeds=(0, 1))
    worth = {"cifar10-c": 10.0, "cifar100-c": 20.0, "imagenet-c": 60.0}
    document = item.document(context, results_for(item, context, lambda spec: worth[spec.data] + spec.seed))
    average = cell(table(document, "CrossMix"), "TENT", "average")
    assert (average.paper, average.values) == (37.60, {0: 30.0, 1: 31.0})
    assert cell(table(document, "Accuracy in the three"), "TENT", "average").paper == 42.72


def test_methods_and_datasets_that_the_table_lacks_are_ours_alone():
    item, context = load("static"), Context()
    document = item.document(context, results_for(item, context))
    (main, *_) = document.tables
    assert [(column.title, column.kind) for column in main.columns] == [
        ("ImageNet-C", "compared"),
        ("CIFAR10-C (shapes)", "ours"),
    ]
    assert cell(main, "Source", "ImageNet-C") == Cell()
    assert cell(main, "Source", "CIFAR10-C (shapes)").mean == 50.0
    assert cell(main, "FIND*", "ImageNet-C").paper == 32.10
    assert "Not in the paper's table: Source, NOTE, IABN." in document.notes


def test_only_the_methods_asked_for():
    item, context = load("resnet26"), Context(methods=("find", "tbn"))
    document = item.document(context, results_for(item, context))
    assert [row.titles[0] for row in document.tables[0].rows] == ["TBN", "FIND"]
    assert any(note.startswith("Left out here: Source, TENT,") for note in document.notes)


def test_failures_are_in_the_cell_and_in_the_notes():
    item, context = load("resnet26"), Context(seeds=(0, 1))
    pairs = [
        (spec, failed(spec) if spec.method == "vida" or (spec.method, spec.seed) == ("sar", 1) else made(spec))
        for spec in specs_of(item, context)
    ]
    document = item.document(context, Results(pairs))
    name = "CIFAR10-C (shapes)"
    assert cell(document.tables[0], "ViDA", name) == Cell(paper=65.80, text="failed")
    partly = cell(document.tables[0], "SAR", name)
    assert (partly.paper, partly.values, partly.text) == (58.70, {0: 50.0}, "failed")
    (note,) = [note for note in document.notes if note.startswith("Failed")]
    assert "vida on crossmix of shapes" in note
    assert note.endswith("OSError: no luck")


def test_collapsed_predictions_are_told():
    item, context = load("resnet26"), Context(seeds=(0,), methods=("tent",))
    pairs = [(spec, made(spec, collapse={"batch": 7, "reason": "one class"})) for spec in specs_of(item, context)]
    notes = item.document(context, Results(pairs)).notes
    assert "The predictions of TENT collapsed: crossmix, seed 0, batch 7." in notes


def test_rounds_of_a_long_stream_are_shown_one_by_one():
    item, context = load("lifelong-3"), Context(seeds=(0,))
    document = item.document(context, results_for(item, context, lambda spec: 50.0))
    rounds = table(document, "CIFAR10-C (shapes), accuracy of every round")
    assert [cell(rounds, "TENT", f"round {number}").mean for number in (1, 2, 3)] == [52.0, 50.0, 48.0]
    assert [cell(rounds, "TENT", f"round {number}").paper for number in (1, 2, 3)] == [None, None, 55.49]
    assert cell(document.tables[0], "TENT", "CIFAR10-C (shapes)").mean == 50.0


# Claims


def test_claims_are_computed_from_our_cells():
    item, context = load("main-resnet50"), Context(setups=all_setups(), seeds=(0, 1))
    worth = {"find": 47.0, "rotta": 30.0}
    results = results_for(item, context, lambda spec: worth.get(spec.method, 40.0) + spec.seed)
    claims = table(item.document(context, results), "What the paper's text says")
    found = cell(claims, "above RoTTA, the worst, in CrossMix (points)", "by the tables")
    assert found.paper == pytest.approx(16.96)
    assert found.values == {0: 17.0, 1: 17.0}


def test_claims_compare_the_same_cells_of_the_paper():
    item, context = load("main-resnet50"), Context(seeds=(0,))
    claims = table(item.document(context, results_for(item, context)), "What the paper's text says")
    found = cell(claims, "above RoTTA, the worst, in CrossMix (points)", "by the tables")
    assert found.paper == pytest.approx(71.54 - 43.70)  # CIFAR10-C alone
    assert found.values == {0: 0.0}


def test_every_claim_about_a_table_is_shown_once():
    shown = [claim.id for id in GROUPS["tables"] for claim in claims_about(id)]
    assert sorted(shown) == sorted(claim.id for claim in numbers.claims().values() if claim.left is not None)


# Notes and provenance


def test_notes_say_where_the_setting_differs():
    item = load("main-resnet50")
    context = Context.quickly(batch_size=32)
    notes = " ".join(item.document(context, results_for(item, context)).notes)
    for expected in (
        "Rough numbers (--quick)",
        "ANOTHER DATASET: shapes-c (generated) stands in for CIFAR10-C.",
        "128 images per domain; the paper: 10,000.",
        "another model, shapes-resnet26 (weights 0123456789ab), in place of ResNet-50",
        "One seed; the paper has 3.",
        "Batches of 32; the paper has 64.",
        "(variant 'authors')",
        "No setup stands for CIFAR100-C with ResNet-50, ImageNet-C with ResNet-50",
        "The paper's FIND in average is printed as 47.87, but its cells give 47.99.",
    ):
        assert expected in notes


def test_notes_are_silent_where_it_does_not():
    item, context = load("resnet26"), Context(setups=all_setups(network="ResNet-26", model="resnet26"))
    notes = " ".join(item.document(context, results_for(item, context)).notes)
    for unexpected in (
        "ANOTHER",
        "another",
        "generated",
        "images per domain",
        "seed",
        "Batches",
        "No setup",
        "--quick",
    ):
        assert unexpected not in notes
    assert "CIFAR10-C: ResNet-26 with our weights 0123456789ab; the paper's are not public." in notes


def test_a_known_network_is_called_what_it_is_whatever_it_stands_for():
    item, context = load("resnet26"), Context(setups=all_setups(network="ResNet-26", model="resnet20"))
    notes = " ".join(item.document(context, results_for(item, context)).notes)
    assert "another model, resnet20 (weights 0123456789ab), in place of ResNet-26" in notes


def test_a_stream_as_short_as_the_cold_start_is_told():
    item, context = load("ablation"), Context(seeds=(0,))
    results = results_for(item, context)
    told = "Some streams are no longer than the cold start of FIND*, during which it is FIND."
    assert told not in item.document(context, results).notes
    for result in results.runs:
        result.config["stream"]["batches"] = 10
    assert told in item.document(context, results).notes


def test_provenance_has_all_that_the_numbers_come_from():
    item, context = load("ablation"), Context(seeds=(0, 1), command="findtta paper ablation")
    record = item.document(context, results_for(item, context)).provenance
    assert json.loads(json.dumps(record)) == record
    assert (record["command"], record["seeds"], record["batch_size"]) == ("findtta paper ablation", [0, 1], 64)
    (setup,) = record["setups"]
    assert (setup["data"], setup["weights"], setup["images_per_domain"]) == (
        "shapes-c (generated)",
        "0123456789abcdef",
        [256],
    )
    assert [(stream["scenario"], stream["seed"]) for stream in record["streams"]] == [
        ("crossmix", 0),
        ("crossmix", 1),
    ]
    assert len(record["runs"]) == 8


# Time and memory


def cost_results(item, context):
    times, *memory = probes_of(item, context)
    candidates = {
        name: {"ratio": 2.0 + index, "seconds": 0.01 * (2 + index), "forward": 1, "backward": 0}
        for index, name in enumerate(times.settings["candidates"])
    }
    readings = [(times, reading(times, {"candidates": candidates}))]
    readings += [(probe, reading(probe, {"megabytes": 300.0 + index})) for index, probe in enumerate(memory)]
    return Results(readings)


def reading(probe, value):
    return Reading(digest=str(hash(str(probe))), status="done", probe=probe.to_dict(), value=value)


def test_efficiency_is_told_as_ratios():
    item, context = load("efficiency"), Context(seeds=(0,), methods=("tbn", "find"))
    assert list(probes_of(item, context)[0].settings["candidates"]) == ["source", "tbn", "find"]
    document = item.document(context, cost_results(item, context))
    (main, claims) = document.tables
    assert cell(main, "FIND", "s per batch, paper").paper == 0.21
    assert cell(main, "FIND", "times Source").mean == 4.0
    over_tbn = cell(main, "FIND", "times TBN")
    assert (over_tbn.paper, over_tbn.mean) == (pytest.approx(3.0), pytest.approx(4.0 / 3.0))
    assert cell(main, "FIND", "MB above Source").mean == 2.0
    assert cell(main, "FIND", "passes").text == "1 + 0"
    assert any("in turn on the same batches" in note for note in document.notes)
    assert all(row.cells[1].mean is None for row in claims.rows)  # ViDA and the others were not measured


def test_efficiency_has_methods_that_the_paper_lacks():
    item, context = load("efficiency"), Context(seeds=(0,), methods=("find", "find-soft"))
    (main, _) = item.document(context, cost_results(item, context)).tables
    assert cell(main, "find-soft", "s per batch, paper").paper is None
    assert cell(main, "find-soft", "times Source").paper is None
    assert cell(main, "FIND", "s per batch, paper").paper == 0.21


def test_setups_that_nothing_was_measured_with_are_left_out():
    item, context = load("efficiency"), Context(seeds=(0,), setups=all_setups()[:2], methods=("tbn", "find"))
    measured = Context(seeds=(0,), setups=all_setups()[:1], methods=("tbn", "find"))
    assert len(item.tables(Study(context, cost_results(item, measured)))) == 1
    assert len(item.tables(Study(context))) == 2


def test_what_cannot_be_timed_is_told():
    item, context = load("clustering"), Context(seeds=(0,))
    times, *_ = probes_of(item, context)
    candidates = {"find": {"ratio": 1.0, "seconds": 1.0}, "kmeans": {"error": "MissingExtraError: no sklearn"}}
    results = results_for(item, context).also(Results([(times, reading(times, {"candidates": candidates}))]))
    document = item.document(context, results)
    assert cell(document.tables[0], "K-means", "s per batch, here").text == "failed"
    assert "Not timed: kmeans. MissingExtraError: no sklearn" in document.notes
    assert cell(document.tables[0], "K-means", "groups").mean == 6.0
    assert [row.titles[0] for row in document.tables[1].rows] == [
        "HDBSCAN",
        "Agglomerative",
        "Birch",
        "RccCluster",
        "DBSCAN",
        "K-means",
    ]


# Controls


def test_what_find_has_over_other_groups():
    item, context = load("control-groupings"), Context(seeds=(0, 1))
    worth = {"random": 55.0, "instance": 62.0, None: 60.0}
    results = results_for(item, context, lambda spec: worth.get(spec.options.get("partitioner"), 50.0) + spec.seed)
    accuracies, gains = item.document(context, results).tables
    assert cell(accuracies, "FIND", "CrossMix").paper == 71.54
    assert cell(gains, "random groups, sizes as FIND", "Static").values == {0: 5.0, 1: 5.0}
    assert cell(gains, "single images, alpha as FIND", "CrossMix").mean == -2.0
    seeds = {
        (spec.seed, spec.options["partitioner_options"]["seed"])
        for spec in specs_of(item, context)
        if spec.options.get("partitioner") == "random"
    }
    assert seeds == {(0, 0), (1, 1)}


def test_clean_streams_are_compared_with_the_source_model():
    item, context = load("control-clean"), Context(seeds=(0,), methods=("find",))
    worth = {"source": 90.0, "find": 88.5}
    (main,) = item.document(context, results_for(item, context, lambda spec: worth[spec.method])).tables
    find = main.rows[[row.titles[0] for row in main.rows].index("FIND")]
    assert [of_cell.mean for of_cell in find.cells] == [88.5, -1.5] * 3
    assert {(spec.stream, spec.domains, spec.images) for spec in specs_of(item, context)} == {
        ("crossmix", ("clean",), 2560),
        ("mostly-clean:fraction=0.9", None, 2560),
        ("crossmix", None, 256),
    }


def test_groups_are_counted_where_there_is_nothing_to_find():
    planner, context = Planner(), tiny_context()
    spec = context.spec(context.setups[0], stream="static", batch_size=12, domains=("fog", "snow"))
    found = measure_groups(planner.plan(spec), {"batches": 3})
    assert (found["batches"], found["domains"], len(found["layers"])) == (3, 1.0, 2)
    for layer in found["layers"]:
        for kind in ("real", "shuffled", "noise"):
            assert 1 <= layer[f"groups_{kind}"]["mean"] <= 6
        assert layer["purity_domain"] == {"mean": 1.0, "std": 0.0}
        assert layer["purity_domain_chance"] == {"mean": 1.0, "std": 0.0}
        assert 0 < layer["purity_class"]["mean"] <= 1


def test_the_group_controls_share_a_measurement_and_show_it_by_thirds():
    counts, agreement = load("control-group-counts"), load("control-agreement")
    context = Context(seeds=(0,))
    shared = probes_of(agreement, context)[0]
    assert shared.to_dict() in [probe.to_dict() for probe in probes_of(counts, context)]
    measures = [f"groups_{kind}" for kind in ("real", "shuffled", "noise")]
    measures += [
        f"{kind}_{truth}{end}"
        for kind in ("purity", "nmi")
        for truth in ("domain", "class")
        for end in ("", "_chance")
    ]
    layers = [{"name": str(n), **{key: {"mean": n, "std": 0.0} for key in measures}} for n in range(6)]
    results = Results(
        [(probe, reading(probe, {"layers": layers, "domains": 14.8})) for probe in probes_of(counts, context)]
    )
    sizes, streams = counts.document(context, results).tables
    assert [row.cells[1].mean for row in sizes.rows] == [0.5, 2.5, 4.5] * 3
    assert [row.cells[0].text for row in sizes.rows[3:6]] == ["slightly over 15", "about 15", "about 10"]
    assert streams.columns[0].title == "CrossMix, 14.8 domains a batch"
    assert [row.cells[0].mean for row in agreement.document(context, results).tables[0].rows] == [0.5, 2.5, 4.5]


# Computing


class OneRun(Item):
    """Two runs that are the same one, and a measurement."""

    def tables(self, study):
        (setup,) = study.context.setups
        for images in (None, 24):
            study.cell(setup, stream="static", domains=("fog",), images=images)
        study.reading("calls", setup, {"step": 2}, stream="static", domains=("fog",))
        return []


def one_run():
    return OneRun(id="one", title="one run", kind="control")


@pytest.fixture
def calls(monkeypatch):
    found = []

    def count_calls(plan, settings):
        found.append(plan.digest)
        if settings["step"] == 0:
            raise ZeroDivisionError("no luck")
        return {"calls": settings["step"], "domains": plan.dataset.domains}

    monkeypatch.setattr(study, "MEASUREMENTS", {"calls": count_calls})
    return found


def test_what_is_there_is_not_computed_again(tmp_path, calls):
    item, context, store = one_run(), tiny_context(), Store(tmp_path)
    steps = []
    results = gather(
        [*item.asked(context), *item.asked(context)], store, progress=lambda *step: steps.append(step)
    )
    (first, second) = (results.get(spec) for spec in specs_of(item, context))
    assert first == second
    assert len(store.digests()) == 1
    (probe,) = probes_of(item, context)
    assert results.get(probe).value == {"calls": 2, "domains": ["fog@5"]}
    assert any(what.startswith("find on static of shapes") for what, _, _ in steps)
    stamp = next(tmp_path.glob("*.json")).stat().st_mtime_ns
    again = gather(item.asked(context), store)
    assert next(tmp_path.glob("*.json")).stat().st_mtime_ns == stamp
    assert again.get(probe) == results.get(probe)
    assert len(calls) == 1


def test_a_failed_probe_is_kept_and_can_be_tried_again(tmp_path, calls):
    context, store, planner = tiny_context(), Store(tmp_path), Planner()
    spec = specs_of(one_run(), context)[0]
    probe = Probe(kind="calls", spec=spec, settings={"step": 0})
    failure = take(probe, store, planner)
    assert (failure.status, failure.error) == ("failed", {"type": "ZeroDivisionError", "message": "no luck"})
    assert take(probe, store, planner) == failure
    take(probe, store, planner, retry_failed=True)
    assert len(calls) == 2
    (path,) = (tmp_path / "probes").glob("*.json")
    path.write_text("{")
    assert take(probe, store, planner).status == "failed"
    assert len(calls) == 3


def test_what_cannot_be_planned_is_a_failure_and_is_not_kept(tmp_path, calls):
    item, store = one_run(), Store(tmp_path)
    context = tiny_context(setups=(tiny_setup(model="resnet26", weights="nowhere.pt"),))
    results = gather(item.asked(context), store)
    for result in results.runs:
        assert result.status == "failed"
        assert "nowhere.pt" in result.error["message"]
    assert len(results.runs) == 2
    assert results.readings[0].status == "failed"
    assert store.digests() == []


def test_real_runs_fill_a_real_table(tmp_path):
    context = tiny_context(methods=("source", "find"), batch_size=32)
    item = load("resnet26")
    document = item.document(context, gather(item.asked(context), Store(tmp_path)))
    found = {row.titles[0]: row.cells[0] for row in document.tables[0].rows}
    assert list(found) == ["Source", "FIND"]
    for of_row in found.values():
        assert 0 <= of_row.mean <= 100
        assert of_row.difference == pytest.approx(statistics.fmean(of_row.values.values()) - of_row.paper)


def test_times_are_ratios_to_the_source():
    context = tiny_context()
    spec = context.spec(context.setups[0], method="source", stream="crossmix", domains=("fog", "snow"))
    candidates = {
        "source": {"method": "source", "options": {}},
        "star": {"method": "find-star", "options": {"cold_start": 2}},
        "wrong": {"method": "find", "options": {"partitioner": "nonsense"}},
    }
    found = measure_times(Planner().plan(spec), {"batches": 3, "candidates": candidates})
    assert found["batches"] == 3
    assert found["candidates"]["source"]["ratio"] == 1.0
    assert found["candidates"]["star"]["ratio"] > 0
    assert found["candidates"]["star"]["forward"] == 1
    assert found["candidates"]["wrong"]["error"].startswith("UnknownNameError: ")


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own():
    context = tiny_context()
    spec = context.spec(context.setups[0], method="tbn", stream="crossmix", domains=("fog", "snow"))
    found = measure_memory(Planner().plan(spec), {})
    assert 50 < found["megabytes"] < 5000


def test_readings_survive_json():
    probe = Probe(kind="a:b", spec=tiny_context().spec(tiny_setup()), settings={"x": 1})
    one = reading(probe, {"y": [1.5]})
    assert Reading(**json.loads(json.dumps(dataclasses.asdict(one)))) == one


def test_methods_that_the_paper_lacks_get_rows_of_their_own():
    item, context = load("static"), Context(seeds=(0,), methods=("find-soft", "find"))
    assert [row.method for row in item.rows(context)] == ["find", "find-soft"]
    assert not item.rows(context)[1].values
    assert {spec.method for spec in specs_of(item, context)} == {"find", "find-soft"}
    assert [row.method for row in load("ablation").rows(context)].count("find-soft") == 0
