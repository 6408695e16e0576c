"""The page in a real browser: what visitors can do with it, and that it asks nobody but its server."""

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("python_multipart")

import base64
import json
import urllib.request

import numpy as np
import page_server
from PIL import Image
from visitor import visitor

import browser
from findtta.cli import main as command
from findtta.data.shapes import draw
from findtta.images import read_image
from findtta.serve import Settings, overview

pytestmark = pytest.mark.slow

REFUSED = "Failed to load resource: the server responded with a status of"


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def address(chromium):
    with page_server.serving(Settings()) as address:
        yield address


@pytest.fixture
def few(monkeypatch):
    """Servers of a test's own have one batch in their overview."""
    monkeypatch.setattr(overview, "IMAGES", 4)


@pytest.fixture
def page(chromium, address):
    """A tab in which nothing may go wrong and nothing may come from elsewhere, whatever a test does with it."""
    with visitor(chromium) as page:
        yield page
        assert {url for url in page.requests if not url.startswith((address, "data:"))} == set()


@pytest.fixture
def started(page, address):
    page.start(address)
    return page


@pytest.fixture
def folder(tmp_path):
    for row, picture in enumerate(draw(np.arange(2), seed=7)):
        Image.fromarray(picture).resize((200, 150)).save(tmp_path / f"photo {row}.jpg")
    (tmp_path / "notes.png").write_text("these are no pixels")
    return tmp_path


def test_the_page_opens_with_several_hundred_samples_classified(page, address):
    page.overview(address)
    assert "What shapes-resnet26 predicts as it was trained, and what FIND makes" in page.text("header")
    report = page.value("fetch('v1/overview').then(response => response.json())")
    counts = [entry["mixed"]["correct"] for entry in report["methods"]]
    assert page.text("#overview-title") == "Overview: 480 corrupted samples"
    assert f"FIND classifies {counts[1]} of 480 samples correctly, the source model {counts[0]}:" in page.text(
        "#overview-text"
    )
    assert page.texts(".method h3") == ["Source ", "FIND served", "find-soft ", "Without corruption"]
    assert page.texts(".method .big")[:3] == [f"{100 * count / 480:.1f}%" for count in counts]
    assert [text.split(" correct")[0] for text in page.texts(".method .scale + p")] == [
        *(f"{count} of 480" for count in counts),
        f"{report['methods'][0]['clean']['correct']} of 32",
    ]
    assert len(page.texts(".prediction")) == 64  # the first batch
    assert page.visible(".prediction") == 24
    assert "64 images, 15 corruptions at severity 5." in page.text("#status")
    assert page.visible(".prediction .remove, #alert, #key, #progress, #few, #waiting") == 0
    assert page.visible("#by-layer .band") == page.visible("#over-time .band") == 1
    assert page.visible("#samples button") == 32
    assert len(page.texts("#corruption option")) == 16
    page.click("#show-all")
    assert page.visible(".prediction") == 64
    page.set("severity", 0)  # of the samples, since no images are chosen
    page.settle(32)
    assert page.visible("#few") == 1
    page.click("#remove-all")
    page.settle(64)


def test_the_page_shows_what_is_there_while_the_overview_is_computed(page, address):
    page.overview(address)
    part = {
        "status": "computing",
        "samples": 64,
        "of": 480,
        "images": 32,
        "severity": 5,
        "model": "m",
        "method": "find",
    }
    accuracy, difference = ({"mean": mean, "low": mean - 9, "high": mean + 9} for mean in (50.0, 3.0))
    numbers = {"samples": 64, "correct": 32, "accuracy": accuracy, "difference": difference}
    methods = [{"method": name, "mixed": numbers, "clean": numbers} for name in ("source", "find")]
    begun = {**part, "samples": 0, "labelled": True, "methods": [], "drift": None}
    given = [begun, {**begun, "samples": 64, "methods": methods}]
    page.tab.route(
        "**/v1/overview", lambda route: route.fulfill(json=given.pop(0)) if given else route.continue_()
    )
    page.visit(address)
    page.until("document.getElementById('progress-text').textContent === '0 of 480 classified so far'")
    assert page.visible("#waiting") == 1
    page.until("document.getElementById('progress-text').textContent === '64 of 480 classified so far'")
    assert "no clear difference (95% interval \N{MINUS SIGN}6.0 to +12.0)" in page.text("#overview-text")
    page.until("document.querySelectorAll('.method').length === 4")
    page.settle(64)
    assert page.visible("#progress") == 0


