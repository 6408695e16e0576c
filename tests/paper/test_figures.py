"""Figures: what they ask for, what they draw of made-up results, and what their measurements give."""

import base64
import dataclasses
import io
import json

import matplotlib.container
import matplotlib.figure
import numpy as np
import pytest
import torch
from made_paper import all_setups, digest, failed, load, made, probes_of, specs_of, tiny_context
from PIL import Image

from findtta.bench import Planner
from findtta.bench.store import Store
from findtta.data.dataset import MAIN_CORRUPTIONS, SEVERITIES, domain_name
from findtta.intervals import interval
from findtta.paper import items, numbers
from findtta.paper.context import Context
from findtta.paper.document import picture
from findtta.paper.feature_figures import CORRUPTIONS
from findtta.paper.measure import MEASUREMENTS, distances, neighbour_agreement, watched_features
from findtta.paper.numbers import METHODS
from findtta.paper.study import Probe, Reading, Results, take
from findtta.paper.sweep_figures import DOMAIN_COUNTS, mixtures
from findtta.plots import LOOKS, Panel, Series

FIGURES = items.groups()["figures"]

QUICK = Context.quickly()
LAYERS = [
    {"name": f"norm{place}", "groups_mean": 15.0 - place, "groups_std": 1.0 + place, "score": place / 3}
    for place in range(4)
]


def made_value(probe):
    """What a probe could have given."""
    name = probe.kind
    if name == "times":
        names = probe.settings["candidates"]
        return {"candidates": {one: {"ratio": 1.0 + place / 10} for place, one in enumerate(names)}}
    if name == "groups":
        return {"layers": [{"groups_noise": {"mean": 16.0, "std": 1.0}} for _ in LAYERS]}
    if name == "gradients":
        return {"steps": [1, 2, 4], "norms": [0.5, 0.25, 0.125]}
    if name == "distances":
        return {
            "layers": ["norm"],
            "domains": {
                domain_name(kind, level): {
                    "samples": 9,
                    "accuracy": 90.0 - level,
                    "l2": 4.0 - level,
                    "cosine": 0.1,
                }
                for kind in CORRUPTIONS
                for level in SEVERITIES
            },
        }
    if name == "map":
        return {
            "layer": "norm",
            "index": 3,
            "layers": 4,
            "x": [0.0, 1.0, 2.0],
            "y": [2.0, 1.0, 0.0],
            "domain": ["fog@5", "snow@5", "fog@5"],
            "class": ["star", "star", "ring"],
            "agreement": {kind: {"same": 50.0, "chance": 10.0} for kind in ("domain", "class")},
        }
    if name == "shares":
        return {
            "title": "2 batches",
            "domains": ["fog@5", "snow@5"],
            "edges": [0, 1, 2],
            "shares": [[1, 0], [0.5, 0.5]],
        }
    assert name == "sheet"
    return {"domains": ["fog@5"], "png": made_png()}


def made_png():
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 30, 30)).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def reading(probe, **changes):
    fields = {
        "digest": digest(probe.to_dict()),
        "status": "done",
        "probe": probe.to_dict(),
        "config": made(probe.spec).config,
        "environment": {"system": "Linux x86_64"},
    }
    return Reading(**{**fields, **({"value": made_value(probe)} if "status" not in changes else {}), **changes})


def broken_reading(probe):
    return reading(probe, status="failed", error={"type": "OSError", "message": "no luck"})


def made_results(item, context, accuracy=lambda spec: 50.0 + spec.seed):
    return Results(
        [
            *((spec, made(spec, accuracy(spec), layers=LAYERS)) for spec in specs_of(item, context)),
            *((probe, reading(probe)) for probe in probes_of(item, context)),
        ]
    )


def drawn(picture):
    figure = matplotlib.figure.Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    return figure


def panels_of(document):
    return [panel for one in document.pictures for panel in one.data["panels"]]


def series(panel, name):
    return next(one for one in panel["series"] if one["name"] == name)


PLOTTED = [id for id in FIGURES if id not in ("corruptions", "wings", "scenarios")]


# The catalog


