"""What charts show: pure functions of results, and SVG that the page can work with."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from strict_html import parse

from findtta.report.charts import (
    CURVE_POINTS,
    clean,
    collapses,
    cost_chart,
    curve,
    curve_chart,
    frontier,
    label_points,
    layer_chart,
    layers_of,
    looks,
    variable,
)
from made_results import cifar as run

places = st.tuples(st.integers(60, 540).map(float), st.integers(14, 250).map(float))


def test_characters_without_a_place_in_html_are_replaced():
    assert clean("a\x00\x1b[31m\ud800\tb\n") == "a\ufffd\ufffd[31m\ufffd\tb\n"


def test_everything_has_its_own_look():
    names = ["source", *(f"other-{index}" for index in range(20)), "find", "find (alpha=0)"]
    given_looks = looks(names)
    assert given_looks.keys() == set(names)
    assert len({(colour, line) for colour, _, line in given_looks.values()}) == len(names)
    assert variable(given_looks["find"][0]) == "var(--red)"


@given(st.lists(places, min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats(found):
    def beats(one, other):
        return one != other and one[0] <= other[0] and one[1] >= other[1]

    unbeaten = {place for place in found if not any(beats(other, place) for other in found)}
    assert frontier(found) == sorted(unbeaten)


@settings(max_examples=15, deadline=None)
@given(st.lists(places, min_size=1, max_size=14))
def test_labels_cover_no_point_and_no_other_label(found):
    figure = Figure(figsize=(560 / 72, 300 / 72), dpi=72)
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, 560), ylim=(0, 300))
    label_points(axis, {f"find-star-{number}": place for number, place in enumerate(found)})
    boxes = [label.get_window_extent() for label in axis.texts]
    assert boxes or len(found) > 1 or found[0][1] < 60  # there is room for one
    for index, box in enumerate(boxes):
        assert box.x0 >= 52
        assert box.x1 <= 560
        assert not box.count_overlaps(boxes[:index])
        assert not any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for x, y in found)


def test_a_chart_says_which_series_is_which_and_leaves_colours_to_the_style_sheet():
    runs = {"find": [run("find", points=30)], "a <b> & $c$": [run("tbn", points=30)]}
    svg = curve_chart(runs, looks(list(runs)), 'Running "accuracy"')
    chart = parse(svg).one("svg")
    assert chart.attributes["aria-label"] == 'Running "accuracy"'
    assert [line.attributes["data-method"] for line in chart.all("g", class_="line")] == list(runs)
    assert "var(--red)" in svg
    assert "font-family" not in svg
    assert "#d55e00" not in svg.lower()


def test_a_collapse_is_marked():
    fallen = run("tent", collapse={"batch": 180, "reason": "one class"})
    for result, count in ((fallen, 1), (run("tent"), 0)):
        assert len(parse(curve_chart({"tent": [result]}, looks(["tent"]), "l")).all("g", class_="event")) == count


def test_the_beginning_of_a_curve_does_not_squeeze_the_rest():
    result = run(points=100)
    result.running.update(batch=list(range(1, 101)), accuracy=[0.0, *(70.0 + x % 3 for x in range(99))])
    chart = parse(curve_chart({"find": [result]}, looks(["find"]), "l")).one("svg")
    _, _, low, high = map(float, chart.attributes["data-y"].split())
    assert 69 < low < 70 < 72 < high < 73


def test_cost_names_its_points_and_says_more_when_pointed_at():
    points = {"cheap": (1.0, 50.0, 300.0), "good": (2.0, 70.0, 310.0), "beaten": (3.0, 60.0, 320.0)}
    chart = parse(cost_chart(points, looks(list(points)), "l"))
    first, *_ = chart.all("g", class_="point")
    assert first.one("title").text == "cheap: 50.00 %, 1.0 ms per batch, 300 MB"
    assert [label.text.strip() for label in chart.all("g", class_="label")] == list(points)
    assert len(chart.all("g", class_="frontier")) == 1
    assert cost_chart({"alone": (1.0, 50.0, 300.0)}, looks(["alone"]), "l") == ""


def test_costs_of_several_orders_of_magnitude_are_on_a_logarithmic_axis():
    def texts(latency):
        points = {"a": (10.0, 50.0, 1.0), "b": (latency, 60.0, 1.0)}
        return {text.text.strip() for text in parse(cost_chart(points, looks(list(points)), "l")).all("text")}

    assert {"10", "100", "1000"} <= texts(1000.0)
    assert "100" not in texts(50.0)


def test_layers_that_are_not_split_have_hollow_markers():
    star = layers_of([run("find-star")])
    svg = layer_chart({"crossmix": star}, looks(["crossmix"]), "l", "score")
    hollow = sum(not layer.is_split for layer in star)
    assert 0 < hollow < len(star)
    assert svg.count("fill: var(--card)") >= hollow
    assert layer_chart({"crossmix": layers_of([run("find")])}, looks(["crossmix"]), "l", "score") == ""


def test_curves_are_means_over_the_batches_that_all_seeds_have():
    one, two = run(points=2), run(seed=1, points=2)
    one.running.update(batch=[1, 2, 3], accuracy=[10.0, 20.0, 30.0])
    two.running.update(batch=[2, 3, 4], accuracy=[40.0, 50.0, math.nan])
    assert curve([one, two]) == [(2.0, 30.0), (3.0, 40.0)]
    assert curve([]) == []


def test_long_curves_are_thinned_but_keep_their_ends():
    long = run(points=2)
    long.running.update(batch=list(range(1, 1001)), accuracy=[float(batch) for batch in range(1, 1001)])
    thin = curve([long])
    assert len(thin) == CURVE_POINTS
    assert (thin[0], thin[-1]) == ((1.0, 1.0), (1000.0, 1000.0))


def test_layers_pool_the_deviation_within_and_between_seeds():
    one, two = run(layers=1), run(seed=1, layers=1)
    one.layers[0].update(groups_mean=4.0, groups_std=3.0)
    two.layers[0].update(groups_mean=12.0, groups_std=3.0)
    (layer,) = layers_of([one, two])
    assert (layer.groups, layer.groups_std, layer.score, layer.is_split) == (8.0, 5.0, None, True)


def test_layers_that_are_split_in_some_seeds_only():
    one, two = run("find-star", layers=1), run("find-star", seed=1, layers=1)
    one.layers[0].update(score=0.25, split=False, groups_mean=None, groups_std=None)
    two.layers[0].update(score=0.75, split=True, groups_mean=6.0, groups_std=1.0)
    (layer,) = layers_of([one, two])
    assert (layer.groups, layer.groups_std, layer.score, layer.is_split) == (6.0, 1.0, 0.5, True)


def test_methods_without_groups_and_scores_have_no_layers():
    plain = run(layers=2)
    for layer in plain.layers:
        layer.update(groups_mean=None, groups_std=None)
    assert layers_of([plain]) == []


def test_collapses_say_the_seed_and_the_batch():
    found = collapses([run(), run(seed=1, collapse={"batch": 7, "reason": "one class"})])
    assert found == [(7.0, "seed 1, batch 7: one class")]
    assert collapses([run(collapse={"batch": 3}, error={"type": "OSError", "message": ""})]) == []


@pytest.mark.parametrize("name", ["\ud83d\ude00", "\u4e2d\u6587", "$x", "a\x1bb"])
def test_names_that_fonts_lack_can_be_drawn(name):
    assert "<svg" in cost_chart({name: (1.0, 2.0, 3.0), "b": (2.0, 1.0, 3.0)}, looks([name, "b"]), name)