def test_samples_are_classified_marked_and_counted(started):
    for kind in ("source", "served", "other"):
        marks = started.texts(f".verdict.{kind} .mark")
        correct = marks.count("✓ correct")
        assert correct + marks.count("✗ wrong") == 32
        assert started.texts(f".total.{kind} dd") == [f"{correct} of 32"]
        assert f" {correct}" in started.text("#status")
    assert "15 corruptions at severity 5" in started.text("#status")
    widths = started.value(
        "[...document.querySelectorAll('.verdict')].filter(row => row.checkVisibility())"
        ".map(row => [row.querySelector('.percent').textContent,"
        "getComputedStyle(row.querySelector('.bar'), '::before').width,"
        "row.querySelector('.bar').clientWidth])"
    )
    for percent, width, whole in widths:
        assert float(width.removesuffix("px")) / whole == pytest.approx(float(percent[:-1]) / 100, abs=0.011)


def test_moving_the_slider_changes_images_and_answers(started):
    before = started.value("[...document.querySelectorAll('.prediction img')].map(image => image.src)")
    started.set("severity", 0)
    started.until_status("not corrupted")
    after = started.value("[...document.querySelectorAll('.prediction img')].map(image => image.src)")
    samples = started.value("[...document.querySelectorAll('#samples img')].map(image => image.src)")
    assert started.text("#severity-value") == "0"
    assert len(after) == 32
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert after == samples  # untouched
    assert "Correct of 32: Source 32, " in started.text("#status")


def test_many_moves_at_once_ask_the_server_once(started):
    started.requests.clear()
    started.value(
        "for (const severity of [4, 3, 2, 1, 2]) { const slider = document.getElementById('severity');"
        "slider.value = severity; slider.dispatchEvent(new Event('input')); }"
    )
    started.until_status("severity 2")
    started.settle(32)
    assert sum(url.endswith("/v1/compare") for url in started.requests) == 1


def test_the_slider_works_from_the_keyboard(started):
    started.value("document.getElementById('severity').focus()")
    started.press("ArrowLeft")
    started.until_status("severity 4")
    assert started.text("#severity-value") == "4"


def test_one_corruption_for_all_and_drawing_it_anew(started):
    started.set("corruption", "gaussian_noise")
    started.until_status("gaussian noise at severity 5")
    first = started.value("document.querySelector('.prediction img').src")
    started.click("#again")
    started.until(f"document.querySelector('.prediction img').src !== {first!r}")
    assert {text.partition(" · ")[0] for text in started.texts(".what p")} == {"gaussian noise"}


def test_only_where_they_differ(started):
    differ = len(started.texts(".prediction.different"))
    assert 0 < differ < 24
    started.click("#only-different")
    assert started.visible(".prediction") == differ


def test_choosing_and_removing_files(page, address, folder):
    page.visit(address)
    page.choose(folder / "photo 0.jpg", folder / "photo 1.jpg")
    page.settle(2)
    assert page.texts(".prediction h3") == ["photo 0.jpg", "photo 1.jpg"]
    assert page.texts(".mark") == []  # nobody knows what they show
    assert page.texts(".total dt") == ["Different labels"]
    page.click(".prediction .remove")
    page.settle(1)
    assert page.texts(".prediction h3") == ["photo 1.jpg"]
    page.click("#remove-all")
    page.settle(64)  # what the page opened with


def test_dropping_a_file_adds_it_to_the_samples(started, folder):
    started.drop(folder / "photo 0.jpg")
    started.settle(33)
    assert started.texts(".prediction h3")[0] == "photo 0.jpg"
    assert "33 images" in started.text("#status")
    assert "Correct of 32: Source" in started.text("#status")