def test_every_figure_of_the_paper_that_shows_something_measured_or_real_has_an_item():
    wanted = [id for id, figure in numbers.figures().items() if figure.kind != "drawing" or id == "scenarios"]
    assert [*wanted, "alpha"] == list(FIGURES)
    for id in wanted:
        item = load(id)
        assert item.alias == f"figure{numbers.figures()[id].number}"
        assert (item.kind, item.title) == ("figure", numbers.figures()[id].title)


def test_probes_name_measurements_that_exist():
    probes = [probe for item in items.all_items().values() for probe in probes_of(item, QUICK)]
    assert {probe.kind for probe in probes} == set(MEASUREMENTS)
    json.dumps([probe.to_dict() for probe in probes])


# What they ask for


def test_by_number_of_domains_every_point_is_of_all_images():
    for count in DOMAIN_COUNTS:
        parts = mixtures(count)
        assert {len(part) for part in parts} == {count}
        assert sorted(domain for part in parts for domain in part) == sorted(MAIN_CORRUPTIONS)
    specs = specs_of(load("domains-and-batch"), QUICK)
    assert {spec.method for spec in specs} == {"source", "tbn"}
    assert len(specs) == 2 * (15 + 5 + 3 + 1 + 2)  # the usual batch size has the runs of all domains
    assert {spec.stream for spec in specs} == {"crossmix"}


def test_batch_sizes_of_all_methods():
    specs = specs_of(load("batch-size"), Context(seeds=(0,)))
    assert {spec.method for spec in specs} == set(METHODS)
    assert sorted({spec.batch_size for spec in specs}) == [1, 4, 16, 64, 256]
    few = specs_of(load("batch-size"), dataclasses.replace(QUICK, methods=("find",)))
    assert [(spec.method, spec.batch_size) for spec in few] == [("find", 1), ("find", 8), ("find", 64)]
    assert len(specs_of(load("batch-size-all"), Context(setups=all_setups(), seeds=(0,)))) == 3 * len(specs)


def test_thresholds_are_run_and_timed():
    item = load("threshold")
    specs, (times,) = specs_of(item, QUICK), probes_of(item, QUICK)
    assert [spec.options["threshold"] for spec in specs] == [0.0, 0.1, 0.3, 1.0]
    assert {spec.method for spec in specs} == {"find-star"}
    asked = times.settings["candidates"].values()
    assert [one["options"].get("threshold") for one in asked] == [None, 0.0, 0.1, 0.3, 1.0]
    (transformer,) = {spec.model for spec in specs_of(load("threshold-more"), QUICK)}
    assert transformer == "shapes-efficientvit_m0"


def test_alpha_is_swept_from_groups_alone_to_the_source():
    specs = specs_of(load("alpha"), Context(seeds=(0,)))
    assert {spec.method for spec in specs} == {"find"}
    assert sorted({spec.options["alpha"] for spec in specs}) == [step / 10 for step in range(11)]
    assert {spec.stream for spec in specs} == {
        "crossmix",
        "random:variant=authors",
        "shuffle:variant=authors",
        "static",
    }


def test_cold_starts_share_a_stream_that_is_long_enough():
    specs = [spec for spec in specs_of(load("sensitivity"), Context(seeds=(0,))) if spec.options]
    assert [spec.options["cold_start"] for spec in specs] == [3, 5, 10, 20, 50, 100]
    (images,) = {spec.images for spec in specs}
    assert images * 15 >= 100 * 64


def test_distances_are_measured_at_all_severities_in_one_stream():
    (probe,) = probes_of(load("distance"), QUICK)
    assert (probe.spec.severity, probe.spec.domains, probe.spec.stream) == (SEVERITIES, CORRUPTIONS, "static")


def test_maps_are_of_as_many_images_in_one_domain_as_in_all():
    mixed, single = probes_of(load("tsne"), QUICK)[0], probes_of(load("tsne"), QUICK)[1]
    assert (mixed.spec.images, mixed.spec.domains) == (128, None)
    assert (single.spec.images, single.spec.domains) == (single.settings["samples"], MAIN_CORRUPTIONS[:1])


# What they make of it


