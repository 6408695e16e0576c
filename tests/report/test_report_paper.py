import pytest
from strict_html import parse

from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.report import page
from findtta.report.page import counterpart, dataset_of
from made_results import cifar as run


def columns_of(*results, paper=None):
    return parse(page(results, paper=paper)).all("table", class_="paper")


def test_paper_ours_and_difference_stand_side_by_side():
    (table,) = columns_of(run("find", accuracy=70.04), run("tbn", accuracy=63.0), run("tent", accuracy=62.77))
    assert table.row("find") == ["find", "71.54 ±\xa00.20", "70.04 ±\xa00.51", "\N{MINUS SIGN}1.50"]
    assert table.row("tbn") == ["tbn", "61.96", "63.00 ±\xa00.55", "+1.04"]
    assert table.row("tent") == ["tent", "62.77", "62.77 ±\xa00.55", "+0.00"]
    sides = {row.attributes["data-method"]: row.all("td", class_="gap")[0].classes for row in table.all("tr")[2:]}
    assert sides == {"find": {"gap", "below"}, "tbn": {"gap", "above"}, "tent": {"gap", "same"}}


def test_methods_that_the_paper_has_not_are_not_in_the_table():
    (table,) = columns_of(run("find"), run("mine"))
    assert not table.all("tr", data_method="mine")


def test_streams_that_the_paper_has_not_are_not_in_the_table():
    (table,) = columns_of(run("find"), run("find", stream="static"))
    assert [head.attributes["data-stream"] for head in table.all("th", scope="colgroup")] == ["crossmix"]


def test_other_data_has_no_paper_numbers_unless_asked_for():
    shapes = run("find", data="shapes-c (generated)", model="shapes-resnet26")
    assert columns_of(shapes) == []
    (table,) = columns_of(shapes, paper="cifar10-c")
    assert table.one("th", scope="colgroup").text == "crossmix (paper: CIFAR10-C, ResNet-26)"
    assert table.all("th", class_="group")[1].text == "paper (CIFAR10-C)"
    assert table.row("find")[1] == "68.21"
    notes = parse(page([shapes], paper="cifar10-c")).one("section", id="setting-1").text
    assert "data shapes-c (generated), in the paper CIFAR10-C" in notes


def test_data_of_the_paper_is_never_compared_with_other_data():
    (table,) = columns_of(run("find", data="cifar100-c"), paper="cifar10-c")
    assert table.row("find")[1].startswith("39.75")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10-c", "cifar10-c"),
        ("cifar10-c (generated)", "cifar10-c"),
        ("CIFAR100-C", "cifar100-c"),
        ("imagenet-c-generated", "imagenet-c"),
        ("shapes-c (generated)", None),
        ("my-cifar10-c", None),
    ],
)
def test_data_is_known_by_its_name(name, expected):
    assert dataset_of(run(data=name).config) == expected


@pytest.mark.parametrize(
    ("settings", "method", "value", "table"),
    [
        ({}, "find", 71.54, 1),
        ({"stream": "random"}, "deyo", 75.63, 1),
        ({"model": "timm:efficientvit_m5"}, "source", None, 2),
        ({}, "find (alpha=0.0)", 45.78, 5),
        ({"data": "imagenet-c", "model": "resnet50"}, "find (partitioner=kmeans)", 26.71, 3),
        ({"domains": tuple(f"{name}@5" for name in MAIN_CORRUPTIONS[:6])}, "tent", 60.79, 6),
        ({"model": "resnet26"}, "find", 68.21, 7),
        ({"data": "imagenet-c", "stream": "static"}, "find-star", 32.10, 8),
        ({"stream": "wild", "stream_settings": {"delta": 0.1}}, "find", 69.49, 9),
        ({"stream": "wild", "stream_settings": {"delta": 0.01}}, "source", None, 10),
        ({"stream": "lifelong", "stream_settings": {"rounds": 2}}, "find", 71.48, 12),
        ({"stream": "lifelong", "stream_settings": {"rounds": 3}}, "find", None, 13),
    ],
)
def test_every_accuracy_table_of_the_paper_is_found(settings, method, value, table):
    config = run(**settings).config
    part = counterpart(config, dataset_of(config))
    assert part.cells[method].table == table
    assert value is None or part.cells[method].value == value
    assert part.differences == []


@pytest.mark.parametrize(
    "settings",
    [
        {"stream": "gradual"},
        {"stream": "wild", "stream_settings": {"delta": 0.3}},
        {"stream": "lifelong", "stream_settings": {"rounds": 5}},
    ],
)
def test_streams_the_paper_has_not_have_no_counterpart(settings):
    assert counterpart(run(**settings).config, "cifar10-c") is None


def test_all_that_differs_is_said():
    config = run(
        data="cifar10-c (generated)", model="resnet20", domains=("fog@3", "snow@3"), batch_size=16, reset="domain"
    ).config
    part = counterpart(config, "cifar10-c")
    assert part.model == "ResNet-50"
    assert part.differences == [
        "corruptions generated anew, in the paper the published images",
        "model resnet20, in the paper ResNet-50",
        "2 domains, in the paper 6",
        "severity 3, in the paper 5",
        "batch size 16, in the paper 64",
        "state reset when the domain changes, which the paper does not do",
    ]


def test_a_column_never_mixes_networks():
    # The paper has no FIND* on its ResNet-26: the number of the ResNet-50 must not take its place.
    part = counterpart(run(model="resnet26").config, "cifar10-c")
    assert part.model == "ResNet-26"
    assert "find-star" not in part.cells