def test_samples_can_be_picked_one_by_one(page, address):
    page.visit(address)
    page.until("!document.getElementById('use-all').disabled")
    for number in (3, 5):
        page.click(f"#samples li:nth-child({number}) button")
    page.settle(2)
    assert page.texts(".prediction h3") == ["ring 3", "disc 5"]
    page.click("#samples li:nth-child(3) button")
    page.settle(1)
    assert page.value("[...document.querySelectorAll('#samples [aria-pressed=true]')].length") == 1


def test_a_bad_file_is_named_in_words_and_the_rest_stays(started, folder):
    started.drop(folder / "notes.png", folder / "photo 0.jpg")
    started.until("document.getElementById('alert').checkVisibility()")
    started.settle(33)
    assert "notes.png: it is not a readable image" in started.text("#alert-text")
    assert "notes.png" not in started.texts(".prediction h3")
    started.click("#dismiss")
    assert started.visible("#alert") == 0
    assert [text for text in started.complaints if not text.startswith(f"{REFUSED} 422")] == []
    started.complaints.clear()  # the browser itself reports every 422


def test_more_images_than_fit_are_refused_in_words(started, folder):
    started.choose(*[folder / "photo 0.jpg"] * 40)
    started.settle(64)
    assert "At most 64 images" in started.text("#alert-text")
    assert "the last 8 are left out" in started.text("#alert-text")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Files of more than 128 KiB, one of them turned by its EXIF orientation only."""
    folder = tmp_path_factory.mktemp("photos")
    y, x, c = np.ogrid[:700, :1000, :3]
    waves = 60 * (np.sin(x / 90 + c) + np.cos(y / 50 - c)) + (x + 2 * y) / 20
    noise = np.random.default_rng(0).normal(0, 12, (700, 1000, 3))
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    for name, phase in (("a.jpg", 0), ("b.png", 50), ("c.jpg", 100)):
        image = Image.fromarray(np.clip(waves + phase + noise, 0, 255).astype(np.uint8))
        image.save(folder / name, quality=95, **({"exif": turned} if name == "a.jpg" else {}))
        assert (folder / name).stat().st_size > 128 * 1024
    return folder


def test_photos_get_the_same_pixels_and_predictions_as_from_batch_prediction(page, address, photos, tmp_path):
    words = ["predict", "--input", photos, "-o", tmp_path / "out", "--format", "jsonl", "--json"]
    assert command.main([str(word) for word in words]) == 0
    (block,) = (tmp_path / "out" / "predictions").iterdir()
    expected = [json.loads(line)["probabilities"] for line in block.read_text().splitlines()]
    paths = sorted(photos.iterdir())
    preprocess = Settings().predictor().preprocess
    page.visit(address)
    page.choose(*paths)
    page.settle(3)
    with page.tab.expect_response("**/v1/compare") as response:
        page.set("severity", 0)  # after the choice: without images of one's own it would take the samples
    page.settle(3)
    rows = response.value.json()["images"]
    assert [row["name"] for row in rows] == [path.name for path in paths]
    for row, path, probabilities in zip(rows, paths, expected, strict=True):
        sent = base64.b64decode(row["corrupted"].partition(",")[2])
        assert np.array_equal(read_image(sent), read_image(path, preprocessing=preprocess))
        assert [entry["confidence"] for entry in row["predictions"]["find"]["top"]] == sorted(probabilities)[
            :-6:-1
        ]


def test_files_are_sent_in_requests_that_the_server_accepts(chromium, few, photos, folder):
    sizes = {path.name: path.stat().st_size for path in photos.iterdir()}
    limit = sizes["a.jpg"] + sizes["c.jpg"] + 3000
    large = folder / "large.png"
    large.write_bytes(bytes(limit))
    settings = Settings(max_body_mb=limit / 2**20, max_images=2, max_image_mb=(limit - 1) / 2**20)
    with page_server.serving(settings) as address, visitor(chromium) as page:
        sent = []
        page.tab.on("request", lambda request: sent.append(request) if "preprocess" in request.url else None)
        page.visit(address)
        page.choose(*[photos / "c.jpg"] * 2, photos / "a.jpg", *[folder / "photo 0.jpg"] * 3, large)
        page.settle(6)
        assert page.texts(".prediction h3") == ["c.jpg", "c.jpg", "a.jpg", *["photo 0.jpg"] * 3]
        bodies = [int(request.all_headers()["content-length"]) for request in sent]
        assert sizes["a.jpg"] < sizes["c.jpg"] < bodies[0]  # nothing was made smaller
        assert sizes["a.jpg"] + sizes["c.jpg"] < bodies[1] <= limit
        assert len(bodies) == 4  # since two files are the most in one request, too
        assert "large.png: larger than the" in page.text("#alert-text")


def test_a_file_name_is_text_whatever_it_says(page, address, folder):
    name = "<img src=x onerror=console.error(1)>.jpg"
    (folder / "photo 0.jpg").rename(folder / name)
    page.visit(address)
    page.choose(folder / name)
    page.settle(1)
    assert page.texts(".prediction h3") == [name]


def test_groups_are_shown_for_each_layer(started):
    total = started.value("Number(document.getElementById('layer').max) + 1")
    assert total == 27
    for layer in (0, 20):
        started.set("layer", layer)
        boxes = started.texts(".group h3")
        assert started.text("#layer-value").endswith(f"{len(boxes)} groups")
        assert [box.split(" (")[0] for box in boxes] == [f"Group {number + 1}" for number in range(len(boxes))]
        assert sum(int(box.split("(")[1][:-1]) for box in boxes) == 32
        assert started.visible(".group img") == 32
    started.click("#groups summary")
    rows = started.value(
        "[...document.querySelectorAll('#matrix tbody tr')].map(row => row.innerText.split('\\t'))"
    )
    assert len(rows) == total
    for _, count, *numbers in rows:
        assert set(map(int, numbers)) == set(range(1, int(count) + 1))
    started.click("#matrix tbody tr:nth-child(2) button")
    assert started.text("#layer-value").startswith("2 of 27")


def test_drift_is_drawn_per_layer_and_over_time(page, address):
    started = page
    page.overview(address)
    assert started.visible("#by-layer .dot") == 27
    assert started.visible("#by-layer .before") == 0
    started.set("severity", 0)
    started.until("document.querySelectorAll('#over-time .dot').length >= 2")
    assert started.visible("#by-layer .before") == 1
    drift = [float(text) for text in started.texts("#history tbody td:nth-child(4)")]
    assert drift[0] < drift[1], "clean images drift less than corrupted ones, and the newest comes first"
    low, high = started.value(
        "[...document.querySelectorAll('#over-time .dot')].map(dot => +dot.getAttribute('cy'))"
    )
    assert low < high, "less drift is further down"
    normal = started.value(
        "(({y, height}) => [y, y + height])(document.querySelector('#over-time .band').getBBox())"
    )
    assert low < normal[0] < high < normal[1], (
        "clean images are in the band of clean images, corrupted ones above it"
    )
    started.click("#forget")
    assert started.visible("#over-time .dot") == 1


OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true; })"


def test_a_phone_needs_no_scrolling_to_the_side(chromium, address):
    with visitor(chromium, viewport={"width": 360, "height": 740}) as page:
        page.start(address)
        page.value(OPEN_ALL)
        assert page.value("document.documentElement.scrollWidth") == 360
        small = page.value(
            "[...document.querySelectorAll('button:not(.matrix button), select, input[type=range]')]"
            ".filter(control => control.checkVisibility() && control.getBoundingClientRect().height < 24)"
            ".map(control => control.outerHTML)"
        )
        assert small == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_background(chromium, address, scheme):
    with visitor(chromium, color_scheme=scheme) as page:
        page.start(address)
        page.value(OPEN_ALL)
        page.value("document.getElementById('alert').hidden = document.getElementById('key').hidden = false")
        assert page.value(CONTRAST) == []


CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = rgba(colour).map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (rgba(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.matches(":disabled, option")) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(element.closest("svg") ? style.fill : style.color), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) faint.push(`${element.outerHTML.slice(0, 80)} ${ratio.toFixed(2)}`);
  }
  return faint;
})()"""