def test_figures_of_nothing_say_so():
    for id in FIGURES:
        document = load(id).document(Context(setups=()), Results())
        assert (document.id, document.pictures) == (id, ())
        assert any("No setup stands for" in note for note in document.notes)
        assert any("Nothing is drawn" in note for note in document.notes)


def test_failed_runs_and_measurements_give_notes():
    for item in map(load, FIGURES):
        results = Results(
            [
                *((spec, failed(spec)) for spec in specs_of(item, QUICK)),
                *((probe, broken_reading(probe)) for probe in probes_of(item, QUICK)),
            ]
        )
        document = item.document(QUICK, results)
        assert document.pictures == ()
        assert any(note.startswith("Failed: ") and "no luck" in note for note in document.notes)


FAST = ("alpha", "corruptions", "scenarios")


@pytest.mark.parametrize("id", [pytest.param(id, marks=() if id in FAST else pytest.mark.slow) for id in FIGURES])
def test_every_figure_is_written(id, tmp_path):
    item = load(id)
    document = item.document(QUICK, made_results(item, QUICK))
    assert document.pictures
    assert any("ANOTHER DATASET" in note for note in document.notes)
    files = document.save(tmp_path)
    pictures = [file for file in files if file.suffix in (".svg", ".png")]
    assert len(pictures) == 2 * len(document.pictures)
    assert json.loads((tmp_path / f"{id}.json").read_text())["pictures"][0]["data"]
    assert b"<svg" in (tmp_path / pictures[0].name).read_bytes()[:2000]


@pytest.mark.parametrize("id", PLOTTED)
def test_what_is_stored_is_what_is_drawn(id):
    item = load(id)
    for one in item.document(QUICK, made_results(item, QUICK)).pictures:
        figure = drawn(one)
        heights = [list(np.asarray(line.get_ydata(), float)) for axis in figure.axes for line in axis.get_lines()]
        heights += [[bar.get_height() for bar in bars] for axis in figure.axes for bars in axis.containers
                    if isinstance(bars, matplotlib.container.BarContainer)]  # fmt: skip
        for panel in one.data["panels"]:
            for stored in panel["series"]:
                assert len(stored["x"]) == len(stored["y"]) > 0
                assert list(stored["y"]) in heights


def test_points_are_means_over_seeds_with_their_intervals():
    item, context = load("batch-size"), Context(methods=("find",))
    (panel,) = panels_of(
        item.document(context, made_results(item, context, lambda spec: spec.batch_size / 4 + spec.seed))
    )
    (found,) = panel["series"]
    assert found["name"] == "FIND"
    assert found["x"] == [1, 4, 16, 64, 256]
    assert found["y"] == [1.25, 2.0, 5.0, 17.0, 65.0]
    made_of = [spec for spec in specs_of(item, context) if spec.batch_size == 16]
    margin = interval([made(spec, 4 + spec.seed).scores for spec in made_of]).margin
    assert found["spread"][2] == margin > 0


def test_what_is_missing_is_left_out_of_a_line():
    item, context = load("batch-size"), dataclasses.replace(QUICK, methods=("find", "tbn"))
    runs = [(spec, made(spec) if spec.method == "find" and spec.batch_size > 1 else failed(spec))
            for spec in specs_of(item, context)]  # fmt: skip
    (panel,) = panels_of(item.document(context, Results(runs)))
    assert [(one["name"], one["x"]) for one in panel["series"]] == [("FIND", [8, 64])]


def test_numbers_of_domains_are_averaged_over_the_mixtures():
    item = load("domains-and-batch")
    worth = {domain: float(place) for place, domain in enumerate(MAIN_CORRUPTIONS)}

    def accuracy(spec):
        return float(np.mean([worth[domain] for domain in spec.domains or MAIN_CORRUPTIONS]))

    by_count, _ = panels_of(item.document(QUICK, made_results(item, QUICK, accuracy)))
    assert series(by_count, "SBN")["x"] == [1.0, 3.0, 5.0, 15.0]
    assert series(by_count, "SBN")["y"] == pytest.approx([7.0] * 4)


