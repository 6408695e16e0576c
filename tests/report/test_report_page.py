import dataclasses
import json
import math
import random
import re
from importlib.resources import files
from pathlib import Path

import pytest
from strict_html import Node, parse

from findtta.bench import Result
from findtta.errors import InputError, OptionError, UnknownNameError
from findtta.report import page, write
from made_results import ATTACK, METHODS, STREAMS, benchmark
from made_results import cifar as run

ABSENT = "\N{EN DASH}"


@pytest.fixture(scope="module")
def whole() -> Node:
    return parse(page(benchmark()))


def test_the_page_asks_for_nothing_from_outside(whole):
    for node in whole.all():
        assert not node.attributes.keys() & {"src", "srcset", "data", "poster", "action", "background"}, node.name
        assert (node.attributes.get("href") or "#").startswith("#"), "a link leads away from the page"
        assert node.name not in ("link", "img", "iframe", "object", "embed", "base", "video", "audio")
        assert "url(" not in re.sub(r"url\(#", "", " ".join(value or "" for value in node.attributes.values()))
    style = whole.one("style").text
    assert "url(" not in style
    assert "@import" not in style
    script = whole.one("script").text
    assert not re.search(r"fetch|XMLHttpRequest|import\s*\(|WebSocket|sendBeacon|eval|Function\(", script)
    assert "https:" not in script + style
    assert "http:" not in script + style


def test_every_link_inside_the_page_leads_somewhere(whole):
    ids = {node.attributes.get("id") for node in whole.all()}
    links = [node.attributes["href"] for node in whole.all("a")]
    assert len(links) > 5
    assert all(link[1:] in ids for link in links)


def test_the_policy_lets_only_the_scripts_of_the_page_run(whole):
    (policy,) = whole.all("meta", http_equiv="Content-Security-Policy")
    assert policy.attributes["content"].startswith("default-src 'none'; ")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='; ", policy.attributes["content"])


def test_results_cannot_bring_elements_into_the_page(whole):
    assert len(whole.all("script")) == 1
    assert not any(name.startswith("on") for node in whole.all() for name in node.attributes)
    assert ATTACK in whole.one("section", id="failed").text
    assert ATTACK in [box.attributes["value"] for box in whole.all("input", name="method")][-1]


def test_the_script_never_makes_markup_of_text():
    script = files("findtta.report").joinpath("report.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", script)


@pytest.mark.parametrize(
    "text",
    [
        ATTACK,
        '"><b>',
        "&lt;",
        "]]>",
        "</style>",
        "\x1b[31mred\x00",
        "$title$ {{ 7 * 7 }}",
        "\ud800",
        "中文 🎈",
        "",
    ],
)
def test_whatever_results_say_is_text(whole, text):
    names = {"data": text, "model": text, "domains": (f"{text}@1", "fog@5"), "points": 3, "layers": 2}
    done = [run(name, **names) for name in (text, "find-star")]
    layer = {"name": text, "groups_mean": None, "groups_std": None, "score": 1.0, "split": True}
    done = [dataclasses.replace(result, layers=[*result.layers, layer]) for result in done]
    failed = run("tbn", **names, error={"type": text, "message": text})
    found = parse(page([*done, failed], title=text))
    assert len(found.all("script")) == 1
    assert {node.name for node in found.all()} <= {node.name for node in whole.all()}
    assert _visible(text) in found.one("h1").text