def test_every_control_has_a_name_for_those_who_listen(started):
    nodes = started.tab.context.new_cdp_session(started.tab).send("Accessibility.getFullAXTree")["nodes"]
    kinds = {"button", "checkbox", "combobox", "slider", "link", "textbox", "image", "img", "region"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node.get("role", {}).get("value") in kinds
    ]
    assert len(named) > 100
    assert [role for role, name in named if not name.strip()] == []
    assert started.value("document.getElementById('status').ariaLive") == "polite"


def test_a_server_with_a_key_asks_for_it(chromium, few):
    with page_server.serving(Settings(api_key="open sesame")) as address, visitor(chromium) as page:
        page.visit(address)
        page.until("document.getElementById('key').checkVisibility()")
        assert page.value("document.activeElement.id") == "key-value"
        for given, awaited in (("wrong", "alert"), ("open sesame", "samples img")):
            page.tab.fill("#key-value", given)
            page.press("Enter")
            page.until(f"document.querySelector('#{awaited}')?.checkVisibility()")
        assert page.visible("#key, #alert") == 0
        page.settle(60)
        assert page.complaints
        assert [text for text in page.complaints if not text.startswith(f"{REFUSED} 401")] == []
        page.complaints.clear()  # the browser itself reports every 401


def test_an_open_page_follows_the_served_method(chromium, few):
    with page_server.serving(Settings(api_key="key")) as address, visitor(chromium) as page:
        page.visit(address)
        page.until("document.getElementById('key').checkVisibility()")
        page.tab.fill("#key-value", "key")
        page.press("Enter")
        page.until("document.getElementById('overview-text').textContent.startsWith('FIND ')")
        body = json.dumps({"method": "tbn"}).encode()
        request = urllib.request.Request(f"{address}v1/method", body, {"X-API-Key": "key"})
        urllib.request.urlopen(request).close()
        page.until("document.getElementById('overview-text').textContent.startsWith('tbn ')")
        assert page.text("#method") == "tbn"
        page.complaints.clear()  # of the browser, about the first 401