def test_time_is_on_the_axis_at_the_right():
    item = load("threshold")
    document = item.document(QUICK, made_results(item, QUICK))
    (panel,) = panels_of(document)
    assert series(panel, "time")["y"] == pytest.approx([1.1, 1.2, 1.3, 1.4])
    left, right = drawn(document.pictures[0]).axes
    assert [list(line.get_ydata()) for line in right.get_lines()] == [series(panel, "time")["y"]]
    assert "time" not in left.get_ylabel()


def test_groups_of_every_layer_with_a_band_and_noise_beside_them():
    item = load("group-counts")
    (panel,) = panels_of(item.document(QUICK, made_results(item, QUICK)))
    assert [one["name"] for one in panel["series"]] == ["CrossMix", "Random", "Shuffle", "noise"]
    assert series(panel, "Random")["y"] == [15.0, 14.0, 13.0, 12.0]
    assert series(panel, "Random")["spread"] == [1.0, 2.0, 3.0, 4.0]
    assert series(panel, "noise")["y"] == [16.0] * 4


def test_scores_of_a_cold_start_that_did_not_end_are_left_out():
    item = load("sensitivity")
    runs = []
    for spec in specs_of(item, QUICK):
        result = made(spec, layers=LAYERS)
        config = {**result.config, "options": {"cold_start": 10, **spec.options}}
        config["stream"] = {**config["stream"], "batches": 15}
        runs.append((spec, dataclasses.replace(result, config=config)))
    document = item.document(QUICK, Results(runs))
    cold = panels_of(document)[-1]
    assert [one["name"] for one in cold["series"]] == ["3 batches", "10 batches"]
    assert "Left out, since a stream ends before: 20 batches." in document.notes
    assert cold["series"][0]["y"] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_distances_run_over_severities():
    item = load("distance")
    l2, cosine = panels_of(item.document(QUICK, made_results(item, QUICK)))
    assert series(l2, "fog")["x"] == [3.0, 2.0, 1.0, 0.0, -1.0]
    assert series(cosine, "fog")["y"] == [89.0, 88.0, 87.0, 86.0, 85.0]
    assert series(l2, "fog")["labels"] == ["1", "2", "3", "4", "5"]


def test_gains_and_gradients():
    item = load("gain-and-gradient")
    worth = {"source": 50.0, "tbn": 60.0, "sar": 61.0}
    gains, steps = panels_of(item.document(QUICK, made_results(item, QUICK, lambda spec: worth[spec.method])))
    assert [one["y"] for one in gains["series"]] == [[50.0] * 2, [60.0] * 2, [61.0] * 2]
    assert series(steps, "CrossMix")["x"] == [1.0, 2.0, 4.0]


def test_every_method_has_a_look_of_its_own():
    looks = [LOOKS[method] for method in METHODS]
    assert len(set(looks)) == len(METHODS)


def test_many_names_stand_beside_the_panels():
    lines = tuple(Series(name=str(number), x=(0.0, 1.0), y=(0.0, number)) for number in range(9))
    (one,) = picture("many", [Panel(title="t", x="x", y="y", series=lines)])
    figure = drawn(one)
    assert len(figure.legends[0].get_texts()) == 9
    assert figure.axes[0].get_legend() is None
    assert one.render()["png"] == one.render()["png"]


# Measurements


def measured(kind, tmp_path, spec, **settings):
    probe = Probe(kind=kind, spec=spec, settings=settings)
    found = take(probe, Store(tmp_path), Planner())
    assert found.status == "done", found.error
    return found.value


def tiny_spec(**settings):
    context = tiny_context(batch_size=12)
    return context.spec(context.setups[0], **settings)


def test_distances_of_a_batch():
    assert distances(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) == pytest.approx((2.5, 0.3))
    assert distances(torch.ones(4, 3)) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_copies_of_an_image_are_no_neighbours():
    vectors = torch.tensor([[0.0], [0.1], [1.0], [1.1]])
    kinds = ["star", "star", "ring", "ring"]
    assert neighbour_agreement(vectors, kinds, [0, 1, 2, 3])["same"] == 100
    copies = neighbour_agreement(vectors, kinds, [0, 0, 1, 1])  # the nearest other image is of the other class
    assert copies == {"same": 0.0, "chance": 0.0}
    assert neighbour_agreement(vectors, kinds, [0, 1, 2, 3])["chance"] == pytest.approx(100 / 3)