def _visible(text: str) -> str:
    """What a page has of a text, where a parser makes line ends the same and control characters have no place."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text)


def test_the_same_results_give_the_same_page_in_any_order():
    results = [
        run(method, stream=stream, points=9, layers=4) for method in ("tbn", "find-star") for stream in STREAMS
    ]
    assert page(results) == page(random.Random(0).sample(results, len(results)))


def test_a_page_survives_being_stored_and_read():
    results = [
        run("find-star", points=9, layers=4),
        run("tbn"),
        run("tent", error={"type": "OSError", "message": "x"}),
    ]
    assert page([Result.from_json(result.to_json()) for result in results]) == page(results)


def test_cells_are_means_over_seeds_with_intervals():
    results = [run("find", seed=seed, accuracy=value) for seed, value in enumerate((60.0, 62.0))]
    results += [run("tbn", seed=seed, accuracy=50.0) for seed in range(2)]
    results += [run("find", stream="random", seed=seed, accuracy=81.0) for seed in range(2)]
    found = parse(page(results))
    table = found.all("table")[0]
    assert table.row("find") == ["find", "61.00 ±\xa00.55 best", "81.00 ±\xa00.44", "71.00"]
    assert table.row("tbn") == ["tbn", "50.00 ±\xa00.56", ABSENT, ABSENT]
    assert "mean over seeds 0, 1 ± half of the 95% interval (clustered by image)" in table.one("caption").text
    assert "in 469 batches of 64" in found.one("section", class_="setting").text


def test_differences_from_the_source_model_have_a_panel():
    results = [run(method, accuracy=value) for method, value in (("source", 50.0), ("find", 61.0), ("tbn", 45.0))]
    found = parse(page([*results, run("find", stream="random", accuracy=70.0)]))
    (panel,) = [panel for panel in found.all("div", class_="panel") if "Points above source" in panel.text]
    row = panel.one("table").row("find")
    assert re.fullmatch(r"\+11\.0 \[1\d\.\d, 1\d\.\d\]", row[1])
    assert row[2] == ABSENT
    assert panel.one("table").row("tbn")[1].startswith("\N{MINUS SIGN}5.0 [\N{MINUS SIGN}")


def test_a_missing_seed_is_said_and_takes_part_in_no_mean(whole):
    table = whole.one("section", id="setting-1").all("table")[0]
    vida = table.row("vida")
    assert vida[3].endswith(" 1 of 2 seeds")
    assert vida[-1] == ABSENT
    assert table.row("note")[1] == "failed"
    assert table.row("tent")[4].endswith("collapsed")


@pytest.mark.parametrize(
    "other",
    [
        {"model": "resnet20"},
        {"weights": "f" * 16},
        {"images": 15_000},
        {"domains": ("fog@3", "snow@3")},
        {"batch_size": 16},
        {"reset": "domain"},
        {"data": "cifar100-c"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_runs_that_cannot_be_compared_are_never_in_one_table(other):
    found = parse(page([run("find"), run("tbn"), run("find", **other), run("tbn", **other)]))
    sections = found.all("section", class_="setting")
    assert len(sections) == 2
    titles = [section.one("h2").text for section in sections]
    assert len(set(titles)) == 2, "the names do not say what differs"
    for section in sections:
        assert all(len(table.all("tr", data_method="find")) <= 1 for table in section.all("table"))


def test_repeated_runs_with_other_versions_are_no_second_seed():
    results = [run(accuracy=50.0, started=1.0), run(accuracy=60.0, version="0.2.0", started=2.0)]
    found = parse(page(results))
    assert found.all("table")[0].row("find") == ["find", "60.00 ±\xa00.55"]
    assert "1 older or failed repetitions" in found.one("section", class_="setting").text
    assert "All runs (2)" in found.one("section", id="runs").text


def test_domains_are_means_over_seeds_without_a_severity_that_all_share():
    results = [run(seed=seed, domains=("fog@5", "jpeg_compression@5")) for seed in range(2)]
    for result, accuracy in zip(results, (40.0, 50.0), strict=True):
        result.per_domain["fog@5"]["accuracy"] = accuracy
        result.per_domain["jpeg_compression@5"]["accuracy"] = 70.0
    heat = parse(page(results)).one("table", class_="heat")
    assert [head.text for head in heat.all("th", scope="col")] == ["method", "fog", "jpeg compression"]
    assert heat.row("find") == ["find", "45.0", "70.0"]
    assert [cell.attributes["style"] for cell in heat.all("td")] == ["--strength:0%", "--strength:100%"]


def test_domains_at_several_severities_say_theirs():
    heat = parse(page([run(domains=("fog@1", "fog@5"))])).one("table", class_="heat")
    assert [head.text for head in heat.all("th", scope="col")] == ["method", "fog@1", "fog@5"]


def test_layers_are_drawn_for_methods_that_split(whole):
    captions = [caption.text for caption in whole.one("section", id="setting-1").all("figcaption")]
    assert "find: groups per batch" in captions
    assert "find-star: groups per batch" in captions
    assert "find-star: sensitivity" in captions
    assert "find: sensitivity" not in captions
    assert not any(caption.startswith("tent") for caption in captions)


def test_every_run_says_its_settings_and_its_environment(whole):
    entries = whole.all("details", class_="run")
    assert len(entries) == len(benchmark())
    done = next(entry for entry in entries if entry.attributes["data-method"] == "find")
    facts = {entry.one("dt").text: entry.one("dd").text for entry in done.all("dl")[0].all("div")}
    assert facts["batch size"] == "64"
    facts = {entry.one("dt").text: entry.one("dd").text for entry in done.all("dl")[-1].all("div")}
    assert facts["torch"] == "2.13.0+cpu"
    assert facts["system"] == "Linux x86_64"


def test_failed_runs_say_why(whole):
    failed = whole.one("section", id="failed")
    assert failed.one("h2").text == "Failed runs (4)"
    assert failed.text.count("cannot allocate 2.1 GB\nwith 24 GB in use") == 2
    assert "no such data" in failed.text


def test_a_page_of_failures_alone_has_no_tables_of_numbers():
    found = parse(page([run(error={"type": "OSError", "message": "gone"})]))
    assert found.one("section", id="failed").one("pre").text == "gone"
    assert (
        found.all("table", class_="numbers") != []
    )  # the setting is known, and its only cell says that it failed
    assert found.all("table")[0].row("find") == ["find", "failed"]
    assert not found.all("svg", class_="chart")


def test_parts_without_numbers_are_not_drawn():
    empty = {"running": {"batch": [], "accuracy": []}, "layers": [], "per_domain": {}}
    found = parse(page([dataclasses.replace(run(), **empty), dataclasses.replace(run("tbn"), **empty)]))
    assert found.all("table")[0].row("find")[0] == "find"
    assert not found.all("svg", class_="lines")


def test_numbers_that_are_not_finite_are_shown_but_not_drawn():
    broken = run("tent", accuracy=math.nan, latency=math.inf)
    found = parse(page([broken, run("find"), run("tbn")]))
    assert found.all("table")[0].row("tent") == ["tent", "nan"]
    drawn = [point.attributes["data-method"] for point in found.all("g", class_="point")]
    assert drawn == ["tbn", "find"]
    assert "NaN" not in "".join(path.attributes.get("d", "") for path in found.all("path"))


def test_lifelong_runs_say_what_each_round_gave():
    result = dataclasses.replace(run(stream="lifelong", stream_settings={"rounds": 2}), per_round=[50.0, 40.25])
    assert "accuracy per round50.00, 40.25" in parse(page([result])).one("section", id="runs").text


def test_nothing_to_report_on_is_an_error():
    with pytest.raises(InputError, match="there is none to report on"):
        page([])


def test_an_unknown_dataset_of_the_paper_is_an_error():
    with pytest.raises(UnknownNameError, match=r"paper must be one of cifar10-c.*Did you mean 'cifar10-c'"):
        page([run()], paper="cifar10c")


def test_writing_makes_the_folder_and_returns_the_path(tmp_path):
    path = write([run()], tmp_path / "new" / "report.html", title="Mine & yours")
    assert path == tmp_path / "new" / "report.html"
    assert parse(path.read_text(encoding="utf-8")).one("title").text == "Mine & yours"
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = write([run()], tmp_path / "report.html")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OptionError, match="No space left on device"):
        write([run("tbn")], path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_is_no_file_to_write_to(tmp_path):
    with pytest.raises(OptionError, match="cannot be written"):
        write([run()], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_page_are_in_the_package():
    there = {file.name for file in files("findtta.report").iterdir()}
    assert {"page.html.j2", "report.css", "report.js"} <= there


def test_the_page_of_a_benchmark_stays_small():
    results = [run(method, seed=seed) for method in METHODS for seed in range(8)]
    assert len(page(results)) < 12_000 * len(results) + 100_000


def test_what_the_script_reads_is_what_was_drawn(whole):
    chart = whole.one("section", id="setting-1").all("svg", class_="lines")[-1]
    names = json.loads(chart.attributes["data-names"])
    assert len(names) == 53
    start, end, low, high = map(float, chart.attributes["data-x"].split())
    assert (low, high) == (1.0, 53.0)
    bottom, top, least, most = map(float, chart.attributes["data-y"].split())
    line = chart.all("g", class_="line")[0]
    numbers = [float(part) for part in re.findall(r"[\d.]+", line.one("path").attributes["d"])]
    layers = [run("find-star", stream=line.attributes["data-stream"], seed=seed).layers for seed in range(2)]
    scores = [(one["score"] + other["score"]) / 2 for one, other in zip(*layers, strict=True)]
    for place, (x, y, score) in enumerate(zip(numbers[::2], numbers[1::2], scores, strict=True), start=1):
        assert low + (x - start) / (end - start) * (high - low) == pytest.approx(place, abs=0.01)
        assert least + (y - bottom) / (top - bottom) * (most - least) == pytest.approx(score, abs=0.01)