def test_a_server_that_has_stopped_is_reported(chromium, few):
    with visitor(chromium) as page:
        with page_server.serving(Settings()) as address:
            page.overview(address)
        page.click("#use-all")
        page.until("document.getElementById('alert').checkVisibility()")
        assert page.text("#alert-text") == "The server cannot be reached. Is it still running?"
        assert page.visible("#retry") == 1
        assert page.visible("#busy") == 0
        page.complaints.clear()  # the browser itself reports the broken connection


def test_a_model_of_other_classes_gets_no_marks(chromium, few, tmp_path):
    model = tmp_path / "letters.py"
    model.write_text(
        "from dataclasses import replace\n"
        "from findtta.models import load\n"
        "def letters():\n"
        "    model = load('shapes-resnet26')\n"
        "    model.card = replace(model.card, classes=tuple('abcdefghij'))\n"
        "    return model\n"
    )
    settings = Settings(model=f"{model}:letters", method="tbn")
    with page_server.serving(settings) as address, visitor(chromium) as page:
        page.overview(address)
        assert page.text("#model") == "letters.py:letters"
        assert "tbn and the source model agree on" in page.text("#overview-text")
        assert "--samples FOLDER" in page.text("#overview-note")
        assert "mean confidence" in page.text(".method.served")
        assert page.texts(".mark") == []
        assert "does not know the classes of the samples" in page.text("#samples-note")
        assert page.text("#no-groups") == "The served method makes no groups."
        assert page.visible("#groups-view") == 0


def test_domains_met_in_requests_are_a_table_with_examples(chromium, few):
    settings = Settings(method="find-domains", clean_images="none", keep_examples=True)
    with page_server.serving(settings) as address, visitor(chromium) as page:
        page.overview(address)
        assert page.visible("#domains") == 0  # there was no request yet
        body = json.dumps({"images": draw(np.arange(8), seed=7).tolist()}).encode()
        request = urllib.request.Request(f"{address}v1/predict", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request).close()
        page.until("document.getElementById('domains').checkVisibility()")
        assert page.text("#domains-title") == "Domains met so far"
        domains = page.value("fetch('v1/domains').then(response => response.json())")["domains"]
        assert len(page.texts("#domain-table tbody tr")) == len(domains)
        assert page.texts("#domain-table tbody tr:first-child td")[:2] == [
            f"{100 * domains[0]['share']:.1f}%",
            str(domains[0]["images"]),
        ]
        assert page.visible("#domain-table img") == sum(len(domain["examples"]) for domain in domains)