def test_features_are_means_over_positions():
    features = torch.arange(24.0).reshape(2, 3, 2, 2)
    layer = torch.nn.BatchNorm2d(3).eval()
    with watched_features({"one": layer}) as seen:
        layer(features)
    assert torch.equal(seen["one"], features.mean((2, 3)))


def test_watching_ends_with_the_block():
    layer = torch.nn.BatchNorm1d(3).eval()
    with watched_features({"one": layer}) as seen:
        layer(torch.ones(2, 3))
    assert torch.equal(seen["one"], torch.ones(2, 3))
    layer(torch.zeros(2, 3))
    assert torch.equal(seen["one"], torch.ones(2, 3))


@torch.no_grad()
def test_distances_are_measured_in_every_domain(tmp_path):
    spec = tiny_spec(method="tbn", stream="static", domains=("fog", "contrast"), severity=(1, 5))
    value = measured("distances", tmp_path, spec, part=0.5)
    assert value["layers"] == ["net.4"]
    assert set(value["domains"]) == {"fog@1", "fog@5", "contrast@1", "contrast@5"}
    assert {found["samples"] for found in value["domains"].values()} == {24}
    found = value["domains"]["fog@5"]
    plan, samples, total = Planner().plan(spec), 0, 0.0
    convolution, norm, *rest = plan.model.net[:4]
    for batch in plan.stream:
        if plan.dataset.domains[batch.domain_ids[0]] != "fog@5":
            continue
        images, _ = plan.dataset.batch(batch.domain_ids, batch.rows)
        inputs = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
        first = torch.nn.functional.batch_norm(
            convolution(inputs), None, None, norm.weight, norm.bias, training=True, eps=norm.eps
        )
        means = torch.nn.Sequential(*rest)(first).mean((2, 3))
        samples += len(means)
        total += float((means - means.mean(0)).norm(dim=1).sum())
    assert found["l2"] == pytest.approx(total / samples, rel=1e-4)
    assert 0 <= found["accuracy"] <= 100
    assert 0 < found["cosine"] < 2


@pytest.mark.slow
def test_maps_have_a_place_for_every_image(tmp_path):
    spec = tiny_spec(method="source", domains=("fog", "contrast"))
    value = measured("map", tmp_path, spec, samples=30, depth=1.0)
    assert (value["layer"], value["index"], value["layers"]) == ("net.4", 1, 2)
    assert {len(value[name]) for name in ("x", "y", "domain", "class")} == {30}
    assert set(value["domain"]) == {"fog@5", "contrast@5"}
    assert value["agreement"]["domain"]["same"] > value["agreement"]["domain"]["chance"] > 30


def test_gradients_are_those_of_the_method(tmp_path):
    spec = tiny_spec(method="tent", domains=("fog", "contrast"))
    value = measured("gradients", tmp_path, spec, batches=3)
    assert value["steps"] == [1, 2, 3]
    assert all(norm > 0 for norm in value["norms"])
    probe = Probe(kind="gradients", spec=tiny_spec(), settings={"batches": 1})
    refused = take(probe, Store(tmp_path), Planner())
    assert refused.status == "failed"
    assert "method must be one that learns" in refused.error["message"]


def test_sheets_and_shares(tmp_path):
    spec = tiny_spec(method="source", stream="static", domains=("fog", "contrast"))
    sheet = measured("sheet", tmp_path, spec, images=1)
    assert sheet["domains"] == ["fog@5", "contrast@5"]
    assert Image.open(io.BytesIO(base64.b64decode(sheet["png"]))).size[0] > 100
    shares = measured("shares", tmp_path, spec, columns=50)
    assert shares["edges"] == [0, 1, 2, 3, 4]
    assert [sum(place) for place in shares["shares"]] == [1.0] * 4


def test_alpha_is_a_figure_without_a_number():
    item = load("alpha")
    assert item.alias == ""
    assert item.document(QUICK, made_results(item, QUICK)).title.startswith("Figure: accuracy of FIND")
