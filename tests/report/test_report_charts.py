import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imagined import run
from strict_html import parse

from findtta.report.look import looks
from findtta.report.markup import Markup, element, join, text
from findtta.report.scales import linear, number, spread
from findtta.report.summaries import CURVE_POINTS, collapses, curve, layers
from findtta.report.svg import Point, Series, frontier, line_chart, place_labels, scatter_chart

numbers = st.floats(-1e6, 1e6, allow_nan=False)
places = st.tuples(st.integers(60, 540).map(float), st.integers(14, 250).map(float))


def test_text_is_escaped_and_markup_is_not():
    assert text('<b>"&') == "&lt;b&gt;&quot;&amp;"
    assert text(Markup("<b>")) == "<b>"
    assert join(["<", None, Markup("<br>")]) == "&lt;<br>"


def test_attributes():
    shown = element("td", 3, None, class_="a<b", data_value=1 / 3, hidden=True, id=None, title=False)
    assert shown == '<td class="a&lt;b" data-value="0.333333" hidden>3</td>'
    assert element("input", type="checkbox") == '<input type="checkbox">'


def test_characters_without_a_place_in_html_are_replaced():
    assert text("a\x00\x1b[31m\ud800\tb\n") == "a\ufffd\ufffd[31m\ufffd\tb\n"


@given(st.lists(numbers, max_size=8), st.booleans())
def test_a_scale_encloses_what_it_is_for_between_round_numbers(values, zero):
    scale = linear(values, 250, 10, zero=zero)
    room = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - room <= value <= scale.high + room for value in values)
    assert scale.ticks[0] == scale.low
    assert scale.ticks[-1] == scale.high
    assert 2 <= len(scale.ticks) <= 8
    assert (scale(scale.low), scale(scale.high)) == (250, 10)


def test_ticks_are_round():
    assert linear([57.3, 80.3], 0, 1).ticks == (50, 60, 70, 80, 90)
    assert linear([0.31, 0.9], 0, 1, zero=True).ticks == (0, 0.5, 1)
    assert [number(tick) for tick in linear([0.1, 0.3], 0, 1).ticks] == ["0.1", "0.15", "0.2", "0.25", "0.3"]


def test_ranges_of_orders_of_magnitude_are_logarithmic():
    scale = spread([10, 1000], 0, 100)
    assert scale.is_log
    assert scale.ticks == (10, 20, 50, 100, 200, 500, 1000)
    assert scale(100) == pytest.approx(50)
    assert not spread([10, 50], 0, 100).is_log
    assert spread([], 0, 100).ticks


@given(st.lists(places, min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats(found):
    def beats(one, other):
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    unbeaten = {place for place in found if not any(beats(other, place) for other in found)}
    assert frontier(found) == sorted(unbeaten)


@given(st.lists(places, min_size=1, max_size=14))
def test_labels_cover_no_point_and_no_other_label(found):
    names = ["find-star"] * len(found)
    boxes = [(x, y - 10, x + 57.6, y + 3) for spot in place_labels(found, names) if spot for x, y in [spot]]
    for index, box in enumerate(boxes):
        assert box[0] >= 52
        assert box[2] <= 560
        for other in boxes[:index]:
            assert box[0] >= other[2] or other[0] >= box[2] or box[1] >= other[3] or other[1] >= box[3]
        assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in found)


def values_of(chart, line):
    """Read the values of a line back as the script does."""
    x, y = ([float(part) for part in chart.attributes[f"data-{name}"].split()] for name in "xy")
    return [
        tuple(
            low + (float(pixel) - start) / (end - start) * (high - low)
            for pixel, (start, end, low, high) in zip(point.split(","), (x, y), strict=True)
        )
        for point in line.one("polyline").attributes["points"].split()
    ]


def test_what_is_drawn_can_be_read_back():
    points = [(1.0, 60.0), (50.0, 71.25), (99.0, 68.5)]
    line = Series(name="find", look="c0", points=points, data={"method": "find"})
    chart = parse(line_chart([line], label="l", x_title="x", y_title="y")).one("svg")
    drawn = values_of(chart, chart.one("g", data_method="find"))
    assert [value for point in drawn for value in point] == pytest.approx(
        [value for point in points for value in point], abs=0.02
    )


def test_points_that_are_not_finite_are_left_out_with_their_bands_and_markers():
    points = [(1.0, 2.0), (2.0, math.nan), (3.0, 4.0)]
    band = [(1.0, 3.0), (math.nan, math.nan), (3.0, 5.0)]
    line = Series(name="a", look="c0", points=points, band=band, filled=[True, True, False])
    group = parse(line_chart([line], label="l", x_title="x", y_title="y")).one("g")
    assert len(group.one("polyline").attributes["points"].split()) == 2
    assert len(group.one("polygon").attributes["points"].split()) == 4
    assert [circle.attributes.get("class") for circle in group.all("circle")] == [None, "hollow"]


def test_the_beginning_of_a_curve_does_not_squeeze_the_rest():
    points = [(1.0, 0.0), *((float(x), 70.0 + x % 3) for x in range(2, 101))]
    line = Series(name="a", look="c0", points=points)
    chart = parse(line_chart([line], label="l", x_title="x", y_title="y", settled=0.05)).all("svg")[0]
    assert [float(part) for part in chart.attributes["data-y"].split()][2:] == [70.0, 72.0]
    assert (
        parse(line_chart([line], label="l", x_title="x", y_title="y"))
        .one("svg")
        .attributes["data-y"]
        .endswith(" 0 80")
    )


def test_scatter_marks_the_frontier():
    points = [
        Point(name=name, look="c0", x=x, y=y, tip=f"{name}!", data={"method": name})
        for name, x, y in (
            ("cheap", 1.0, 50.0),
            ("good", 2.0, 70.0),
            ("beaten", 3.0, 60.0),
            ("lost", math.nan, 1.0),
        )
    ]
    chart = parse(scatter_chart(points, label="l", x_title="x", y_title="y"))
    on_it = {
        group.attributes["data-method"]: "on-frontier" in group.classes for group in chart.all("g", class_="point")
    }
    assert on_it == {"cheap": True, "good": True, "beaten": False}
    assert [title.text for title in chart.all("title")] == ["cheap!", "good!", "beaten!"]


def test_everything_has_its_own_look():
    names = ["source", *(f"other-{index}" for index in range(20)), "find", "find (alpha=0)"]
    given_looks = looks(names)
    assert list(given_looks) == names
    assert len(set(given_looks.values())) == len(names)
    assert (given_looks["source"], given_looks["find"]) == ("baseline", "c0 d0")


def test_curves_are_means_over_the_batches_that_all_seeds_have():
    one, two = run(points=2), run(seed=1, points=2)
    one.running.update(batch=[1, 2, 3], accuracy=[10.0, 20.0, 30.0])
    two.running.update(batch=[2, 3], accuracy=[40.0, 50.0])
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
    (layer,) = layers([one, two])
    assert (layer.groups, layer.deviation, layer.score, layer.split) == (8.0, 5.0, None, None)


def test_layers_that_are_split_in_some_seeds_only():
    one, two = run("find-star", layers=1), run("find-star", seed=1, layers=1)
    one.layers[0].update(score=0.25, split=False, groups_mean=None, groups_std=None)
    two.layers[0].update(score=0.75, split=True, groups_mean=6.0, groups_std=1.0)
    (layer,) = layers([one, two])
    assert (layer.groups, layer.deviation, layer.score, layer.split) == (6.0, 1.0, 0.5, 0.5)


def test_methods_without_groups_and_scores_have_no_layers():
    plain = run(layers=2)
    for layer in plain.layers:
        layer.update(groups_mean=None, groups_std=None)
    assert layers([plain]) == []


def test_collapses_say_the_seed_and_the_batch():
    found = collapses([run(), run(seed=1, collapse={"batch": 7, "reason": "one class"})])
    assert found == [(7.0, "seed 1, batch 7: one class")]
